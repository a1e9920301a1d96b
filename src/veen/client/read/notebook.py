"""Values of the client in a notebook: cards for entries and receipts, a picture for proofs.

Receipts, checkpoints and all other wire objects bring their own card (`veen.core.html`). As in `repr`, bodies are not
shown: a notebook is saved and shared, and showing a value must not publish it. Print `entry.body` to see it.
"""

from typing import TYPE_CHECKING

from veen.client.read.picture import Picture
from veen.client.read.svg import to_svg
from veen.core.html import field_html, shown, table

if TYPE_CHECKING:
    from veen.client.read.reading import Entry
    from veen.client.send.writing import Sent
    from veen.client.verify.evidence import Proven


def proof_html(proven: "Proven") -> str:
    """Return the picture of a valid proof, with its receipt below it."""
    picture = Picture.of(
        proven.proof, stream_seq=proven.receipt.stream_seq, root=proven.root, tree_size=proven.tree_size
    )
    return f"<div>{to_svg(picture, signed_by='the pinned hub')}{shown(proven.receipt)}</div>"


def entry_html(entry: "Entry") -> str:
    state = shown(entry.error) if entry.event is None else f"opened, {len(entry.body)} bytes"
    names = [attachment.name or attachment.coid for attachment in entry.attachments]
    rows = [
        ("seq", shown(entry.seq)),
        ("time", _time(entry.ts)),
        ("author", shown(entry.msg.client_id)),
        ("msg_id", shown(entry.msg_id)),
        ("body", "sealed" if entry.event is None and entry.error is None else state),
        *([("attachments", shown(names))] if names else []),
        ("root", shown(entry.receipt.mmr_root)),
        ("verified by", "this client: signatures of author and hub, order, place under the root"),
    ]
    return table(f"Entry {entry.seq} \u2713 verified", rows)


def message_html(sent: "Sent") -> str:
    rows = [
        ("seq", shown(sent.seq)),
        ("msg_id", shown(sent.msg_id)),
        ("label", shown(sent.label)),
        ("root", shown(sent.root)),
        ("time", _time(sent.receipt.hub_ts)),
        ("bytes", shown(len(sent.raw))),
        ("verified by", "this client: the signature of the pinned hub, and the place under the root"),
    ]
    return table(f"Message {sent.seq} \u2713 receipt verified", rows)


def _time(seconds: int) -> str:
    return field_html("hub_ts", seconds)
