"""Sending of one task's rows as messages, such that sending them again is harmless (D-56).

Spark runs a task again when it fails, and twice at once when it is slow, so messages must follow from the rows and
nothing else. Everything that is random elsewhere is derived here, by HKDF from the identity's secret:

    client key   of (hub, stream, write, partition, n): each task has its own, so tasks need no common numbers, and
                 none signs more than KEX1+ allows (D-102a); the identity itself is neither locked nor used
    seal         of (client key, label, client_seq, content): other content under the same number is sealed otherwise,
                 so no keystream is ever used twice
    prev_ack     0: such a key acknowledges nothing

So each attempt makes the same bytes. The hub recognises a message that it has (DUPLICATE, which it checks before the
epoch), and the first receipt counts. Other bytes under a used number mean that the rows changed between two attempts,
and are refused: `RowsChanged`.

Where labels rotate, a task begins with the label of the epoch in which the write began, and moves to the next one when
the hub says that an epoch is over: rows that an earlier attempt sent there would have been recognised.

Receipts of a write, as a Parquet dataset that any reader understands.

A task stores its files when its rows are in the log, each in one step and under a name that follows from the write and
the partition. All attempts of a task get the same receipts, so the last one changes nothing, and whatever is in the
dataset is in the log. The record of a write, `_writes/….json`, which the driver stores when all tasks are done, shows
that it is complete.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from veen.client.errors import ClientError, HubRefused, OpenPermissions
from veen.client.home import KEYSTORE, TOKENS, PrivateFs, read_secret
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import Keystore
from veen.client.identity.rotation import MAX_MSGS_PER_LABEL
from veen.client.send.captokens import TokenStore
from veen.client.send.grants import Grants
from veen.client.send.sealing import Draft, Prepared, Sealer
from veen.client.send.submitting import batches
from veen.client.send.writing import KEY_ENDED, Sent, Writer
from veen.client.session import HubSession
from veen.client.state import RK_BYTES, LabelState, StateStore
from veen.client.transport.calls import refusal_of
from veen.core import cbor
from veen.core.crypto import hkdf
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.errors import Refusal, VeenError
from veen.core.hashing import H
from veen.core.labels import schema_id
from veen.core.objects.captoken import CapToken
from veen.io.stores import open_store
from veen.lake.log.columns import SENT, arrow_schema
from veen.lake.log.errors import OptionError, PipelineError
from veen.lake.log.options import WriteOptions

_TOKEN_SECONDS: Final = 30 * 86_400  # for as long a write may be taken up again
_MAX_PASSPHRASE: Final = 4096
_MAX_DOUBTS, _FIRST_DOUBT_SECONDS = 6, 0.05  # three seconds in all


class RowRefused(PipelineError):
    """A row that cannot be sent, or that the hub refuses. Rows before it are in the log."""

    hint = "Fix the row and write again under the same writeId: rows in the log are recognised, and not sent twice."

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}"


class RowsChanged(RowRefused):
    """Rows of a partition that differ from those that an earlier attempt sent."""

    hint = "Make the rows the same each time: sort within partitions, and persist or checkpoint what is random."


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """One write, the same for every task and every attempt."""

    options: WriteOptions
    write_id: str
    epoch: int  # of the label to begin with
    per_key: int = MAX_MSGS_PER_LABEL  # messages of one client key in one label (KEX1+, D-102a)


class RowDelivery(NamedTuple):
    """A row that is in the log."""

    row: int  # position in the partition, from 0
    epoch: int
    sent: Sent


def open_keys(options: WriteOptions) -> tuple[Identity, StreamKeys]:
    """Open the identity and the keys of the stream by their paths."""
    passphrase = None
    if options.passphrase_file is not None:
        try:
            data = read_secret(Path(options.passphrase_file), _MAX_PASSPHRASE)
            passphrase = data.decode().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise OptionError(f"passphraseFile {options.passphrase_file} cannot be read") from exc
        except OpenPermissions as exc:
            raise OptionError(f"passphraseFile {exc}. {exc.hint}") from exc
    try:
        fs = PrivateFs(Path(options.identity))
        if (mode := fs.read_exposed_mode(KEYSTORE)) is not None:
            raise OpenPermissions(str(fs.root / KEYSTORE), mode)
        keystore = Keystore.open(fs, passphrase)
        return keystore.identity, keystore.secrets.keyring.for_stream(options.stream)
    except ClientError as exc:
        raise OptionError(f"identity {options.identity}: {exc}. {exc.hint}") from exc


# --- rows -------------------------------------------------------------------------------------------------------


def draft_of(row: dict[str, Any], default_schema: str | None) -> Draft:
    """Convert a row to a draft. Raise ValueError for an invalid one."""
    body, schema, parent = row["body"], row.get("schema") or default_schema, row.get("parent_id")
    if body is None:
        raise ValueError("body is null")
    schema = None if schema is None else schema_id(schema)
    for name, value in (("schema", schema), ("parent_id", parent)):
        if value is not None and len(value) != 32:
            raise ValueError(f"{name} has {len(value)} bytes, not 32")
    expires_at = row.get("expires_at")
    if expires_at is not None and expires_at < 0:
        raise ValueError("expires_at is negative")
    return Draft(body=_bytes_of(body), schema=schema, parent=parent, expires_at=expires_at)


def _bytes_of(body: Any) -> bytes:
    """Return bytes as they are, text in UTF-8, others as JSON with sorted names: equal rows give equal bytes."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode()


# --- sending ----------------------------------------------------------------------------------------------------


class _Lane:
    """One client key on one label."""

    def __init__(self, seed: bytes, keys: StreamKeys, session: HubSession, epoch: int, auth_ref: bytes | None) -> None:
        self._seed, self._auth_ref = seed, auth_ref
        self.key, self.epoch, self.used = SigningKey(seed), epoch, 0
        self.label = session.label(keys.stream_id, epoch)
        self._ikm, self._reader_pk, self._profile_id = b"", keys.reader_pk, session.profile().profile_id()
        self._sealer = Sealer(
            self.key, self.label, keys.reader_pk, session.profile(), limits=session.limits, random=lambda _: self._ikm
        )

    def writer(self, session: HubSession, store: StateStore) -> Writer:
        state = LabelState(
            hub_id=session.hub_id,
            label=self.label,
            client_id=self.key.public,
            profile_id=session.profile().profile_id(),
            mode="light",
            rk=hkdf.hkdf(self._seed, b"", b"veen/spark-rk", RK_BYTES),
        )
        return Writer(session, store, None, state, epoch=self.epoch)

    def seal(self, draft: Draft, client_seq: int) -> Prepared:
        """Seal a row with a key that follows from all its inputs, so that a retry gives the same message.

        Messages that differ in anything share no key stream: a token or another reader changes the key.
        """
        content = cbor.encode([draft.body, draft.schema, draft.parent, draft.expires_at])
        bound = [
            self._profile_id,
            self.label,
            self.key.public,
            client_seq,
            0,
            self._auth_ref,
            self._reader_pk,
            H(content),
        ]
        self._ikm = hkdf.hkdf(self._seed, b"", b"veen/spark-row.2" + H(cbor.encode(bound)), 32)
        return self._sealer.seal(draft, client_seq=client_seq, prev_ack=0, auth_ref=self._auth_ref)


class RowSender:
    """Sender of the rows of one partition, in order. `store` belongs to this attempt and may be discarded."""

    def __init__(
        self,
        session: HubSession,
        plan: WritePlan,
        identity: Identity,
        keys: StreamKeys,
        partition: int,
        store: StateStore,
    ) -> None:
        self._session, self._plan, self._identity, self._keys = session, plan, identity, keys
        self._partition, self._store = partition, store
        self._tokens = TokenStore(PrivateFs(Path(plan.options.identity) / TOKENS))  # read, and never written here
        self._epoch, self._number = plan.epoch, 0  # which of the partition's client keys is in use
        self._lane: _Lane | None = None
        self._writer: Writer | None = None
        self._waits = self._doubts = 0

    async def send(self, drafts: Sequence[tuple[int, Draft]]) -> list[RowDelivery]:
        """Send all drafts. Raise an error that names the first row that is not in the log."""
        done: list[RowDelivery] = []
        while len(done) < len(drafts):
            lane, writer = await self._ready()
            turn = drafts[len(done) : len(done) + self._plan.per_key - lane.used]
            sealed = [self._seal(lane, row, draft, lane.used + at) for at, (row, draft) in enumerate(turn, start=1)]
            outcomes = await writer.send_prepared(list(batches(sealed, self._plan.options.batch)))
            for (row, _), outcome in zip(turn, outcomes, strict=True):
                if not isinstance(outcome, Sent):
                    await self._on_refused(lane, row, outcome)
                    break
                done.append(RowDelivery(row, lane.epoch, outcome))
                lane.used += 1
                self._doubts = 0
            if lane.used >= self._plan.per_key:
                self._number, self._lane = self._number + 1, None
        return done

    def _seal(self, lane: _Lane, row: int, draft: Draft, client_seq: int) -> Prepared:
        try:
            return lane.seal(draft, client_seq)
        except VeenError as exc:  # too large, or a header that is none
            raise RowRefused(f"{self._at(row)}: {exc}") from exc

    async def _on_refused(self, lane: _Lane, row: int, error: VeenError) -> None:
        """Continue in the next epoch or with the next key, or raise."""
        reason = refusal_of(error) if isinstance(error, HubRefused) else None
        if reason is Refusal.EPOCH and isinstance(error, HubRefused):
            current = error.detail.get("expected")  # the hub's epoch at that moment, not what our clock makes of it
            if type(current) is int and lane.epoch < current:
                self._epoch, self._lane = lane.epoch + 1, None
                return
            if type(current) is int and lane.epoch > current and self._waits < self._plan.options.hub.patience:
                self._waits += 1
                await asyncio.sleep(1.0)  # our second and the hub's differ at the boundary
                return
        session = self._session
        if reason is Refusal.CAP_SCOPE and lane.epoch < session.epoch_now() - session.window - 1:
            self._epoch, self._lane = lane.epoch + 1, None  # nobody ever wrote to that label, nor will (D-24)
            return
        if reason in KEY_ENDED and lane.used:
            # What the key sent is recognised in its place also now, so every attempt goes on from the same row.
            self._number, self._lane = self._number + 1, None
            return
        if reason is Refusal.DUPLICATE:
            if self._doubts < _MAX_DOUBTS:  # another attempt's copy may be on its way to the disk: ask again
                await asyncio.sleep(_FIRST_DOUBT_SECONDS * 2**self._doubts)
                self._doubts += 1
                return
            raise RowsChanged(f"{self._at(row)} is not the one that an earlier attempt sent in its place")
        raise RowRefused(f"{self._at(row)}: {error}") from error

    def _at(self, row: int) -> str:
        return f"row {row} of partition {self._partition} (writeId {self._plan.write_id})"

    async def _ready(self) -> tuple[_Lane, Writer]:
        if self._lane is None or self._writer is None:
            seed = self._seed(self._number)
            auth_ref = await self._authority(SigningKey(seed).public)
            self._lane = _Lane(seed, self._keys, self._session, self._epoch, auth_ref)
            self._writer = self._lane.writer(self._session, self._store)
        return self._lane, self._writer

    def _seed(self, number: int) -> bytes:
        """Return the seed of a client key: equal for all attempts of a task, and for no other task."""
        place = [self._session.hub_id, self._keys.stream_id, self._plan.write_id, self._partition, number]
        info = b"veen/spark-writer" + cbor.encode(place)
        return hkdf.hkdf(self._identity.id_sign.seed, b"", info, SEED_BYTES)

    async def _authority(self, client_id: bytes) -> bytes | None:
        """Return the token of a client key where the hub asks for one; the identity issues it (D-49).

        It derives the token from its own, or the hub trusts it as an issuer.
        """
        if not self._session.status.capability_gating:
            return None
        stream_id, session = self._keys.stream_id, self._session
        grants = Grants(session, self._identity)
        token = CapToken.issue(self._identity.id_sign, client_id, [stream_id], ttl=_TOKEN_SECONDS)
        try:
            parent = (
                None
                if not session.takes_derived
                else self._tokens.parent(session.hub_id, self._identity.id_sign_pk, stream_id, session.hub_now())
            )
            if parent is None:
                return (await grants.authorize(token)).auth_ref
            await grants.authorize(parent.token)
            return (await grants.derive(token, parent.auth_ref)).auth_ref
        except HubRefused as exc:
            issuer = self._identity.id_sign_pk.hex()
            raise OptionError(
                f"the hub asks for capabilities and refuses those of this identity: {exc}. "
                f"Let it trust the identity as an issuer: admission.trusted_issuers = {issuer}"
            ) from exc


_ROWS_PER_FILE: Final = 65_536


class Written(NamedTuple):
    """Result of one task."""

    write_id: str
    partition: int
    rows: int
    files: tuple[str, ...] = ()


class SentFiles:
    """Receipts of one task; only counted if there is no place for them."""

    def __init__(self, plan: WritePlan, partition: int, stream_id: bytes) -> None:
        self._plan, self._partition, self._stream_id = plan, partition, stream_id
        self._store = None if plan.options.receipts is None else open_store(plan.options.receipts)
        self._rows: list[dict[str, Any]] = []
        self._count = 0
        self._files: list[str] = []

    def add(self, done: RowDelivery, key: str | None) -> None:
        self._count += 1
        if self._store is None:
            return
        receipt, msg = done.sent.receipt, done.sent.msg  # its signature is checked here, if it was not yet
        self._rows.append(
            {
                "write_id": self._plan.write_id,
                "partition": self._partition,
                "row": done.row,
                "key": key,
                "stream_id": self._stream_id,
                "label": receipt.label,
                "epoch": done.epoch,
                "stream_seq": receipt.stream_seq,
                "hub_ts": receipt.hub_ts,
                "leaf_hash": receipt.leaf_hash,
                "client_id": msg.client_id,
                "client_seq": msg.client_seq,
                "mmr_root": receipt.mmr_root,
                "receipt": receipt.to_bytes(),
            }
        )
        if len(self._rows) >= _ROWS_PER_FILE:
            self._write_file()

    def close(self) -> Written:
        if self._rows:
            self._write_file()
        return Written(self._plan.write_id, self._partition, self._count, tuple(self._files))

    def _write_file(self) -> None:
        assert self._store is not None  # noqa: S101 - rows are kept only for a store
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self._rows, arrow_schema(SENT)), sink, compression="zstd")
        name = f"{_name(self._plan.write_id)}-{self._partition:05}-{len(self._files):05}.parquet"
        self._store.put(name, sink.getvalue().to_pybytes())
        self._files.append(name)
        self._rows.clear()


def complete(receipts: str, stream: str, done: list[Written]) -> None:
    """Store the record of a write whose tasks are all done. Without rows, an empty file has the columns."""
    store = open_store(receipts)
    write_id = done[0].write_id
    files = sorted(name for task in done for name in task.files)
    if not files:
        sink = pa.BufferOutputStream()
        pq.write_table(arrow_schema(SENT).empty_table(), sink)
        files = [f"{_name(write_id)}-empty.parquet"]
        store.put(files[0], sink.getvalue().to_pybytes())
    rows = {str(task.partition): task.rows for task in sorted(done, key=lambda task: task.partition)}
    record = {"write_id": write_id, "stream": stream, "rows": sum(rows.values()), "partitions": rows, "files": files}
    store.put(f"_writes/{_name(write_id)}.json", json.dumps(record, indent=1).encode())


def _name(write_id: str) -> str:
    """Return a file name for a write. The user's name of it may contain anything."""
    return f"write-{sha256(write_id.encode()).hexdigest()[:20]}"
