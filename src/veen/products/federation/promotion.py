"""Cutover: a replica becomes the primary (D-78, goals_dr_cutover).

    fence     the primary admits no messages any more (`veen hub fence`), or is lost
    prove     the replica has the last checkpoint that it knows of, and, with a hub.fence, all entries that it counts
    keys      those of the identity come from elsewhere: a replica has none; that of the outer log is taken only if
              nothing can have been signed with it that is not here
    promote   a hub.promote record in the control journal; the mark of a replica is removed

Entries that the primary acknowledged and the replica does not have cannot be restored: their receipts would contradict
the receipts of the new primary at the same numbers. Without a fence their number is unknown, so the ranges are named
and an operator must accept the loss. A primary that comes back asks its replicas and finds the record
(`veen.hub.process.watches`).
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from veen.client.errors import HubRefused, NetworkError, TimedOut, Unreachable
from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.http import HttpTransport
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, VerifyError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, HubFence, HubPromote, root_of_heads
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import FeedRequest, FeedResponse, HealthResponse
from veen.core.tlog.note import VerifierKey
from veen.core.tree.mmr import peak_nodes, root_of
from veen.hub.process.replica import FollowedIdentity
from veen.hub.process.startup import at_rest
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs, OsFs
from veen.products.federation.outer_copies import bound_key, lists_fence
from veen.storage import layout
from veen.storage.copies.replica import ReplicaMark, end_replica, read_mark, write_mark
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import KeyDirFs, MissingKeyError
from veen.storage.outer import OuterLogFiles, read_outer_key, write_outer_key
from veen.storage.scan import read_file
from veen.storage.store import Store

# "none": there is no outer log. "continues": its key is here. "no key": it was not beside the other keys.
# "behind": the primary may have signed a note that is not here, so the key stays away: two notes of one size would be a
# fork in the eyes of every witness.
OuterOutcome = Literal["none", "continues", "no key", "behind"]
_ASK_SECONDS: Final = 5.0
_KEY_SUFFIX: Final = ".key"
_OUTER_SEED: Final = layout.OUTER_KEY.rpartition("/")[2]
_SHOWN: Final = 8


class NotAReplica(StorageError, code="E.REPLICA.DIRECTORY"):
    """The directory is not a replica."""


class PrimaryAlive(StorageError, code="E.REPLICA.PRIMARY"):
    """The primary still admits messages: two hubs would sign for one identity."""


class WrongKey(StorageError, code="E.REPLICA.KEY"):
    """The private keys of the identity are not at the given place."""


@dataclass(frozen=True, slots=True)
class OpenRange:
    """Entries of a label that the primary may have acknowledged and that are missing here."""

    label: bytes
    first_seq: int
    last_seq: int | None  # last known entry of the primary; None if unknown


class LossNotAccepted(StorageError, code="E.REPLICA.LOSS"):
    """Receipts may exist for entries that the replica does not have."""

    def __init__(self, ranges: tuple[OpenRange, ...], entries: int) -> None:
        certain = [part for part in ranges if part.last_seq is not None]
        named = "; ".join(
            f"{part.label.hex()} {part.first_seq} to {part.last_seq or '?'}" for part in (certain or ranges)[:_SHOWN]
        )
        more = f"; and {len(certain or ranges) - _SHOWN} more" if len(certain or ranges) > _SHOWN else ""
        what = "entries that the primary had are missing" if certain else "no hub.fence proves that this is all"
        super().__init__(f"{what}: receipts may exist for (label, entries) {named}{more}; {entries} entries are here")
        self.ranges, self.entries = ranges, entries


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """State of a stopped replica."""

    mark: ReplicaMark
    entries: int
    labels: int
    root: bytes  # of all heads
    fence: HubFence | None  # the last record, if the primary was fenced
    promoted: bool  # whether the last record is that of a promotion of this directory that was cut off
    control_bytes: int
    ranges: tuple[OpenRange, ...]
    outer: VerifierKey | None  # the key of the outer log, if the primary has one and something of it is here
    outer_complete: bool  # whether the outer log here lists the fence, so that its primary has signed nothing behind it

    @property
    def complete(self) -> bool:
        """True if the primary has signed that there are no further entries."""
        return self.fence is not None and (self.fence.upto, self.fence.root) == (self.entries, self.root)


@dataclass(frozen=True, slots=True)
class Promotion:
    """A completed cutover."""

    hub_pk: bytes
    entries: int
    labels: int
    complete: bool
    accepted: tuple[OpenRange, ...]  # ranges whose loss was accepted
    outer: OuterOutcome


def replica_state(fs: Fs) -> ReplicaState:
    """Open the directory of a replica that does not run, and check it against the checkpoints that it knows."""
    mark = read_mark(fs)
    if mark is None:
        raise NotAReplica(f"{layout.REPLICA}: the file is missing, so this directory is not a replica")
    with fs.lock():
        followed = FollowedIdentity(fs)
        store = Store.open(fs, DEFAULT_LIMITS, followed.seal)
        try:
            state = _state_of(fs, store, mark, followed.held.identity)
        except BaseException:
            store.abandon()
            raise
        store.close()
    return state


def _state_of(fs: Fs, store: Store, mark: ReplicaMark, identity: HubIdentity) -> ReplicaState:
    heads: list[tuple[bytes, int, bytes]] = []
    ranges: list[OpenRange] = []
    for files in store.labels():
        if not files.size:
            continue
        nodes_root = root_of([files.node_at(*node) for node in peak_nodes(files.size)])
        if nodes_root != files.root():
            raise CorruptError(layout.nodes(files.label), 0, "the nodes do not lead to the root of the last entry")
        heads.append((files.label, files.size, nodes_root))
        announced = mark.announced.get(files.label)
        last = announced if announced is not None and announced > files.size else None
        ranges.append(OpenRange(files.label, files.size + 1, last))
    own = {label for label, _, _ in heads}
    ranges += [OpenRange(label, 1, size) for label, size in sorted(mark.announced.items()) if label not in own]
    _check_checkpoints(fs, store, identity)
    last_record = store.state.control
    outer = bound_key(store) if OuterLogFiles.exists(fs) else None
    fence = last_record.body if last_record is not None and isinstance(last_record.body, HubFence) else None
    return ReplicaState(
        mark=mark,
        entries=store.entry_count,
        labels=len(heads),
        root=root_of_heads(heads),
        fence=fence,
        promoted=last_record is not None and _is_own_promotion(last_record, mark),
        control_bytes=store.control_size,
        ranges=tuple(ranges),
        outer=outer,
        outer_complete=outer is not None and fence is not None and _lists_fence(fs, outer, last_record),
    )


def _is_own_promotion(record: ControlRecord, mark: ReplicaMark) -> bool:
    """Return True if a promotion of this directory wrote the record; a replica of a promoted hub has another one."""
    return isinstance(record.body, HubPromote) and record.body.to_bytes().hex() == mark.promoting


def _lists_fence(fs: Fs, vkey: VerifierKey, fence: ControlRecord | None) -> bool:
    files = OuterLogFiles(fs, vkey)
    try:
        return lists_fence(files, fence)
    finally:
        files.close()


def _check_checkpoints(fs: Fs, store: Store, identity: HubIdentity) -> None:
    """Check the newest stored checkpoint of each label: it must be of this log and signed by the hub."""
    newest: dict[bytes, int] = {}
    for name in fs.list(layout.LOG):
        part = layout.log_file(name)
        if part is not None and part.kind == "checkpoint":
            newest[part.label] = max(part.end_seq, newest.get(part.label, 0))
    for label, upto_seq in newest.items():
        path = layout.checkpoint(label, upto_seq)
        try:
            checkpoint = Checkpoint.from_bytes(read_file(fs, path))
        except FormatError as exc:
            raise CorruptError(path, 0, str(exc)) from exc
        files = store.files(label)
        if files is None or files.size < upto_seq:
            raise CorruptError(path, 0, f"a checkpoint of entry {upto_seq}, which is not here")
        if root_of([files.node_at(*node) for node in peak_nodes(upto_seq)]) != checkpoint.mmr_root:
            raise CorruptError(path, 0, "a checkpoint of another log than the one here")
        receipt = Receipt.from_bytes(store.reader.receipt(files, upto_seq))
        try:
            identity.verify_seal(checkpoint, receipt.hub_ts)
        except VerifyError as exc:
            raise CorruptError(path, 0, str(exc)) from exc


async def _ask_primary(mark: ReplicaMark, control_bytes: int) -> FeedResponse | None:
    """Return the progress of the primary, unverified; None if nothing answers there.

    Raise PrimaryAlive if something answers but cannot be asked: it may admit messages.
    """
    url = mark.source
    transport = HttpTransport(
        url,
        ca_file=Path(mark.ca_file) if mark.ca_file else None,
        token_file=Path(mark.token_file) if mark.token_file else None,
        timeout=_ASK_SECONDS,
    )
    try:
        calls = Calls(transport, NO_RETRY)
        try:
            return await calls.ask("tooling/feed", FeedRequest(control_bytes=control_bytes, wait_sec=0), FeedResponse)
        except HubRefused:
            await calls.ask("healthz", None, HealthResponse)
            raise PrimaryAlive(f"{url}: the primary answers, and does not say how far it is") from None
    except (Unreachable, TimedOut):
        return None
    except NetworkError as exc:  # a certificate that is not trusted, or an answer that is not a hub's
        raise PrimaryAlive(f"{url}: something answers there and cannot be asked how far it is: {exc}") from exc
    finally:
        await transport.aclose()


def _check_primary(state: ReplicaState) -> None:
    """Raise PrimaryAlive if the primary can still admit messages."""
    answer = asyncio.run(_ask_primary(state.mark, state.control_bytes))
    if answer is None:
        return
    if state.fence is None or answer.entries != state.entries or answer.control_bytes != state.control_bytes:
        raise PrimaryAlive(
            f"{state.mark.source}: the primary answers; it has {answer.entries} entries, {state.entries} are here"
        )


def promote(
    fs: OsFs,
    key_from: Path,
    now: int,
    *,
    accept_loss: bool = False,
    move_keys: bool = False,
    accept_clock: bool = False,
) -> Promotion:
    """Make a stopped replica the primary. It may be repeated after an interruption.

    With `move_keys` the private keys are removed from their source: without another copy nobody else can sign.
    """
    state = replica_state(fs)
    if not state.promoted:
        _check_primary(state)
        if not state.complete and not accept_loss:
            raise LossNotAccepted(state.ranges, state.entries)
        for key in _read_keys(fs, key_from, now):
            identities.write_key(fs, key)
        outer_key = _read_outer_key(fs, key_from, state, accept_loss=accept_loss)
        if outer_key is not None:
            write_outer_key(fs, outer_key)
    with at_rest(fs, now, accept_clock=accept_clock) as hub:
        if not state.promoted:
            body = HubPromote(source=state.mark.source, upto=state.entries, root=state.root, complete=state.complete)
            write_mark(fs, replace(state.mark, promoting=body.to_bytes().hex()))  # cut off here, it is asked again
            hub.journal(body)
        hub_pk = hub.keys.identity.current.hub_pk
    end_replica(fs)
    if move_keys:
        for listed in identities.read_identity(fs).keys:
            (_key_directory(key_from) / f"{listed.key_id}{_KEY_SUFFIX}").unlink(missing_ok=True)
        if fs.exists(layout.OUTER_KEY):
            (_key_directory(key_from) / _OUTER_SEED).unlink(missing_ok=True)
    accepted = () if state.complete else state.ranges
    outer = _outer_outcome(fs, state, accept_loss=accept_loss)
    return Promotion(hub_pk, state.entries, state.labels, state.complete, accepted, outer)


def _outer_outcome(fs: Fs, state: ReplicaState, *, accept_loss: bool) -> OuterOutcome:
    if state.outer is None:
        return "none"
    if fs.exists(layout.OUTER_KEY):
        return "continues"
    return "no key" if state.outer_complete or accept_loss else "behind"


def _read_outer_key(fs: OsFs, key_from: Path, state: ReplicaState, *, accept_loss: bool) -> SigningKey | None:
    """Return the key of the outer log, if it exists and may be used here."""
    directory = _key_directory(key_from)
    if state.outer is None or not (state.outer_complete or accept_loss) or not (directory / _OUTER_SEED).exists():
        return None
    key = read_outer_key(KeyDirFs(fs.root, directory))
    if key.public != state.outer.public:
        raise WrongKey(f"{directory / _OUTER_SEED}: not the key that the control journal binds to the outer log")
    return key


def _key_directory(key_from: Path) -> Path:
    return key_from / layout.KEYS if (key_from / layout.KEYS).is_dir() else key_from


def _read_keys(fs: OsFs, key_from: Path, now: int) -> list[SigningKey]:
    """Return the private keys of the identity from a directory of keys or of a hub; retired ones if they exist."""
    directory = _key_directory(key_from)
    if not directory.is_dir():
        raise WrongKey(f"{key_from}: not a directory with private keys")
    source = KeyDirFs(fs.root, directory)
    keys = []
    for key in identities.read_identity(fs).keys:
        try:
            keys.append(identities.read_key(source, key.key_id))
        except MissingKeyError as exc:
            if key.valid_until is None or now < key.valid_until:
                path = directory / f"{key.key_id}{_KEY_SUFFIX}"
                raise WrongKey(f"{path}: the private key that this hub signs with is not there") from exc
    return keys
