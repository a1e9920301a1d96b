"""Anchors and witnesses: which roots somebody outside the log remembers (ANCHOR0), and who else signed them."""

from typing import Any

from veen.client.errors import HubRefused
from veen.client.transport.calls import is_not_found
from veen.console.charts import Bead, beads
from veen.console.pages.common import basis, digest, now
from veen.console.report import DigestCell, LinkCell, MarkCell, MomentCell, Section
from veen.console.views import CONSOLE, Console, PageView, Query
from veen.core.objects.checkpoint import Checkpoint
from veen.overlays.anchoring import AnchorFold
from veen.products.anchoring.listing import ListedAnchor, anchors_of

__all__ = ["anchors"]

_MAX_LISTED = 200  # anchors of one label


async def anchors(console: Console, query: Query) -> PageView:
    folded = await console.events.folded(AnchorFold(), now=now())
    stated = {
        (label, upto): root for (hub_id, label, upto), root in folded.state.items() if hub_id == console.client.hub_id
    }
    logs: list[dict[str, Any]] = []
    lines: dict[str, tuple[int, list[Bead]]] = {}
    for keys in console.shown_streams():
        for checkpoint in await console.checkpoints_of(keys):
            listed = await _listed(console, checkpoint.label_curr)
            mine = {upto: root for (label, upto), root in stated.items() if label == checkpoint.label_curr}
            logs.append(_log(str(keys), keys.stream_id, checkpoint, listed, mine))
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
            note="Each line is a log. Circles: signed roots. Diamonds: roots that are also anchored.",
            picture=beads("Checkpoints and anchors", lines),
            columns=("Stream", "Up to entry", "Root", "Witness signatures", "Anchors"),
            rows=tuple(
                (
                    LinkCell(log["stream"], f"/stream/{log['stream_id']}"),
                    log["upto_seq"],
                    DigestCell(log["root"]),
                    log["witnesses"],
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
        Section(
            title="Witnesses",
            note="Witness signatures are counted as the hub served them. The keys of witnesses are not configured "
            "here, so nobody verified them: `veen checkpoint list STREAM` and `veen witness` do.",
        ),
        *(basis(folded) if folded.streams else []),
    ]
    return PageView(
        template="report.html",
        title="Anchors and witnesses",
        command="veen anchor list STREAM",
        data={"logs": logs, **folded.about()},
        verified_by=CONSOLE if logs else None,
        verified_what="checkpoints and records of anchors are signed by the pinned hub. What a service outside keeps "
        "is verified by veen anchor verify."
        if logs
        else "nothing was written to the streams of your keyring.",
        sections=tuple(sections) if logs else (),
    )


async def _listed(console: Console, label: bytes) -> list[ListedAnchor]:
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
