"""Console page of anchors and witnesses: roots published outside of the log (ANCHOR0), and their cosigners.

Witnesses are those of the policy of the context. They cosign the note of the hub's outer log, which lists checkpoints
(docs/witnesses.md), or sign a CHECKPOINT itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from veen.client.errors import HubRefused
from veen.client.transport.calls import is_not_found
from veen.client.verify.outer import OuterReader
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish
from veen.core.tlog.note import verify_signatures
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.tree import QuorumError
from veen.overlays.anchoring import AnchorFold
from veen.products.anchoring.listing import ListedAnchor, anchors_of
from veen.products.console.charts import Bead, beads
from veen.products.console.errors import FormInvalid
from veen.products.console.pages import Page
from veen.products.console.pages.common import basis, digest, now
from veen.products.console.views import (
    CONSOLE,
    Console,
    DigestCell,
    LinkCell,
    MarkCell,
    MomentCell,
    PageView,
    Query,
    Section,
    witnesses_of,
)
from veen.products.console.writes import ConsoleWriter, WriteOutcome

_MAX_LISTED = 200  # anchors of one label


async def anchors(console: Console, query: Query) -> PageView:
    folded = await console.events.fold(AnchorFold(), now=now())
    stated = {
        (label, upto): root for (hub_id, label, upto), root in folded.state.items() if hub_id == console.client.hub_id
    }
    policy = console.local.witness_policy
    outer = await _outer(console, policy)
    logs: list[dict[str, Any]] = []
    lines: dict[str, tuple[int, list[Bead]]] = {}
    for keys in console.shown_streams():
        for checkpoint in await console.checkpoints_of(keys):
            listed = await _read_anchors(console, checkpoint.label_curr)
            mine = {upto: root for (label, upto), root in stated.items() if label == checkpoint.label_curr}
            is_listed = None if outer is None else await _is_listed(console, checkpoint)
            log = _log(str(keys), keys.stream_id, checkpoint, listed, mine)
            logs.append({**log, **witnesses_of(checkpoint, policy), "in_outer_log": is_listed})
            points = {checkpoint.upto_seq: False, **dict.fromkeys([a.body.upto_seq for a in listed] + list(mine), True)}
            lines[str(keys)] = (
                checkpoint.upto_seq,
                [
                    Bead(number, anchored, f"{keys} {number}: {'anchored' if anchored else 'checkpoint'}")
                    for number, anchored in sorted(points.items())
                ],
            )
    wrong = [log["stream"] for log in logs for anchor in log["anchors"] if not anchor["matches"]]
    sections = [
        Section(
            title="Checkpoints and anchors",
            note="Each line is a log, thick as far as it is verified. Circles: signed roots. Diamonds: roots that are "
            "also anchored.",
            picture=beads("Checkpoints and anchors", lines),
            columns=("Stream", "Up to entry", "Root", "Witnesses", "In the cosigned list", "Anchors"),
            rows=tuple(
                (
                    LinkCell(log["stream"], f"/stream/{log['stream_id']}"),
                    log["upto_seq"],
                    DigestCell(log["root"]),
                    _signatures(log),
                    _mark_of(log["in_outer_log"], outer),
                    len(log["anchors"]),
                )
                for log in logs
            ),
        ),
        Section(
            title="Anchors",
            note="A root in the hub's own journal, or in a stream of anchors, must be the root that the log has there.",
            columns=("Stream", "Up to entry", "Root", "Kept by", "Reference", "Time", "The log has"),
            rows=tuple(
                (
                    log["stream"],
                    anchor["upto_seq"],
                    DigestCell(anchor["root"]),
                    anchor["kept_by"],
                    None if anchor["reference"] is None else DigestCell(anchor["reference"]),
                    MomentCell(anchor["time"]),
                    MarkCell("the same root", "good") if anchor["matches"] else MarkCell("ANOTHER ROOT", "bad"),
                )
                for log in logs
                for anchor in log["anchors"]
            ),
            empty="No root of these logs is anchored: veen anchor publish STREAM",
            kind="bad" if wrong else "",
        ),
        _witness_section(policy, outer),
        *(basis(folded) if folded.streams else []),
    ]
    return PageView(
        template="report.html",
        title="Anchors and witnesses",
        command="veen anchor list STREAM",
        data={"logs": logs, "outer": outer, **folded.about()},
        verified_by=CONSOLE if logs else None,
        verified_what="checkpoints and records of anchors are signed by the pinned hub. What a service outside keeps "
        "is verified by veen anchor verify."
        if logs
        else "nothing was written to the streams of your keyring.",
        sections=tuple(sections) if logs else (),
        form="anchor_form.html" if logs and console.writer is not None else "",
    )


async def publish_anchor(console: Console, writer: ConsoleWriter, fields: Mapping[str, str]) -> WriteOutcome:
    """Have the hub anchor the newest root of a stream, at the backend of its configuration."""
    keys = console.keys_of(fields.get("stream_id", "")[:64])
    record = await writer.anchor(keys)
    if not isinstance(record.body, AnchorPublish):
        raise FormInvalid("the hub did not answer with an anchor")
    return WriteOutcome(
        path="/anchors",
        what=f"Anchored: the root of {keys} up to entry {record.body.upto_seq}, at {record.body.backend}.",
        verified="the record is signed by the pinned hub, and names the root that the log has there.",
    )


# --- witnesses -------------------------------------------------------------------------------------------------------


async def _outer(console: Console, policy: WitnessPolicy | None) -> dict[str, Any] | None:
    """Return the newest note of the hub's outer log, and its cosigners in the policy; None without an outer log."""
    reader = OuterReader(console.client.session)
    try:
        vkey = await reader.vkey()
        note, listed = await reader.note()
    except HubRefused as exc:
        if is_not_found(exc):
            return None
        raise
    facts: dict[str, Any] = {
        "origin": listed.origin,
        "size": listed.size,
        "root": listed.root.hex(),
        "cosignatures": len(note.signatures) - 1,
        "witnesses": [],
        "accepted": None,
        "why": None,
    }
    if policy is None:
        return facts
    cosigned = verify_signatures(note, [witness.vkey for witness in policy.witnesses.values()])
    facts["witnesses"] = [
        {"name": name, "key": witness.vkey.public.hex(), "time": cosigned.get(witness.vkey)}
        for name, witness in policy.witnesses.items()
    ]
    try:
        if policy.check(note).log != vkey:
            raise QuorumError(f"the policy lists another key for {vkey.name} than the one that the hub's own key binds")
    except QuorumError as exc:
        return facts | {"accepted": False, "why": str(exc)}
    return facts | {"accepted": True}


async def _is_listed(console: Console, checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint that covers all entries is proven to be in the outer log. Raise BadAnswer
    otherwise.
    """
    proof = await OuterReader(console.client.session).proof(checkpoint.label_curr, checkpoint.upto_seq)
    return proof is not None


def _signatures(log: Mapping[str, Any]) -> MarkCell | None:
    if log["witnesses_verified"]:
        return MarkCell(f"✓ this console: {', '.join(log['witnesses_verified'])}", "good")
    return MarkCell(f"? nobody: {log['witnesses']}", "muted") if log["witnesses"] else None


def _mark_of(is_listed: bool | None, outer: Mapping[str, Any] | None) -> MarkCell | None:
    if is_listed is None or outer is None:
        return None
    if not is_listed:
        return MarkCell("not yet all", "partly")
    return MarkCell("✓ this console", "good") if outer["accepted"] else MarkCell("listed", "muted")


def _witness_section(policy: WitnessPolicy | None, outer: Mapping[str, Any] | None) -> Section:
    if outer is None:
        return Section(
            title="Witnesses",
            note="This hub publishes no outer log that witnesses could cosign (outer.origin of its configuration).",
        )
    facts: tuple[tuple[str, Any], ...] = (
        ("Outer log", outer["origin"]),
        ("Leaves", outer["size"]),
        ("Root", DigestCell(outer["root"])),
    )
    if policy is None:
        return Section(
            title="Witnesses",
            note="The note of the outer log is signed by the hub. No witness policy is configured in this context, so "
            "its cosignatures were not verified: veen config set context.NAME.witness_policy FILE",
            facts=(*facts, ("Cosignatures", MarkCell(f"? nobody verified: {outer['cosignatures']}", "muted"))),
        )
    verdict = MarkCell("✓ this console: the quorum of the policy cosigned it", "good")
    if not outer["accepted"]:
        verdict = MarkCell(f"✕ {outer['why']}", "bad")
    return Section(
        title="Witnesses",
        note="Who of the witness policy of this context cosigned the newest note of the outer log, verified here by "
        "the keys in the policy.",
        facts=(*facts, ("Quorum", verdict)),
        columns=("Witness", "Key", "Cosigned at", "Verified by"),
        rows=tuple(
            (
                witness["name"],
                DigestCell(witness["key"]),
                None if witness["time"] is None else MomentCell(witness["time"]),
                MarkCell("no cosignature", "partly") if witness["time"] is None else MarkCell("✓ this console", "good"),
            )
            for witness in outer["witnesses"]
        ),
        kind="" if outer["accepted"] else "bad",
    )


async def _read_anchors(console: Console, label: bytes) -> list[ListedAnchor]:
    listed: list[ListedAnchor] = []
    try:
        async for anchor in anchors_of(console.client.session, label):
            listed.append(anchor)
            if len(listed) >= _MAX_LISTED:
                break
    except HubRefused as exc:
        if not is_not_found(exc):
            raise
    return listed


def _log(
    stream: str, stream_id: bytes, checkpoint: Checkpoint, listed: list[ListedAnchor], stated: dict[int, Any]
) -> dict[str, Any]:
    roots = {checkpoint.upto_seq: checkpoint.mmr_root}
    roots |= {anchor.checkpoint.upto_seq: anchor.checkpoint.mmr_root for anchor in listed if anchor.checkpoint}
    rows = [
        {
            "upto_seq": anchor.body.upto_seq,
            "root": anchor.body.mmr_root.hex(),
            "kept_by": anchor.body.backend,
            "reference": anchor.body.anchor_ref.hex(),
            "time": anchor.record.hub_ts,
            "matches": roots.get(anchor.body.upto_seq, anchor.body.mmr_root) == anchor.body.mmr_root,
        }
        for anchor in listed
    ]
    rows += [
        {
            "upto_seq": upto,
            "root": root.mmr_root.hex(),
            "kept_by": "a stream of anchors",
            "reference": digest(root.msg_id).digits,  # type: ignore[union-attr]  # it has one
            "time": root.hub_ts,
            "matches": roots.get(upto, root.mmr_root) == root.mmr_root,
        }
        for upto, root in stated.items()
    ]
    return {
        "stream": stream,
        "stream_id": stream_id.hex(),
        "epoch": checkpoint.epoch,
        "upto_seq": checkpoint.upto_seq,
        "root": checkpoint.mmr_root.hex(),
        "witnesses": len(checkpoint.witness_sigs or ()),
        "anchors": sorted(rows, key=lambda row: (row["upto_seq"], row["time"])),
    }


PAGES: Final = (Page(path="/anchors", title="Anchors", report=anchors, writes={"/anchors/publish": publish_anchor}),)
