"""The nouns of operations and their verbs: `veen op paid pay` … (001 spec-3, docs/overlays-operations.md).

Kinds of values beside those that all overlays have: account, speaker (an identity, by default the one that the command
speaks for), id (64 hex digits, or a name and its hash), stream, terms (a file, whose hash is sent) and content (files
or a directory, whose root is sent with the form that it has).
"""

from typing import Any, Final

from veen.overlays.framework.args import Arg
from veen.overlays.framework.nouns import ListView, Noun, Row, Verb
from veen.overlays.framework.plain import plain
from veen.overlays.operations import access, agreement, delegation, mirror, paid, publication, queryaudit, recovery

# --- lists -------------------------------------------------------------------------------------------------------


def _balances(state: Any, as_of: int) -> ListView:
    balances = [
        {"account": account, "currency": currency, "balance": balance}
        for (account, currency), balance in state.balances.items()
    ]
    data = {"balances": balances, "operations": state.operations, "sums": state.sums()}
    return ListView(
        data, ("account", "currency", "balance"), [[plain(cell) for cell in row.values()] for row in balances]
    )


def _grants(state: Any, as_of: int) -> ListView:
    grants = [{**plain(grant), "live": grant.is_live(as_of)} for grant in state.grants.values()]
    rows = [
        (
            grant["operation_id"],
            bytes.fromhex(grant["subject"]),
            grant["expiry_time"],
            "live" if grant["live"] else "ended",
        )
        for grant in grants
    ]
    data = {"grants": grants, "revocations": state.revocations, "revoked_refs": state.revoked_refs}
    return ListView(data, ("grant", "subject", "expires", "state"), rows)


def _executions(state: Any, as_of: int) -> ListView:
    rows = [(key.hex(), execution.principal, execution.agent, len(execution.chain)) for key, execution in state.items()]
    return ListView({"executions": state}, ("operation", "principal", "agent", "links"), rows)


def _versions(state: Any, as_of: int) -> ListView:
    rows = [
        (
            agreement_id.hex(),
            version,
            "accepted" if state.is_accepted(agreement_id, version) else "open",
            "active" if state.active.get(agreement_id) == version else "",
        )
        for agreement_id, version in state.definitions
    ]
    data = {"definitions": state.definitions, "decisions": state.decisions, "active": state.active}
    return ListView(data, ("agreement", "version", "decisions", "now"), rows)


def _publications(state: Any, as_of: int) -> ListView:
    rows = [
        (publication_id.hex(), version, entry.content_class, entry.content_root.hex())
        for (publication_id, version), entry in state.versions.items()
    ]
    return ListView({"versions": state.versions}, ("publication", "version", "class", "content_root"), rows)


def _recoveries(state: Any, as_of: int) -> ListView:
    rows = [
        (target.hex(), new.hex(), "open" if request.is_open else "closed", _decisions(state, target, new))
        for (target, new), request in state.requests.items()
    ]
    data = {"requests": state.requests, "decisions": state.decisions, "remapped": state.remapped}
    return ListView(data, ("target", "new", "request", "decisions"), rows)


def _decisions(state: Any, target: bytes, new: bytes) -> str:
    decisions = [entry.decision for (of, to, _), entry in state.decisions.items() if (of, to) == (target, new)]
    return f"{decisions.count('approve')} approve, {decisions.count('reject')} reject"


def _accesses(state: Any, as_of: int) -> ListView:
    rows = [
        (entry.hub_ts, entry.requester, entry.resource, entry.resource_class, entry.purpose_code or "")
        for entry in state.values()
    ]
    return ListView({"accesses": state}, ("hub_ts", "requester", "resource", "class", "purpose"), rows)


def _sources(state: Any, as_of: int) -> ListView:
    sources = [
        {"source": source, "label": label, "upto": entry.upto, "gaps": entry.gaps(), "positions": entry.positions}
        for (source, label), entry in state.items()
    ]
    rows = [(entry["source"], entry["label"].hex(), entry["upto"], len(entry["gaps"])) for entry in sources]
    return ListView({"sources": sources}, ("source", "label", "upto", "gaps"), rows)


# --- verbs -------------------------------------------------------------------------------------------------------


def _content(values: dict[str, Any]) -> Row:
    """Return the root of the content, and metadata that say in which form it was made (D-157)."""
    ((form, root),) = values["paths"]
    return {"content_root": root, "metadata": {**(values["metadata"] or {}), "content_form": form}}


_PARENT: Final = {"parent_operation_id": Arg("reference", "The operation that this one answers.")}
_METADATA: Final = {"metadata": Arg("json", "A JSON value to go with it.")}
_REASON: Final = {"reason": Arg("text", "Why: it stands in the log.")}

_GRANT: Final = Verb(
    name="grant",
    help="Let an identity write to streams, until a time.",
    schema=access.GRANT,
    args={
        "subject_identity": Arg("identity"),
        "subject_label": Arg("text", "What people read; it identifies nobody."),
        "allowed_stream_ids": Arg("stream", "Where. Repeatable.", required=True, many=True),
        "expiry_time": Arg("time", "Until when: a time, or +30d.", required=True),
        "maximum_rate_per_second": Arg("uint", "Messages a second; goes with --maximum-burst."),
        "maximum_burst": Arg("uint", "Messages at once."),
        "maximum_amount": Arg("uint", "How much it may debit from the granter's account in all."),
        "currency_code": Arg("text", "The currency of the amount."),
        **_REASON,
        **_PARENT,
    },
    examples=["veen op access grant access veen1… --allowed-stream-ids orders --expiry-time +30d --policy policy.json"],
)
_REVOKE: Final = Verb(
    name="revoke",
    help="Take back what an identity was granted: all of it, or one grant or token.",
    schema=access.REVOKE,
    args={
        "subject_identity": Arg("identity"),
        "target_capability_reference": Arg("reference", "Only this: an operation_id, a msg_id or an auth_ref."),
        **_REASON,
        **_PARENT,
    },
    examples=["veen op access revoke access veen1… --policy policy.json"],
)

NOUNS: Final = {
    noun.name: noun
    for noun in (
        Noun(
            name="paid",
            listing=_balances,
            help="Operations with their payment, and the ledger of them.",
            about="Operations with their payment as one message, and the ledger that follows from them.",
            fold=paid.PaidFold,
            verbs=[
                Verb(
                    name="pay",
                    help="Pay for an operation.",
                    schema=paid.PAID,
                    args={
                        "operation_type": Arg(),
                        "payee_account": Arg("account"),
                        "amount": Arg("uint"),
                        "operation_args": Arg("json", "The arguments of the operation, as JSON; default: null."),
                        "payer_account": Arg("account", "Whose account pays; default: yours.", own=True),
                        "currency_code": Arg("text", "The currency; default: the default unit of the policy."),
                        "operation_reference": Arg("reference", "An invoice or order: the same is not paid twice."),
                        **_PARENT,
                        "ttl_seconds": Arg("span", "The hub must take it within this time: 60s, 10m."),
                        **_METADATA,
                    },
                    examples=["veen op paid pay shop translate veen1… 250 --currency-code EUR --policy policy.json"],
                    to_draft=lambda body, now: paid.pay(body, now=now),
                ),
                Verb(
                    name="allow",
                    help="Let an identity debit your account, up to an amount.",
                    schema=_GRANT.schema,
                    args=_GRANT.args,
                    examples=[
                        "veen op paid allow shop veen1… --allowed-stream-ids shop --expiry-time +7d "
                        "--maximum-amount 500 --currency-code EUR"
                    ],
                ),
                Verb(
                    name="disallow",
                    help="Take back a right to debit your account.",
                    schema=_REVOKE.schema,
                    args=_REVOKE.args,
                    examples=["veen op paid disallow shop veen1…"],
                ),
            ],
            list_help="The balances, and the operations that made them.",
        ),
        Noun(
            name="access",
            listing=_grants,
            help="Grants and revocations of access.",
            about="Changes of access control as messages, and the capability tokens that follow from them.",
            fold=access.AccessFold,
            verbs=[_GRANT, _REVOKE],
            list_help="The grants and revocations, and which are live.",
        ),
        Noun(
            name="delegation",
            listing=_executions,
            help="Operations that agents did for principals.",
            about="Operations that agents did for principals. Any command that writes takes --principal and --chain.",
            fold=delegation.DelegationFold,
            list_help="The delegated executions, with their chains.",
        ),
        Noun(
            name="agreement",
            listing=_versions,
            help="Agreements between parties, and which version is active.",
            about="Agreements between parties: versions, decisions, and which version is active at any moment.",
            fold=agreement.AgreementFold,
            verbs=[
                Verb(
                    name="define",
                    help="Define a version of an agreement.",
                    schema=agreement.DEFINITION,
                    args={
                        "agreement_id": Arg("id"),
                        "version": Arg("uint"),
                        "terms_hash": Arg("terms", "The file of the terms, whose hash is sent.", required=True),
                        "terms_attachment_root": Arg("reference", "att_root of the terms where they are attached."),
                        "parties": Arg("identity", "A party. Repeatable.", required=True, many=True),
                        "effective_time": Arg("time", "From when: a time, or +1d."),
                        "expiry_time": Arg("time", "Until when."),
                        **_METADATA,
                    },
                    examples=[
                        "veen op agreement define contracts lease-7 1 --terms-hash lease.pdf --parties me "
                        "--parties veen1…"
                    ],
                ),
                Verb(
                    name="confirm",
                    help="Accept, reject or withdraw from a version.",
                    schema=agreement.CONFIRMATION,
                    args={
                        "agreement_id": Arg("id"),
                        "version": Arg("uint"),
                        "decision": Arg(choices=("accept", "reject", "withdraw")),
                        "party_identity": Arg("speaker", "Which party decides; default: you.", own=True),
                        "decision_time": Arg("time", "When it was decided."),
                        **_PARENT,
                        **_METADATA,
                    },
                    examples=["veen op agreement confirm contracts lease-7 1 accept"],
                ),
            ],
            list_help="The versions, the decisions, and which version is active.",
        ),
        Noun(
            name="publication",
            listing=_publications,
            help="Published content: files and directories by their root.",
            about="Published content, bound to the log by its Merkle root; a file or directory is verified against it.",
            fold=publication.PublicationFold,
            verbs=[
                Verb(
                    name="publish",
                    help="Publish a version of something, by the root of its files.",
                    schema=publication.PUBLICATION,
                    args={
                        "publication_id": Arg("id"),
                        "version": Arg(),
                        "paths": Arg("content", required=True, many=True, metavar="PATHS..."),
                        "content_class": Arg("text", "What it is: model, dataset, configuration …", required=True),
                        "publisher_identity": Arg("speaker", "Who publishes; default: you.", own=True),
                        "labels": Arg("text", "A word to find it by. Repeatable.", many=True),
                        "source_uri": Arg("text", "Where the content can be fetched."),
                        "metadata": Arg("object", "A JSON object to go with it."),
                    },
                    examples=["veen op publication publish models llama v1.2.0 ./llama --content-class model"],
                    derive=_content,
                ),
            ],
            list_help="What was published.",
        ),
        Noun(
            name="recovery",
            listing=_recoveries,
            help="Recovery of identities by guardians.",
            about="An identity gets a successor: requested, approved by guardians, executed.",
            fold=recovery.RecoveryFold,
            verbs=[
                Verb(
                    name="request",
                    help="Ask for a successor of an identity.",
                    schema=recovery.REQUEST,
                    args={
                        "target_identity": Arg("identity"),
                        "requested_new_identity": Arg("identity"),
                        **_REASON,
                        "request_time": Arg("time", "When it was asked for."),
                        **_METADATA,
                    },
                    examples=["veen op recovery request recovery HEX me --policy policy.json"],
                ),
                Verb(
                    name="approve",
                    help="As a guardian, approve or reject a recovery.",
                    schema=recovery.APPROVAL,
                    args={
                        "target_identity": Arg("identity"),
                        "requested_new_identity": Arg("identity"),
                        "decision": Arg(choices=("approve", "reject")),
                        "approver_identity": Arg("speaker", "Which guardian decides; default: you.", own=True),
                        "policy_group_id": Arg("id", "The group of guardians."),
                        "decision_time": Arg("time", "When it was decided."),
                        **_PARENT,
                        **_METADATA,
                    },
                    examples=["veen op recovery approve recovery HEX HEX approve --policy policy.json"],
                ),
                Verb(
                    name="execute",
                    help="Replace an identity, with the approvals that allow it.",
                    schema=recovery.EXECUTION,
                    args={
                        "target_identity": Arg("identity"),
                        "new_identity": Arg("identity"),
                        "approval_references": Arg(
                            "reference", required=True, many=True, metavar="APPROVAL_REFERENCES..."
                        ),
                        "applied_time": Arg("time", "When it was applied."),
                        **_METADATA,
                    },
                    examples=["veen op recovery execute recovery HEX HEX HEX --policy policy.json"],
                ),
            ],
            list_help="Requests, decisions, and who was replaced by whom.",
        ),
        Noun(
            name="audit",
            listing=_accesses,
            help="Who read which sensitive resource.",
            about="Reads of sensitive resources as messages of the services that served them.",
            fold=queryaudit.make_fold,
            verbs=[
                Verb(
                    name="record",
                    help="Record that a query was served.",
                    schema=queryaudit.QUERY_AUDIT,
                    args={
                        "requester_identity": Arg("identity"),
                        "resource_identifier": Arg(),
                        "resource_class": Arg(),
                        "query_parameters": Arg("json", "Filters and other parameters, as JSON."),
                        "purpose_code": Arg("text", "Why: treatment, billing, debug …"),
                        "result_digest": Arg("reference", "The digest of the result, 64 hex digits."),
                        "request_time": Arg("time", "When it was asked."),
                        **_METADATA,
                    },
                    examples=["veen op audit record audit veen1… patient:1234 personal-data --purpose-code billing"],
                ),
            ],
            list_help="The audited accesses.",
        ),
        Noun(
            name="mirror",
            listing=_sources,
            help="What other hubs signed, as stated here.",
            about="Statements about entries of other hubs (federation.mirror.v1).",
            fold=mirror.MirrorFold,
            list_help="The stated positions of each source, and the gaps.",
        ),
    )
}
