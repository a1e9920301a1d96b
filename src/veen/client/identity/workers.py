"""Client keys of worker processes: one for each process, all of one identity (decisions.md 153).

One process at a time uses a client key, since two would give one client_seq to two messages (D-76). A worker takes the
first free slot of the identity. The slot has a directory of its own for what is known of labels, a lock, and a client
key that follows from the identity's long-term key and the slot's nonce:

    state/workers/NAME/SLOT/worker.json                {"ver": 1, "nonce": …, "created_at": …}
    state/workers/NAME/SLOT/identities/NAME/state.db   as that of an identity

So no secret is written, the keystore gives the keys of all its workers, and a worker that starts again in
the slot of one that was killed finishes its pending messages. A key is replaced at half of its lifetime when a
worker begins, and before it reaches a bound while one runs.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from veen.client.errors import IdentityInUse, LocalError, StateDamaged
from veen.client.home import Home, PrivateFs
from veen.client.identity.identity import ClientKey, Identity, Random
from veen.client.identity.rotation import MAX_LIFETIME_SEC
from veen.client.state import StateStore
from veen.core.crypto import hkdf
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey

MAX_WORKERS: Final = 256
_RECORD: Final = "worker.json"
_NONCE_BYTES: Final = 32
_MAX_KNOWN: Final = 16  # earlier keys whose pending messages the present one can take over
_MAX_RETIRED: Final = 1_000  # more than a year of two a day
_MAX_RECORD_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A slot that was free a moment ago: its home, and the identity with its client key."""

    number: int
    home: Home
    identity: Identity


@dataclass(frozen=True, slots=True)
class _Record:
    nonce: bytes
    created_at: int
    retired: tuple[bytes, ...] = ()  # earlier nonces, so that older messages have a known author

    @classmethod
    def fresh(cls, now: int, random: Random, before: "_Record | None") -> Self:
        retired = () if before is None else (*before.retired, before.nonce)[-_MAX_RETIRED:]
        return cls(random(_NONCE_BYTES), now, retired)

    @classmethod
    def read(cls, fs: PrivateFs) -> Self | None:
        if not fs.exists(_RECORD):
            return None
        file = fs.open(_RECORD)
        try:
            document = json.loads(file.read_at(0, min(file.size(), _MAX_RECORD_BYTES)))
            retired = tuple(map(bytes.fromhex, document.get("retired", ())))
            return cls(bytes.fromhex(document["nonce"]), int(document["created_at"]), retired)
        except (AttributeError, ValueError, KeyError, TypeError) as exc:
            raise StateDamaged(f"{fs.root / _RECORD}: not the record of a worker") from exc
        finally:
            file.close()

    def write(self, fs: PrivateFs) -> None:
        retired = [nonce.hex() for nonce in self.retired]
        document = {"ver": 1, "nonce": self.nonce.hex(), "created_at": self.created_at, "retired": retired}
        fs.replace(_RECORD, json.dumps(document).encode() + b"\n")

    def client_keys(self, identity: Identity) -> tuple[ClientKey, ...]:
        """Return the present key after those that were retired last."""
        first = max(len(self.retired) - _MAX_KNOWN, 0)
        return tuple(
            ClientKey(key=_derive_key(identity, nonce), created_at=self.created_at, generation=number)
            for number, nonce in enumerate((*self.retired[first:], self.nonce), start=first + 1)
        )

    def client_ids(self, identity: Identity) -> set[bytes]:
        return {_derive_key(identity, nonce).public for nonce in (self.nonce, *self.retired)}


def _derive_key(identity: Identity, nonce: bytes) -> SigningKey:
    return SigningKey(hkdf.hkdf(identity.id_sign.seed, nonce, b"veen/worker-client-key", SEED_BYTES))


def worker_client_ids(home: Home, identity: Identity) -> set[bytes]:
    """Return the present and remembered earlier client keys of an identity's workers on this machine."""
    ids: set[bytes] = set()
    for number in range(MAX_WORKERS):
        fs = PrivateFs(_slot_dir(home, identity, number))
        if not fs.root.is_dir():
            break  # slots are taken in order
        record = _Record.read(fs)
        if record is not None:
            ids |= record.client_ids(identity)
    return ids


def _slot_dir(home: Home, identity: Identity, number: int) -> Path:
    return home.state / "workers" / identity.name / str(number)


def take_slot(home: Home, identity: Identity, now: int, *, random: Random = os.urandom) -> Iterator[WorkerSlot]:
    """Yield free slots, the first one first. Raise LocalError when there is none left.

    The caller connects with a slot, and tries the next one if another process was faster.
    """
    for number in range(MAX_WORKERS):
        slot = replace(home, state=_slot_dir(home, identity, number))
        try:
            yield WorkerSlot(number, slot, _identity_of(slot, identity, now, random))
        except IdentityInUse:
            continue
    raise LocalError(f"all {MAX_WORKERS} workers that the identity {identity.name!r} may have are running")


def _identity_of(slot: Home, identity: Identity, now: int, random: Random) -> Identity:
    fs = PrivateFs(slot.state)
    with StateStore.open(slot, identity.name) as store:
        record = _Record.read(fs)
        is_old = record is not None and not 0 <= now - record.created_at < MAX_LIFETIME_SEC // 2
        if record is None or (is_old and not store.states_with_pending()):
            record = _Record.fresh(now, random, record)
            record.write(fs)
    return replace(identity, client_keys=record.client_keys(identity))


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """The client keys of the worker in a slot (`rotation.KeyHolder`)."""

    slot: WorkerSlot
    random: Random = os.urandom
    issues_tokens: bool = True  # nobody else issues tokens for a key that is made at a start

    def next_key(self, now: int) -> Identity:
        fs = PrivateFs(self.slot.home.state)
        record = _Record.fresh(now, self.random, _Record.read(fs))
        record.write(fs)
        return replace(self.slot.identity, client_keys=record.client_keys(self.slot.identity))
