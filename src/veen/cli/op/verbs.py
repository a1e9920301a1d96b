"""The table behind `veen op`: nouns, the verbs that write one message each, and the fields that become its body.

Light: help and TAB read it, and it loads neither overlays nor cryptography.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

# How a value is written on the command line, and what it becomes:
# identity  `me`, a card (veen1…) or 64 hex digits → a client_id or another identity
# account   the same → its account; account:HEX → an account_id
# id        64 hex digits, or a name → its hash
# reference 64 hex digits: an operation_id, a msg_id or an auth_ref
# stream    a stream → its stream_id
# terms     a file → the SHA-256 of its bytes
Kind = Literal["identity", "account", "id", "reference", "stream", "terms", "text", "uint", "time", "span", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpField:
    """One field of a body. A positional one is an argument, the others are options."""

    kind: Kind
    help: str
    positional: bool = False
    required: bool = False
    many: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpVerb:
    """A command that writes one message."""

    help: str
    schema: str  # module:name of the Schema
    fields: Mapping[str, OpField]  # by the name in the body, in the order of arguments
    example: str
    embeddable: bool = True  # an agent may do it for a principal
    make: str | None = None  # module:function(session, body fields) → extra fields of the body


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNoun:
    """A group of `veen op`: the verbs that write, and those that read with their short help."""

    name: str
    help: str
    about: str
    fold: str  # state class
    writes: Mapping[str, OpVerb] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)


def _arg(kind: Kind, text: str = "", *, many: bool = False, choices: tuple[str, ...] = ()) -> OpField:
    return OpField(kind=kind, help=text, positional=True, required=True, many=many, choices=choices)


def _opt(kind: Kind, text: str, *, required: bool = False, many: bool = False) -> OpField:
    return OpField(kind=kind, help=text, required=required, many=many)


_OPERATIONS: Final = "veen.overlays.operations"
_PARENT: Final = {"parent_operation_id": _opt("reference", "The operation that this one answers.")}
_METADATA: Final = {"metadata": _opt("json", "A JSON value to go with it.")}
_REASON: Final = {"reason": _opt("text", "Why: it stands in the log.")}

_GRANT: Final = OpVerb(
    help="Let an identity write to streams, until a time.",
    schema=f"{_OPERATIONS}.access:GRANT",
    fields={
        "subject_identity": _arg("identity"),
        "subject_label": _opt("text", "What people read; it identifies nobody."),
        "allowed_stream_ids": _opt("stream", "Where. Repeatable.", required=True, many=True),
        "expiry_time": _opt("time", "Until when: a time, or +30d.", required=True),
        "maximum_rate_per_second": _opt("uint", "Messages a second; goes with --maximum-burst."),
        "maximum_burst": _opt("uint", "Messages at once."),
        "maximum_amount": _opt("uint", "How much it may debit from the granter's account in all."),
        "currency_code": _opt("text", "The currency of the amount."),
        **_REASON,
        **_PARENT,
    },
    example="veen op access grant access veen1… --allowed-stream-ids orders --expiry-time +30d --policy policy.json",
)
_REVOKE: Final = OpVerb(
    help="Take back what an identity was granted: all of it, or one grant or token.",
    schema=f"{_OPERATIONS}.access:REVOKE",
    fields={
        "subject_identity": _arg("identity"),
        "target_capability_reference": _opt("reference", "Only this: an operation_id, a msg_id or an auth_ref."),
        **_REASON,
        **_PARENT,
    },
    example="veen op access revoke access veen1… --policy policy.json",
)

NOUNS: Final[Mapping[str, OpNoun]] = {
    noun.name: noun
    for noun in (
        OpNoun(
            name="paid",
            help="Operations with their payment, and the ledger of them.",
            about="Operations with their payment as one message, and the ledger that follows from them.",
            fold="operation.paid",
            writes={
                "pay": OpVerb(
                    help="Pay for an operation.",
                    schema=f"{_OPERATIONS}.paid:PAID",
                    fields={
                        "operation_type": _arg("text"),
                        "payee_account": _arg("account"),
                        "amount": _arg("uint"),
                        "operation_args": _opt("json", "The arguments of the operation, as JSON; default: null."),
                        "payer_account": _opt("account", "Whose account pays; default: yours."),
                        "currency_code": _opt("text", "The currency; default: the default unit of the policy."),
                        "operation_reference": _opt("reference", "An invoice or order: the same is not paid twice."),
                        **_PARENT,
                        "ttl_seconds": _opt("span", "The hub must take it within this time: 60s, 10m."),
                        **_METADATA,
                    },
                    example="veen op paid pay shop translate veen1… 250 --currency-code EUR --policy policy.json",
                    make="veen.cli.op.write:payer",
                ),
                "allow": OpVerb(
                    help="Let an identity debit your account, up to an amount.",
                    schema=_GRANT.schema,
                    fields=_GRANT.fields,
                    example="veen op paid allow shop veen1… --allowed-stream-ids shop --expiry-time +7d "
                    "--maximum-amount 500 --currency-code EUR",
                ),
                "disallow": OpVerb(
                    help="Take back a right to debit your account.",
                    schema=_REVOKE.schema,
                    fields=_REVOKE.fields,
                    example="veen op paid disallow shop veen1…",
                ),
            },
            reads={"list": "The balances, and the operations that made them."},
        ),
        OpNoun(
            name="access",
            help="Grants and revocations of access.",
            about="Changes of access control as messages, and the capability tokens that follow from them.",
            fold="operation.access",
            writes={"grant": _GRANT, "revoke": _REVOKE},
            reads={"list": "The grants and revocations, and which are live."},
        ),
        OpNoun(
            name="delegation",
            help="Operations that agents did for principals.",
            about="Operations that agents did for principals. Any command that writes takes --principal and --chain.",
            fold="operation.delegated",
            reads={"list": "The delegated executions, with their chains."},
        ),
        OpNoun(
            name="agreement",
            help="Agreements between parties, and which version is active.",
            about="Agreements between parties: versions, decisions, and which version is active at any moment.",
            fold="operation.agreement",
            writes={
                "define": OpVerb(
                    help="Define a version of an agreement.",
                    schema=f"{_OPERATIONS}.agreement:DEFINITION",
                    fields={
                        "agreement_id": _arg("id"),
                        "version": _arg("uint"),
                        "terms_hash": _opt("terms", "The file of the terms, whose hash is sent.", required=True),
                        "terms_attachment_root": _opt("reference", "att_root of the terms where they are attached."),
                        "parties": _opt("identity", "A party. Repeatable.", required=True, many=True),
                        "effective_time": _opt("time", "From when: a time, or +1d."),
                        "expiry_time": _opt("time", "Until when."),
                        **_METADATA,
                    },
                    example="veen op agreement define contracts lease-7 1 --terms-hash lease.pdf --parties me "
                    "--parties veen1…",
                ),
                "confirm": OpVerb(
                    help="Accept, reject or withdraw from a version.",
                    schema=f"{_OPERATIONS}.agreement:CONFIRMATION",
                    fields={
                        "agreement_id": _arg("id"),
                        "version": _arg("uint"),
                        "decision": _arg("text", choices=("accept", "reject", "withdraw")),
                        "party_identity": _opt("identity", "Which party decides; default: you."),
                        "decision_time": _opt("time", "When it was decided."),
                        **_PARENT,
                        **_METADATA,
                    },
                    example="veen op agreement confirm contracts lease-7 1 accept",
                    make="veen.cli.op.write:party",
                ),
            },
            reads={"list": "The versions, the decisions, and which version is active."},
        ),
        OpNoun(
            name="publication",
            help="Published content: files and directories by their root.",
            about="Published content, bound to the log by its Merkle root; a file or directory is verified against it.",
            fold="operation.publication",
            writes={
                "publish": OpVerb(
                    help="Publish a version of something, by the root of its files.",
                    schema=f"{_OPERATIONS}.publication:PUBLICATION",
                    fields={
                        "publication_id": _arg("id"),
                        "version": _arg("text"),
                        "paths": OpField(
                            kind="text", help="", positional=True, required=True, many=True
                        ),  # become content_root
                        "content_class": _opt("text", "What it is: model, dataset, configuration …", required=True),
                        "publisher_identity": _opt("identity", "Who publishes; default: you."),
                        "labels": _opt("text", "A word to find it by. Repeatable.", many=True),
                        "source_uri": _opt("text", "Where the content can be fetched."),
                        **_METADATA,
                    },
                    example="veen op publication publish models llama v1.2.0 ./llama --content-class model",
                    make="veen.cli.op.write:content",
                ),
            },
            reads={
                "list": "What was published.",
                "root": "The content root of files or of a directory.",
                "manifest": "Write the list of files behind a content root.",
                "verify": "Check files or a directory against what was published.",
            },
        ),
        OpNoun(
            name="recovery",
            help="Recovery of identities by guardians.",
            about="An identity gets a successor: requested, approved by guardians, executed.",
            fold="operation.recovery",
            writes={
                "request": OpVerb(
                    help="Ask for a successor of an identity.",
                    schema=f"{_OPERATIONS}.recovery:REQUEST",
                    fields={
                        "target_identity": _arg("identity"),
                        "requested_new_identity": _arg("identity"),
                        **_REASON,
                        "request_time": _opt("time", "When it was asked for."),
                        **_METADATA,
                    },
                    example="veen op recovery request recovery HEX me --policy policy.json",
                ),
                "approve": OpVerb(
                    help="As a guardian, approve or reject a recovery.",
                    schema=f"{_OPERATIONS}.recovery:APPROVAL",
                    fields={
                        "target_identity": _arg("identity"),
                        "requested_new_identity": _arg("identity"),
                        "decision": _arg("text", choices=("approve", "reject")),
                        "approver_identity": _opt("identity", "Which guardian decides; default: you."),
                        "policy_group_id": _opt("id", "The group of guardians."),
                        "decision_time": _opt("time", "When it was decided."),
                        **_PARENT,
                        **_METADATA,
                    },
                    example="veen op recovery approve recovery HEX HEX approve --policy policy.json",
                    make="veen.cli.op.write:approver",
                ),
                "execute": OpVerb(
                    help="Replace an identity, with the approvals that allow it.",
                    schema=f"{_OPERATIONS}.recovery:EXECUTION",
                    fields={
                        "target_identity": _arg("identity"),
                        "new_identity": _arg("identity"),
                        "approval_references": _arg("reference", many=True),
                        "applied_time": _opt("time", "When it was applied."),
                        **_METADATA,
                    },
                    example="veen op recovery execute recovery HEX HEX HEX --policy policy.json",
                ),
            },
            reads={"list": "Requests, decisions, and who was replaced by whom."},
        ),
        OpNoun(
            name="audit",
            help="Who read which sensitive resource.",
            about="Reads of sensitive resources as messages of the services that served them.",
            fold="operation.queryaudit",
            writes={
                "record": OpVerb(
                    help="Record that a query was served.",
                    schema=f"{_OPERATIONS}.queryaudit:QUERY_AUDIT",
                    fields={
                        "requester_identity": _arg("identity"),
                        "resource_identifier": _arg("text"),
                        "resource_class": _arg("text"),
                        "query_parameters": _opt("json", "Filters and other parameters, as JSON."),
                        "purpose_code": _opt("text", "Why: treatment, billing, debug …"),
                        "result_digest": _opt("reference", "The digest of the result, 64 hex digits."),
                        "request_time": _opt("time", "When it was asked."),
                        **_METADATA,
                    },
                    example="veen op audit record audit veen1… patient:1234 personal-data --purpose-code billing",
                    embeddable=False,
                ),
            },
            reads={
                "list": "The audited accesses.",
                "missing": "Accesses of a list that no message tells of.",
            },
        ),
        OpNoun(
            name="mirror",
            help="What other hubs signed, as stated here.",
            about="Statements about entries of other hubs (federation.mirror.v1).",
            fold="operation.mirror",
            reads={"list": "The stated positions of each source, and the gaps."},
        ),
    )
}
