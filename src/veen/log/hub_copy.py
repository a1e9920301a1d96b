"""Copies of a hub's entries, for work that reads a directory: a hub's URL then does where a directory does.

The copy holds chunks and the signed identity, nothing else, and grows: each time only entries behind its heads are
asked for, up to the heads that the hub names at that moment, its newest ones included. Entries are written as the hub
tells them, byte for byte, and judged when they are read. One that the hub does not give, erased ones among them, is
missing in the copy. Everything in it is sealed: a copy is as public as the hub's pages.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from veen.client.session import HubSession
from veen.core.objects.identity import HubIdentity
from veen.fs.local import OsFs
from veen.log.hub_link import HubFailed, HubLink
from veen.log.options import HubAddress
from veen.log.pages import Item, runs
from veen.log.remote import RemoteHub
from veen.log.slices import Selection, Slice
from veen.storage import frame, layout
from veen.storage.pinned import LabelPin, pin

_CHUNK_BYTES: Final = 4 << 20  # of frames in one file of a copy
_MAX_WITHHELD: Final = 1 << 17  # in a row: a hub that claims 2^60 entries must not be asked for all of them
_PARTITION_BYTES: Final = 64 << 20


def fetch(address: HubAddress, root: Path, *, streams: Collection[bytes] | None = None) -> str:
    """Bring the copy below `root` up to the hub, or some streams of it; the directory of the copy.

    LockedError while another process does the same. A hub with another identity gets a directory of its own.
    """
    hub = RemoteHub(address, _PARTITION_BYTES)
    with HubLink(address) as link:
        identity, sig, root_pk = link.session(_identity)
        directory = root / identity.hub_id.hex()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / layout.LOG).mkdir(mode=0o700, exist_ok=True)
        fs = OsFs(directory)
        with fs.lock():
            fs.replace(layout.IDENTITY, identity.to_bytes())
            fs.replace(layout.IDENTITY_SIG, sig)
            if root_pk is not None:
                fs.replace(layout.ROOT, root_pk.hex().encode() + b"\n")
            pinned = hub.pin(Selection(streams=None if streams is None else frozenset(streams)))
            before = pin(str(directory)).heads
            for label_pin in pinned.labels.values():
                if streams is None or label_pin.stream_id in streams:
                    _fetch_label(fs, link, label_pin, before.get(label_pin.label, 0))
    return str(directory)


async def _identity(session: HubSession) -> tuple[HubIdentity, bytes, bytes | None]:
    """What the hub says of itself, checked against the pin, with the signature; and the root key, if that is pinned."""
    answer = await session.refresh_identity()
    return answer.to_identity(), answer.sig, session.pin.root_pk


def _fetch_label(fs: OsFs, link: HubLink, label_pin: LabelPin, head: int) -> None:
    """Entries behind `head`, in files of consecutive ones."""
    writer = _ChunkWriter(fs, label_pin.label)
    withheld = 0
    for ref in label_pin.chunks:
        if ref.end_seq <= head:
            continue
        part = Slice.whole(ref)._replace(first=max(ref.start_seq, head + 1))
        for run in runs(link, part):
            for number, item in enumerate(run.items, start=run.first):
                writer.add(number, item)
            withheld = 0 if run.items else withheld + len(run.rows)
            if withheld > _MAX_WITHHELD:
                writer.flush()
                raise HubFailed(
                    f"{link.address.url}: of label {label_pin.label.hex()}, which has {label_pin.size} entries by its "
                    f"own word, the hub gives none of {withheld} in a row"
                )
    writer.flush()


class _ChunkWriter:
    """Frames of one label, written as chunks."""

    def __init__(self, fs: OsFs, label: bytes) -> None:
        self._fs, self._label = fs, label
        self._first, self._next = 0, 0
        self._frames = bytearray()

    def add(self, number: int, item: Item) -> None:
        """`number` is the position at which the hub put the entry; left out if it is none that can stand there."""
        if not item.is_plausible or item.stream_seq != number:
            self.flush()
            self._next = 0
            return
        if number != self._next or len(self._frames) >= _CHUNK_BYTES:
            self.flush()
            self._first = number
        self._frames += frame.encode(self._label, *item).to_bytes()
        self._next = number + 1

    def flush(self) -> None:
        if self._frames:
            self._fs.replace(layout.chunk(self._label, self._first, self._next - 1), bytes(self._frames))
        self._frames.clear()
