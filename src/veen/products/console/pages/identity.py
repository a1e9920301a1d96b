"""Identities: who belongs to whom, as layers of principals, devices, accounts, groups and organizations (ID).

Capabilities page: rights to write, with their validity, from the hub's journal (spec §6).

It shows the tokens of this identity, and those named by entries of readable streams.
"""

from collections.abc import Mapping
from typing import Any

from veen.client.errors import HubRefused
from veen.client.generations.owning import owner_keys
from veen.client.send.captokens import describe
from veen.client.send.grants import TokenGrant
from veen.client.transport.calls import is_not_found
from veen.core.hashing import H
from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import Revocation
from veen.overlays.federation.realm import RealmFold
from veen.overlays.framework.plain import plain
from veen.overlays.id.fold import IdFold
from veen.overlays.id.graph import edges_of, nodes_of
from veen.products.console.charts import TimeBar, gantt, layers
from veen.products.console.errors import FormInvalid
from veen.products.console.pages.common import fold_page, now
from veen.products.console.views import CONSOLE, Console, DigestCell, MarkCell, MomentCell, PageView, Query, Section
from veen.products.console.writes import ConsoleWriter, WriteOutcome

_LAYERS = (
    ("handle", "handles"),
    ("external", "accounts elsewhere"),
    ("device", "devices"),
    ("principal", "principals"),
    ("ctx", "accounts"),
    ("group", "groups"),
    ("org", "organizations"),
)


async def identity(console: Console, query: Query) -> PageView:
    folded = await console.events.fold(IdFold(), now=now(), only=lambda keys: keys.name is None)
    nodes, edges = nodes_of(folded.state, folded.as_of), edges_of(folded.state, folded.as_of)
    for source, _, target in edges:  # handles and links are ends of edges and nothing else
        for key in (source, target):
            kind, _, name = key.partition(":")
            nodes.setdefault(key, {"kind": kind, "id": name, "name": name if kind == "handle" else None})
    columns = [
        (title, [(key, _words(node), _kind(node)) for key, node in sorted(nodes.items()) if node["kind"] == kind])
        for kind, title in _LAYERS
    ]
    conflicts = plain(folded.state.conflicts())
    sections = [
        Section(
            title="Who belongs to whom",
            picture=layers("Identities in layers", columns, edges),
            columns=("From", "Relation", "To"),
            rows=tuple((_end(source, nodes), words, _end(target, nodes)) for source, words, target in edges),
            folded=True,
        ),
        Section(
            title="Identities",
            columns=("Kind", "Name", "Id", "State"),
            rows=tuple(
                (node["kind"], node["name"], DigestCell(node["id"]), MarkCell(node.get("status") or "", _kind(node)))
                for _, node in sorted(nodes.items())
            ),
        ),
    ]
    return fold_page(
        folded,
        title="Identities",
        command="veen id graph",
        data={
            "nodes": nodes,
            "edges": [{"from": source, "relation": words, "to": target} for source, words, target in edges],
            "conflicts": conflicts,
        },
        sections=sections,
        nothing="no stream of your keyring has events of identities.",
    )


def _words(node: dict[str, Any]) -> str:
    name = node["name"] or f"{node['id'][:8]}…"
    return f"{name} ({node['status']})" if node.get("status") not in (None, "active") else str(name)


def _kind(node: dict[str, Any]) -> str:
    status = node.get("status")
    return "" if status is None else "good" if status == "active" else "bad"


def _end(key: str, nodes: dict[str, dict[str, Any]]) -> str:
    node = nodes[key]
    return f"{node['kind']} {node['name'] or node['id'][:8] + '…'}"


_MAX_TOKENS = 100


async def capabilities(console: Console, query: Query) -> PageView:
    tokens = (
        {} if console.local.tokens is None else {entry.auth_ref: entry.token for entry in console.local.tokens.all()}
    )
    named = {event.auth_ref for keys in console.shown_streams() if keys.can_read
             for event in (await console.events.of(keys)).events if event.auth_ref is not None}  # fmt: skip
    references = sorted({*tokens, *named})
    revoked = await _read_revoked(console)
    moment = now()
    rows = []
    for auth_ref in references[:_MAX_TOKENS]:
        grant = await _grant(console, auth_ref)
        token = tokens.get(auth_ref) if grant is None else grant.token
        rows.append(_row(console, auth_ref, token, grant, auth_ref in revoked | console.revoked, moment))
    bars = [
        TimeBar(
            f"{row['subject_pk'][:8]}… {', '.join(row['streams'])}",
            row["issued_at"],
            row["expires_at"],
            {"valid": "good", "revoked": "bad"}.get(row["state"], "muted"),
            f"{row['auth_ref'][:16]}…: {row['state']}",
        )
        for row in rows
        if row["issued_at"] is not None
    ]
    sections = [
        Section(
            title="Validity over time",
            note="From the time at which the hub took a token to the last second in which it counts.",
            picture=gantt("Capabilities over time", bars, moment),
        ),
        Section(
            title="Tokens",
            columns=("Token", "State", "Who may write", "Where", "From", "Until", "At most", "Issued by"),
            rows=tuple(
                (
                    DigestCell(row["auth_ref"]),
                    MarkCell(row["state"], {"valid": "good", "revoked": "bad"}.get(row["state"], "partly")),
                    None if row["subject_pk"] is None else DigestCell(row["subject_pk"]),
                    ", ".join(row["streams"]),
                    None if row["issued_at"] is None else MomentCell(row["issued_at"]),
                    None if row["expires_at"] is None else MomentCell(row["expires_at"]),
                    row["rate"],
                    None if row["issuer_pk"] is None else DigestCell(row["issuer_pk"]),
                )
                for row in rows
            ),
        ),
    ]
    return PageView(
        template="report.html",
        title="Capabilities",
        command="veen cap status",
        data={"tokens": rows, "tokens_left_out": max(len(references) - _MAX_TOKENS, 0), "as_of": moment},
        verified_by=CONSOLE if rows else None,
        verified_what="the signatures of every token that is shown. Times are as the hub states them."
        if rows
        else "this identity has no tokens, and no entry of your streams names one.",
        sections=tuple(sections) if rows else (),
        form="revoke_form.html" if rows and console.writer is not None else "",
    )


async def revoke_token(console: Console, writer: ConsoleWriter, fields: Mapping[str, str]) -> WriteOutcome:
    """Have the hub refuse a token and its renewals from the next second on. Requires its administrator's right."""
    try:
        auth_ref = bytes.fromhex(fields.get("auth_ref", "")[:64])
    except ValueError:
        auth_ref = b""
    if len(auth_ref) != 32:
        raise FormInvalid("the form names no token")
    stored = None if console.local.tokens is None else console.local.tokens.get(auth_ref)
    grant = await _grant(console, auth_ref)
    token = grant.token if grant is not None else None if stored is None else stored.token
    targets = [("auth-ref", auth_ref)]
    if token is not None:
        targets.append(("cap-token", H(token.sig_chain[0])))  # by its first link too: renewals have it (D-173)
    moment = now()
    records = await writer.revoke([Revocation(kind=kind, target=target, ts=moment) for kind, target in targets])
    console.revoked.add(auth_ref)
    return WriteOutcome(
        path="/capabilities",
        what=f"Revoked: the hub refuses the token {auth_ref.hex()[:16]}… and its renewals.",
        verified=f"{len(records)} new records of it are signed by the pinned hub.",
    )


async def _grant(console: Console, auth_ref: bytes) -> TokenGrant | None:
    try:
        return await console.client.cap_status(auth_ref)
    except HubRefused as exc:
        if is_not_found(exc):
            return None
        raise


async def _read_revoked(console: Console) -> set[bytes]:
    fold = RealmFold()
    emitters = {stream: await owner_keys(console.client, stream) for stream in fold.unowned_streams}
    folded = await console.events.fold(fold.with_emitters(emitters), now=now())
    return {record.target for record in folded.state.revocations if folded.state.is_revoked(
        record.kind, record.target, folded.as_of)}  # fmt: skip


def _row(
    console: Console, auth_ref: bytes, token: CapToken | None, grant: TokenGrant | None, revoked: bool, moment: int
) -> dict[str, Any]:
    info = None if token is None else describe(token, console.keyring)
    if grant is None:
        state = "not known to the hub"
    elif revoked:
        state = "revoked"
    else:
        state = "valid" if moment <= grant.expires_at else "expired"
    rate = None if info is None or info.rate is None else f"{info.rate.per_sec} a second, {info.rate.burst} at once"
    return {
        "auth_ref": auth_ref.hex(),
        "state": state,
        "subject_pk": None if info is None else info.subject_pk.hex(),
        "issuer_pk": None if info is None else info.issuer_pk.hex(),
        "streams": [] if info is None else list(info.streams),
        "issued_at": None if grant is None else grant.issued_at,
        "expires_at": None if grant is None else grant.expires_at,
        "rate": rate,
    }
