"""Start of a hub from a data directory and a configuration: identity, limits, and the signing of checkpoints.

A hub never invents an identity (D-42): it creates one only for an empty directory, and an authority never does. A
configured key begins a log only with a birth certificate (D-121). Limits may be lowered from start to start, never
raised above spec §14 (D-75).

A stopped hub's data directory, opened for a change that must be journaled.

A journaled record carries a time that can never be taken back, so the clock is checked as at a start (D-167).

The anchor backend that the configuration names (ANC-02).
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import LimitError, MalformedError
from veen.core.labels import label_of, routing_key_of
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate, RequestDone
from veen.core.objects.identity import HubIdentity, HubKey, canonical_json
from veen.core.wire import Wire
from veen.hub.process.config import Anchor, ConfigError, Engine, HubConfig
from veen.hub.sequencer.clock import HubClock, read_clock
from veen.io.errors import StorageError
from veen.io.local import Fs, OsFs
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.anchors import AnchorBackend, AnchorError, AnchorFile
from veen.storage.copies.unfinished import check_finished
from veen.storage.keys import identity as identities
from veen.storage.keys import rotation as keyrotation
from veen.storage.keys.identity import HubKeys, KeyDirFs, MissingIdentityError
from veen.storage.label_files import LabelFiles, LabelHead
from veen.storage.scan import read_file
from veen.storage.store import Group, Store
from veen.storage.timestamps import TimestampAuthority, TimestampTrust

_KEY_SUFFIX: Final = ".key"
_TRUTH: Final = (layout.LOG, layout.JOURNAL, layout.NODES, layout.OFFSETS, layout.ORIGIN)


def data_fs(data_dir: Path, keys_dir: Path | None = None) -> OsFs:
    """Return the data directory; create it if it does not exist."""
    try:
        data_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as exc:
        raise StorageError(f"{data_dir}: the directory cannot be made: {exc.strerror}") from exc
    return OsFs(data_dir) if keys_dir is None else KeyDirFs(data_dir, keys_dir)


def open_identity(fs: Fs, config: HubConfig, now: int, draw: Callable[[int], bytes] = os.urandom) -> HubKeys:
    """Load the identity, or create it where that is allowed. The caller holds the lock."""
    check_finished(fs, str(config.data_dir))
    if config.identity == "ephemeral":
        return _open_ephemeral(fs, config, now, draw)
    if identities.exists(fs):
        keys = identities.load(fs, now=now)
        if config.keys_dir is None and fs.exists(layout.BIRTH):  # creation was cut off after its last step but one
            identities.remove_birth(fs)
        return keys
    _check_blank(fs)
    given_key = config.keys_dir is not None
    if given_key or _key_names(fs.list(layout.KEYS)):  # the latter: a first start that was cut off
        key = _read_only_key(fs, config.keys_dir or config.data_dir / layout.KEYS)
        identities.check_birth(fs, key.public, now)
        return identities.create(fs, key.seed, now, given_key=given_key)
    if config.role == "authority":
        raise MissingIdentityError(f"{layout.IDENTITY}: an authority hub does not create its own identity")
    return identities.create(fs, draw(32), now)


def _open_ephemeral(fs: Fs, config: HubConfig, now: int, draw: Callable[[int], bytes]) -> HubKeys:
    """Open the hub with a mounted root key. An empty directory gets its own hub key, hence another hub_id (HID-13)."""
    if config.keys_dir is None:
        raise ConfigError(
            config.origins.get("identity", "default"),
            "keys_dir",
            'identity = "ephemeral" needs the root key',
            "Mount the root key and name its directory: `veen hub key create --keys-dir DIR` makes one.",
        )
    root = _read_only_key(KeyDirFs(config.data_dir, config.keys_dir), config.keys_dir)
    if identities.exists(fs):
        return replace(identities.load(fs, now=now, root_pk=root.public), root=root)
    _check_blank(fs)
    for name in fs.list(layout.KEYS):  # of a first start that was cut off: such a key has signed nothing
        fs.remove(f"{layout.KEYS}/{name}")
    return identities.create(fs, draw(32), now, root=root)


def _check_blank(fs: Fs) -> None:
    if used := next((name for name in (*_TRUTH, layout.INDEX, layout.FORK_ORIGIN) if _holds_something(fs, name)), None):
        raise MissingIdentityError(f"{layout.IDENTITY}: the file is missing, but {used} is not empty")


def _holds_something(fs: Fs, name: str) -> bool:
    return bool(fs.list(name)) if name in _TRUTH else fs.exists(name)


def _key_names(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(_KEY_SUFFIX)]


def _read_only_key(fs: Fs, keys_dir: Path) -> SigningKey:
    """Read the only private key of a directory that the operator filled."""
    names = _key_names(fs.list(layout.KEYS))
    if not names:
        raise ConfigError(
            str(keys_dir),
            "keys_dir",
            "the directory holds no private key",
            "Put one there with `veen hub init --keys-dir DIR`; a hub does not invent configured keys.",
        )
    if len(names) > 1:
        what = f"the directory holds {len(names)} keys"
        raise ConfigError(str(keys_dir), "keys_dir", what, "A new hub begins with exactly one.")
    return identities.read_key(fs, names[0].removesuffix(_KEY_SUFFIX))


def rotation_records(store: Store) -> list[ControlRecord]:
    """Return all applied key.rotate records."""
    records = cbor.sequence(store.read_control(0, store.control_size), what=layout.CONTROL)
    return [record for record in map(ControlRecord.from_bytes, records) if isinstance(record.body, KeyRotate)]


def finish_rotations(fs: Fs, keys: HubKeys, store: Store) -> HubKeys:
    """Complete a rotation that a crash interrupted. The identity files show if one was, without reading the control
    journal."""
    if keyrotation.is_settled(fs, keys.identity):
        return keys
    bodies = [record.body for record in rotation_records(store)]
    return keyrotation.finish_rotation(fs, keys, [body for body in bodies if isinstance(body, KeyRotate)])


class MissingIndexError(StorageError):
    """The index is missing. It can be made again from the log, but a hub needs it to start fast."""

    hint = "Run `veen hub rebuild-index DIR`: it is made again from the log."


def check_index(fs: Fs) -> None:
    """Raise MissingIndexError if the index is lost. Before its first retirement a directory has none, but then its
    journal is whole."""
    if not fs.exists(layout.INDEX) and (segments := wal.segments(fs)) and segments[0] != 1:
        raise MissingIndexError(f"{layout.INDEX}: the file is missing")


# --- limits --------------------------------------------------------------------------------------------


def read_limits(fs: Fs, config: HubConfig) -> Limits:
    """Return the limits of limits.json, overridden by those that the configuration sets itself (D-75)."""
    saved = DEFAULT_LIMITS
    if fs.exists(layout.LIMITS):
        try:
            saved = Limits.from_json(json.loads(read_file(fs, layout.LIMITS)))
        except (ValueError, LimitError, MalformedError) as exc:
            raise ConfigError(
                layout.LIMITS, "", str(exc), "Correct the file, or remove it to start from the configuration alone."
            ) from exc
    configured = {
        name: value
        for name, value in config.limits.to_json().items()
        if f"limits.{name}" in config.origins or value != DEFAULT_LIMITS.to_json()[name]
    }
    try:
        return Limits.from_json({**saved.to_json(), **configured})
    except (LimitError, MalformedError) as exc:
        raise ConfigError(layout.LIMITS, "limits", str(exc), "Give limits that fit together.") from exc


def save_limits(fs: Fs, limits: Limits) -> None:
    data = canonical_json(limits.to_json()) + b"\n"
    if not fs.exists(layout.LIMITS) or read_file(fs, layout.LIMITS) != data:
        fs.replace(layout.LIMITS, data)


# --- signing -------------------------------------------------------------------------------------------


class Sealing:
    """The signing side of an identity: the key in force at a time, and the contents of checkpoints (D-36 … D-41)."""

    def __init__(self, keys: HubKeys) -> None:
        self.held = keys
        self.signed_identity = self._sign(keys)
        self.routing_key = routing_key_of(keys.identity.hub_id)
        self._cached: tuple[HubKey, SigningKey] | None = None

    @property
    def hub_id(self) -> bytes:
        return self.held.identity.hub_id

    @property
    def keys(self) -> tuple[HubKey, ...]:
        return self.held.identity.keys

    @property
    def current_pk(self) -> bytes:
        return self.held.identity.current.hub_pk

    def replace(self, keys: HubKeys) -> None:
        """Continue with the keys after a rotation."""
        self.held, self.signed_identity, self._cached = keys, self._sign(keys), None

    def _sign(self, keys: HubKeys) -> tuple[HubIdentity, bytes]:
        """Return the identity with the signature of hub-identity.sig: Ed25519 gives the same signature for the same
        bytes."""
        return keys.identity, keys.identity.sign(keys.root or keys.private[keys.identity.current.hub_pk])

    def signing_key_at(self, hub_ts: int) -> SigningKey:
        """Return the key that signs at a time. Called for each receipt; nearly always the cached newest key."""
        cached = self._cached
        if cached is not None and cached[0].is_valid_at(hub_ts):
            return cached[1]
        key = self.held.identity.signing_key_at(hub_ts)
        private = self.held.signing_key_at(hub_ts)
        if key == self.held.identity.current:  # no other key is preferred to it later
            self._cached = (key, private)
        return private

    def seal(self, files: LabelFiles | LabelHead, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """Return the checkpoint of a prefix whose last entry has `hub_ts`: a function of log and keys alone."""
        return self.checkpoint(files.label, files.epoch, files.stream_id, upto_seq, mmr_root, hub_ts)

    def checkpoint(
        self, label: bytes, epoch: int, stream_id: bytes | None, upto_seq: int, mmr_root: bytes, hub_ts: int
    ) -> Checkpoint:
        return Checkpoint.issue(
            self.signing_key_at(hub_ts),
            label_prev=self._label_before(label, epoch, stream_id),
            label_curr=label,
            upto_seq=upto_seq,
            mmr_root=mmr_root,
            epoch=epoch,
            witnesses=self.held.witnesses_at(hub_ts),
        )

    def _label_before(self, label: bytes, epoch: int, stream_id: bytes | None) -> bytes:
        """Return the label of the epoch before, or the label itself where labels do not rotate (D-38)."""
        return label if not epoch or stream_id is None else label_of(self.routing_key, stream_id, epoch - 1)


class AtRest:
    """The store of a stopped hub and the keys to sign for it."""

    def __init__(self, store: Store, sealing: Sealing, hub_ts: int) -> None:
        self.store, self.sealing, self.hub_ts = store, sealing, hub_ts

    @property
    def keys(self) -> HubKeys:
        return self.sealing.held

    def journal(self, body: Wire, request_id: bytes | None = None) -> None:
        """Append a control record, and one that names the request if it has an id. Both are durable and applied on
        return."""
        group = Group()
        record = self._stage(body, group)
        if request_id is not None:
            self._stage(RequestDone(request_id=request_id, record=record.seq), group)
        self.store.journal.write(group.payload())
        self.store.apply(group)

    def _stage(self, body: Wire, group: Group) -> ControlRecord:
        key = self.sealing.signing_key_at(self.hub_ts)
        record = ControlRecord.issue(key, self.store.state.control, body, hub_ts=self.hub_ts)
        self.store.stage_control(record)
        group.add_control(record)
        return record


@contextlib.contextmanager
def at_rest(fs: Fs, now: int, *, accept_clock: bool = False) -> Iterator[AtRest]:
    """Open the directory; at the end its journal is empty again. Raise LockedError if the hub runs.

    Raise ClockStepError if `now` is too far ahead of the log, unless `accept_clock`. Nothing was changed then.
    """
    with fs.lock():
        keys = identities.load(fs, now=now)
        check_index(fs)
        sealing = Sealing(keys)
        store = Store.open(fs, DEFAULT_LIMITS, sealing.seal)
        try:
            clock = HubClock(lambda: now, max_step=Engine().max_clock_step)
            clock.begin(store.state.hub_ts, read_clock(fs), accept=accept_clock)
            sealing.replace(finish_rotations(fs, keys, store))
            yield AtRest(store, sealing, max(now, store.state.hub_ts))  # never before a time in the log (D-28)
            store.close()
        except BaseException:
            store.abandon()
            raise


def anchor_backend(config: Anchor, fs: Fs) -> AnchorBackend:
    """Return the configured backend. Raise ConfigError if it cannot be used; an outage shows only when it is asked."""
    if config.backend == "file":
        if config.directory is None:
            return AnchorFile(fs)
        try:
            config.directory.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            hint = "Name a directory that the hub may write to."
            raise ConfigError("", "anchor.directory", f"the directory cannot be used: {exc.strerror}", hint) from exc
        return AnchorFile(OsFs(config.directory))
    if config.certificates is None:
        hint = "Give the root and the certificate of the timestamp authority as one PEM file."
        raise ConfigError("", "anchor.certificates", "rfc3161 requires the certificates to trust", hint)
    try:
        return TimestampAuthority(config.url, TimestampTrust.read(config.certificates))
    except AnchorError as exc:
        raise ConfigError("", "anchor.backend", str(exc), "See docs/anchors.md.") from exc
