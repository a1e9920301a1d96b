"""Logs for the benchmarks of the pipeline: really sealed, really signed, written by the storage code itself.

Half of the entries are recorder events (`record/app/http`), half are writes of a key-value state (`state/kv`); they
take turns, a hundred a second by the hub's clock. All of it follows from the number of an entry, so messages are made
on all cores and a directory of one size is always the same. Directories are kept between runs, by size and format.
"""

import multiprocessing
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H, u64be
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, LabelOpen
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Binding, seal
from veen.io.local import OsFs
from veen.lake.log.keys import KeyFile, write_keys
from veen.overlays import kv
from veen.overlays.framework.schema import Draft
from veen.overlays.recorder import events as sdr
from veen.storage import frame
from veen.storage.index import Index
from veen.storage.keys import identity
from veen.storage.keys.identity import HubKeys
from veen.storage.label_files import LabelFiles
from veen.storage.store import Group, Store

__all__ = ["EVENTS", "START", "STATE", "STATE_KEYS", "Log", "begin_of", "built"]

FORMAT: Final = 1  # counts up when other entries are made
EVENTS: Final = "record/app/http"
STATE: Final = "state/kv"
STREAMS: Final = (EVENTS, STATE)
KEYS: Final = {name: StreamKeys.create(name, random=random.Random(name).randbytes) for name in STREAMS}
HUB: Final = SigningKey(H(b"spark bench hub"))
LABELS: Final = [label_of(routing_key_of(hub_id_of(HUB.public)), stream_id_of(name), 0) for name in STREAMS]
CLIENTS: Final = [SigningKey(H(b"spark bench client %d" % number)) for number in range(64)]
PROFILE: Final = PRESETS["bulk"].profile_id()
START: Final = 1_700_000_000
PER_SECOND: Final = 100
STATE_KEYS: Final = 10_000
BLOCK: Final = 2_000  # messages that one task makes
GROUP: Final = 1_000  # entries in one write of the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A directory, and the keys of its readers."""

    path: str
    keys: KeyFile
    entries: int

    @property
    def keyring(self) -> Keyring:
        return self.keys.load()


def begin_of(number: int) -> int:
    """hub_ts of an entry."""
    return START + number // PER_SECOND


def built(entries: int, cache: Path | None = None) -> Log:
    """The log of this many entries: from an earlier run, or made now."""
    root = (cache or Path(tempfile.gettempdir())) / f"veen-bench-spark-{FORMAT}-{entries}"
    log = Log(path=str(root / "hub"), keys=KeyFile(str(root / "reader.keys")), entries=entries)
    if not (root / "done").exists():
        shutil.rmtree(root, ignore_errors=True)
        (root / "hub").mkdir(parents=True)
        write_keys(root, KEYS.values())
        _build(root / "hub", entries)
        (root / "done").touch()
    return log


# --- messages, on all cores ----------------------------------------------------------------------------------


def _draft(number: int, place: int, writer: SigningKey) -> Draft:
    """What entry `number`, the `place`th of its stream, says."""
    dice = int.from_bytes(H(u64be(number))[:8], "big")
    if number % len(STREAMS):
        key = f"key/{dice % STATE_KEYS}"
        return kv.delete(key) if place % 10 == 9 else kv.put(key, {"n": number, "by": "bench"})
    return sdr.event(
        subject_id=f"user:{dice % 1000}",
        principal_id=writer.public,
        event_type=("login", "logout", "read", "write")[dice % 4],
        event_time=begin_of(number) - dice % 5,
        origin=f"gw-{dice % 8}",
        payload={"ms": dice % 1000, "n": number, "path": f"/items/{dice % 5000}"},
    )


def _message(number: int) -> tuple[bytes, bytes, int, int]:
    """A MSG in bytes, its leaf, its stream and its writer."""
    stream, place = number % len(STREAMS), number // len(STREAMS)
    client = place % len(CLIENTS)
    writer, keys = CLIENTS[client], KEYS[STREAMS[stream]]
    at: dict[str, Any] = {
        "profile_id": PROFILE,
        "label": LABELS[stream],
        "client_seq": place // len(CLIENTS) + 1,
        "prev_ack": 0,
        "auth_ref": None,
    }
    draft = _draft(number, place, writer)
    ikm = H(b"ikm" + u64be(number))
    binding, hdr = Binding(client_id=writer.public, **at), PayloadHdr(schema=draft.schema)
    sealed = seal(keys.reader_pk, binding, hdr, draft.body, ikm=ikm, pad_block=0)
    msg = Msg.compose(writer, ciphertext=sealed.ciphertext, **at)
    return msg.to_bytes(), msg.leaf_hash(), stream, client


def _messages(block: range) -> list[tuple[bytes, bytes, int, int]]:
    return [_message(number) for number in block]


def _made(entries: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    blocks = [range(first, min(first + BLOCK, entries)) for first in range(0, entries, BLOCK)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for block in pool.imap(_messages, blocks):
            yield from block


# --- the directory -------------------------------------------------------------------------------------------


class _Hub:
    """A hub without admission: it orders, receipts and stores what it is given."""

    def __init__(self, root: Path) -> None:
        self._fs = OsFs(root)
        self._keys: HubKeys = identity.create(self._fs, HUB.seed, START)
        self._store = Store.open(self._fs, DEFAULT_LIMITS, self._seal)
        group = Group()
        for name, label in zip(STREAMS, LABELS, strict=True):
            body = LabelOpen(label=label, epoch=0, stream_id=stream_id_of(name))
            record = ControlRecord.issue(HUB, self._store.state.control, body, hub_ts=START)
            self._store.stage_control(record)
            group.add_control(record)
        self._commit(group)

    def _seal(self, files: LabelFiles, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        return Checkpoint.issue(
            HUB, label_prev=files.label, label_curr=files.label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=0
        )

    def _commit(self, group: Group) -> None:
        self._store.journal.write(group.payload())
        self._store.apply(group)
        if self._store.journal_is_full:
            self._store.retire()

    def take(self, entries: Iterator[tuple[bytes, bytes, int, int]]) -> None:
        state, number = self._store.state, 0
        while page := list(islice(entries, GROUP)):
            group = Group()
            for raw, leaf_hash, stream, client in page:
                label, client_id, hub_ts = state.labels[LABELS[stream]], CLIENTS[client].public, begin_of(number)
                cursor = state.client(label, client_id)
                admitted = state.admit(
                    label,
                    client_id=client_id,
                    client_seq=cursor.client_seq + 1 if cursor else 1,
                    prev_ack=0,
                    auth_ref=None,
                    leaf_hash=leaf_hash,
                    hub_ts=hub_ts,
                )
                receipt = Receipt.issue(
                    HUB,
                    label=LABELS[stream],
                    stream_seq=admitted.stream_seq,
                    leaf_hash=leaf_hash,
                    mmr_root=admitted.mmr_root,
                    hub_ts=hub_ts,
                )
                framed = frame.encode(LABELS[stream], admitted.stream_seq, raw, receipt.to_bytes())
                group.add_entry(admitted, framed.msg, framed.receipt)
                number += 1
            self._commit(group)

    def close(self) -> None:
        self._store.close()
        index = Index(self._fs)
        identity.write_binding(self._fs, self._keys.identity, index)
        index.close()


def _build(root: Path, entries: int) -> None:
    hub = _Hub(root)
    hub.take(_made(entries))
    hub.close()
