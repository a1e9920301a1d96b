"""Data of each page, read through the client, which verifies all of it. Templates add the form, no facts.

The data of a page is its `.json` twin. A view returns verified data or raises; it never returns a part of the requested
data without saying so.

Pages made of sections: facts, a picture, a table. The template `report.html` renders any of them.

A section is the form of facts for people; the twin of the page has the same facts as separate data.
"""

import contextlib
import shlex
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from veen.cli.shared.entries import data_of, when
from veen.cli.shared.failures import failure_of
from veen.cli.shared.text import compact, safe
from veen.cli.shared.values import MOMENT
from veen.client.client import Client
from veen.client.errors import Equivocated, HubRefused, UnknownStream
from veen.client.evidence_file import NoEntries
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.read.picture import Picture, to_svg
from veen.client.read.reading import Entry
from veen.client.send.captokens import TokenStore
from veen.client.transport.calls import is_not_found
from veen.client.verify.pin import HubPin
from veen.core.checks import Given, check
from veen.core.errors import VeenError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.receipt import Receipt
from veen.core.tlog.policy import WitnessPolicy
from veen.overlays.framework.plain import plain
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.schema import Typed, decode
from veen.products.console.charts import rates, sample_numbers, strip, time_columns
from veen.products.console.errors import BadAddress
from veen.products.console.events import EventStore
from veen.products.console.rates import HubRates
from veen.products.console.writes import ConsoleWriter, WriteLog, WriteOutcome


@dataclass(frozen=True, slots=True)
class DigestCell:
    """Hex digits, shown shortened."""

    digits: str


@dataclass(frozen=True, slots=True)
class MomentCell:
    """A time in seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class LinkCell:
    """A link to a path of the console, from its root."""

    text: Any
    path: str


@dataclass(frozen=True, slots=True)
class MarkCell:
    """A state in a word: `kind` is good, partly, bad or muted."""

    text: str
    kind: str


Cell = Any  # text, a number, None, or one of the above


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A card of a page. `note` is below the title, `empty` replaces a table without rows."""

    title: str
    note: str = ""
    facts: tuple[tuple[str, Cell], ...] = ()
    picture: str = ""  # SVG
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    empty: str = ""
    kind: str = ""  # "bad" or "" of the card
    text: str = ""  # shown unchanged, such as JSON
    folded: bool = field(default=False)  # the table is behind a summary: the picture says the same


CONSOLE: Final = "this console"
PAGE_ENTRIES: Final = 50
_MAX_PAGE_ENTRIES: Final = 200
_MAX_STREAMS: Final = 200  # of the overview and the list; omitted streams are counted
_ROW_CHARS: Final = 300
_BODY_CHARS: Final = 20_000
_MAX_FAILURES: Final = 20
_MAX_TIMES: Final = 100_000  # times of entries that are remembered for density strips
_STREAM_COMMAND: Final = "veen stream"
_MAX_NUMBER: Final = 2**63 - 1

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """A page: its template and title, its facts, and pictures of them."""

    template: str
    title: str
    command: str  # the same in the command line
    data: dict[str, Any]
    verified_by: str | None  # verifier of the facts; None: not verified
    pictures: Mapping[str, str] = field(default_factory=dict)  # SVG
    sections: tuple[Section, ...] = ()  # of `report.html`
    verified_what: str = ""
    form: str = ""  # a template that `report.html` puts before the sections
    failed: bool = False  # a part of it did not verify


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """Files of this machine that the console shows besides the hub; each may be missing."""

    tokens: TokenStore | None = None  # of the identity
    evidence: Path | None = None  # reports of equivocation that commands kept
    data_dir: Path | None = None  # of the hub, for queries
    audits: tuple[Path, ...] = ()  # outputs of `veen audit run --out`
    witness_policy: WitnessPolicy | None = None  # of the context
    settings: Mapping[str, str] = field(default_factory=dict)  # of the context, for the page of settings


def fault_of(exc: Exception) -> dict[str, Any]:
    """Return an error for a page: code, event, cause, remedy."""
    fail = failure_of(exc)
    return {
        "code": fail.code,
        "what": fail.what,
        "cause": fail.cause,
        "hint": fail.hint,
        "diverged": is_divergence(exc),
    }


def is_divergence(exc: BaseException) -> bool:
    """Return True if verification failed: the hub's answer contradicts a signature, a proof, or an earlier proof."""
    return isinstance(exc, VerifyError)


class Console:
    """The pages over one client. `keyring` names the streams to show."""

    def __init__(
        self,
        client: Client,
        keyring: Keyring,
        *,
        url: str,
        identity: str,
        local: LocalFiles | None = None,
        writer: ConsoleWriter | None = None,
    ) -> None:
        """Set up the pages. Without a `writer` the console is read-only."""
        self._client, self._url, self._identity = client, url, identity
        self.writer = writer
        self.writes = WriteLog()
        self.revoked: set[bytes] = set()  # auth_refs of tokens that this console had the hub refuse
        self.keyring = keyring
        self.local = local or LocalFiles()
        newest: dict[bytes, StreamKeys] = {}
        for keys in keyring.entries:
            if keys.stream_id not in newest or (newest[keys.stream_id].name is None and keys.name is not None):
                newest[keys.stream_id] = keys
        self._streams = dict(sorted(newest.items(), key=lambda item: (item[1].name is None, str(item[1]))))
        self.events = EventStore(client, list(self._streams.values())[:_MAX_STREAMS])
        self.failures: deque[dict[str, Any]] = deque(maxlen=_MAX_FAILURES)
        self.equivocations: deque[Equivocated] = deque(maxlen=_MAX_FAILURES)  # that this console met
        self.rates = HubRates(client)
        self._times: dict[tuple[bytes, int], int] = {}  # hub_ts of sampled entries, by label and number, verified

    @property
    def client(self) -> Client:
        return self._client

    @property
    def url(self) -> str:
        return self._url

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def pin(self) -> HubPin:
        return self._client.pin

    def shown_streams(self) -> list[StreamKeys]:
        """Return the streams of the keyring that pages show, by name."""
        return list(self._streams.values())[:_MAX_STREAMS]

    def name_of(self, stream_id: bytes) -> str:
        keys = self._streams.get(stream_id)
        return f"hex:{stream_id.hex()}" if keys is None else str(keys)

    def note_failure(self, exc: Exception, where: str) -> None:
        """Store a failed verification: every page reports it until the console is restarted."""
        if not is_divergence(exc):
            return
        if isinstance(exc, Equivocated) and all(exc.evidence != earlier.evidence for earlier in self.equivocations):
            self.equivocations.append(exc)
        failure = {**fault_of(exc), "where": where}
        if not any(failure.items() <= earlier.items() for earlier in self.failures):
            self.failures.append({**failure, "time": when(int(time.time()))})

    # --- pages ---------------------------------------------------------------------------------------------------

    async def overview(self, query: Query) -> PageView:
        rows, left_out = await self._rows()
        good = [row for row in rows if row["error"] is None and row["head"]]
        newest = sorted(good, key=lambda row: row["last_time"] or "", reverse=True)[:5]
        await self.rates.sample(least_seconds=2)
        rate_data = self.rates.data()
        data = {
            "hub": await self._hub(),
            "streams": rows,
            "streams_left_out": left_out,
            "newest_checkpoints": newest,
            "rates": rate_data | {"error": None if self.rates.failure is None else fault_of(self.rates.failure)},
        }
        return PageView(
            template="overview.html",
            title="Overview",
            command="veen hub status",
            data=data,
            verified_by=CONSOLE,
            pictures={"rates": rates("Rate and latency", [
                None if point is None
                else (point["start"], point["end"], point["per_second"], point["p50_ms"], point["p99_ms"])
                for point in rate_data["points"]
            ])},
        )  # fmt: skip

    async def streams(self, query: Query) -> PageView:
        rows, left_out = await self._rows()
        data = {"streams": rows, "streams_left_out": left_out}
        return PageView(
            template="streams.html", title="Streams", command="veen id keyring list", data=data, verified_by=CONSOLE
        )

    async def checkpoints(self, query: Query) -> PageView:
        rows: list[dict[str, Any]] = []
        for keys in list(self._streams.values())[:_MAX_STREAMS]:
            base = {**_stream_data(keys), "error": None}
            try:
                rows += [
                    {**base, **_checkpoint_data(signed), **witnesses_of(signed, self.local.witness_policy)}
                    for signed in await self.checkpoints_of(keys)
                ]
            except VeenError as exc:
                self.note_failure(exc, str(keys))
                rows.append({**base, "error": fault_of(exc)})
        data = {
            "checkpoints": rows,
            "streams_left_out": max(len(self._streams) - _MAX_STREAMS, 0),
            "has_witness_policy": self.local.witness_policy is not None,
        }
        return PageView(
            template="checkpoints.html",
            title="Checkpoints",
            command="veen checkpoint list STREAM",
            data=data,
            verified_by=CONSOLE,
        )

    async def stream(self, stream_id: str, query: Query) -> PageView:
        keys = self.keys_of(stream_id)
        count = number_of(query, "count", PAGE_ENTRIES, most=_MAX_PAGE_ENTRIES)
        signed = await self.checkpoints_of(keys)
        checkpoint = _select_checkpoint(signed, query)
        head = 0 if checkpoint is None else checkpoint.upto_seq
        epoch = 0 if checkpoint is None else checkpoint.epoch
        first = number_of(query, "from", max(head - count + 1, 1))
        since = _moment(query)
        if checkpoint is not None and since is not None:
            first = await self._first_since(keys, since, epoch, head)
        entries = [] if checkpoint is None else await self._entries(keys, first, first + count - 1, epoch)
        samples = [] if checkpoint is None else await self._samples(keys, checkpoint)
        columns = time_columns(samples)
        shown = (entries[0].receipt.hub_ts, entries[-1].receipt.hub_ts) if entries else None
        data = {
            **_stream_data(keys),
            "epoch": epoch,
            "epochs": [latest.epoch for latest in signed],
            "head": head,
            "root": None if checkpoint is None else checkpoint.mmr_root.hex(),
            "label": None if checkpoint is None else checkpoint.label_curr.hex(),
            "count": count,
            "since": since,
            "entries": [_entry_data(entry, _ROW_CHARS) for entry in entries],
            "density": [column._asdict() for column in columns],
            "density_samples": len(samples),
            "tail_from": head + 1,
            "send_command": f"veen send {stream_word(keys)} TEXT",
        }
        span = f"--since {since}" if since is not None else f"--from {first} --to {first + count - 1}"
        return PageView(
            template="stream.html",
            title=str(keys),
            command=f"{_STREAM_COMMAND} {stream_word(keys)} {span}{_epoch_option(signed, epoch)}",
            data=data,
            verified_by=CONSOLE,
            pictures={"density": strip(columns, shown)},
        )

    async def send(self, writer: ConsoleWriter, stream_id: str, body: bytes) -> WriteOutcome:
        """Send a message as the identity of the context. The receipt was verified when this returns."""
        keys = self.keys_of(stream_id)
        sent = await writer.send(keys, body)
        signed = await self.checkpoints_of(keys)
        epoch = next((checkpoint.epoch for checkpoint in signed if checkpoint.label_curr == sent.label), 0)
        return WriteOutcome(
            path=f"/stream/{keys.stream_id.hex()}/{sent.seq}?epoch={epoch}",
            what=f"Sent: the message is entry {sent.seq} of {keys}.",
            verified="the receipt names this message, the pinned hub signed it, and its root follows from the log.",
        )

    async def message(self, stream_id: str, seq: int, query: Query) -> PageView:
        keys = self.keys_of(stream_id)
        signed = await self.checkpoints_of(keys)
        epoch = _epoch(signed, query)
        entry = await self._entry(keys, seq, epoch)
        inputs = Given(hub_pks=tuple(key.hub_pk for key in self.pin.keys), related=(entry.receipt,))
        msg = entry.msg
        event = entry.event
        data = {
            **_stream_data(keys),
            "seq": seq,
            "epoch": entry.epoch,
            "head": next((checkpoint.upto_seq for checkpoint in signed if checkpoint.epoch == entry.epoch), seq),
            "hub_sees": {
                "label": msg.label.hex(),
                "stream_seq": seq,
                "hub_ts": entry.receipt.hub_ts,
                "client_id": msg.client_id.hex(),
                "client_seq": msg.client_seq,
                "prev_ack": msg.prev_ack,
                "auth_ref": None if msg.auth_ref is None else msg.auth_ref.hex(),
                "profile_id": msg.profile_id.hex(),
                "ct_hash": msg.ct_hash.hex(),
                "ciphertext_bytes": len(msg.ciphertext),
                "sig": msg.sig.hex(),
            },
            "readers_see": _entry_data(entry, _BODY_CHARS)
            | {"cap_ref": None if event is None or event.hdr.cap_ref is None else event.hdr.cap_ref.hex()},
            "receipt": {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in entry.receipt.present_fields()
            },
            "receipt_hex": entry.receipt.to_bytes().hex(),
            "checks": [
                *check(msg, inputs),
                f"the receipt is for entry {seq}, and its root follows from the entries before it",
            ],
        }
        return PageView(
            template="message.html",
            title=f"{keys} {seq}",
            command=f"veen receipt get {stream_word(keys)} {seq}{_epoch_option(signed, entry.epoch)}",
            data=data,
            verified_by=CONSOLE,
        )

    async def proof(self, stream_id: str, seq: int, query: Query) -> PageView:
        keys = self.keys_of(stream_id)
        signed = await self.checkpoints_of(keys)
        epoch = _epoch(signed, query)
        head = next((checkpoint.upto_seq for checkpoint in signed if checkpoint.epoch == epoch), 0)
        size = number_of(query, "size", max(head, seq))
        if not seq <= size <= head:
            raise NoEntries(f"{keys} has {head} entries: there is no proof of entry {seq} in a log of {size}")
        proven = await self._client.proof(keys, seq, tree_size=size, epoch=epoch)
        signer: Receipt = (
            proven.receipt if size == seq else await self._client.receipt(keys, size, epoch=epoch)
        )  # signs the root
        picture = Picture.of(proven.proof, stream_seq=seq, root=proven.root, tree_size=size)
        last = len(picture.steps) + 1
        step = number_of(query, "step", 0, least=0, most=last) if query.get("step", "").strip() else None
        data = {
            **_stream_data(keys),
            "seq": seq,
            "epoch": epoch,
            "head": head,
            "tree_size": size,
            "root": proven.root.hex(),
            "leaf_hash": proven.receipt.leaf_hash.hex(),
            "hashes": picture.hashes,
            "step": step,
            "last_step": last,
            "steps": [
                {
                    "own": step.own.hash.hex(),
                    "entries": step.parent.span,
                    "hash": step.parent.hash.hex(),
                    "sibling": step.sibling.hash.hex(),
                    "sibling_entries": step.sibling.span,
                    "side": "left" if step.sibling_is_left else "right",
                }
                for step in picture.steps
            ],
            "peaks": [{"entries": peak.span, "hash": peak.hash.hex()} for peak in picture.peaks],
            "proof_hex": proven.proof.to_bytes().hex(),
            "receipt_hex": proven.receipt.to_bytes().hex(),
            "root_receipt_hex": signer.to_bytes().hex(),
            "hub_pks": [key.hub_pk.hex() for key in self.pin.keys],
        }
        return PageView(
            template="proof.html",
            title=f"Proof of {keys} {seq}",
            command=f"veen proof show {stream_word(keys)} {seq} --size {size}{_epoch_option(signed, epoch)}",
            data=data,
            verified_by=CONSOLE,
            pictures={"proof": to_svg(picture, styled=False, folded=step)},
        )

    # --- reading -------------------------------------------------------------------------------------------------

    async def _hub(self) -> dict[str, Any]:
        """Return the card of the hub. Its availability is checked each time; its identity was verified against the
        pin.
        """
        pin = self.pin
        card: dict[str, Any] = {
            "url": self._url,
            "pin": pin.to_text(),
            "hub_id": self._client.hub_id.hex(),
            "identity": self._identity,
            "keys": [{"hub_pk": f"ed25519:{key.hub_pk.hex()}", "valid_from": when(key.valid_from)} for key in pin.keys],
            "ready": False,
            "ready_reason": None,
            "error": None,
        }
        try:
            await self._client.identity()
            status = await self._client.status()
            readiness = await self._client.ready()
        except VeenError as exc:
            self.note_failure(exc, "hub")
            return card | {"error": fault_of(exc)}
        return card | {
            "ready": readiness.ready,
            "ready_reason": readiness.reason,
            "server_version": status.server_version,
            "hub_time": when(status.hub_ts),
            "profile": status.profiles[0].profile_id().hex(),
            "epoch": status.epoch,
            "epoch_sec": status.profiles[0].epoch_sec,
        }

    async def _rows(self) -> tuple[list[dict[str, Any]], int]:
        rows = []
        for keys in list(self._streams.values())[:_MAX_STREAMS]:
            row: dict[str, Any] = {
                **_stream_data(keys), "head": 0, "root": None, "epoch": None, "last_time": None, "error": None,
            }  # fmt: skip
            try:
                signed = await self.checkpoints_of(keys)
                if signed:
                    newest = signed[-1]
                    receipt = await self._client.receipt(keys, newest.upto_seq, epoch=newest.epoch)
                    row |= {**_checkpoint_data(newest), "last_time": when(receipt.hub_ts)}
            except VeenError as exc:
                self.note_failure(exc, str(keys))
                row["error"] = fault_of(exc)
            rows.append(row)
        return rows, max(len(self._streams) - _MAX_STREAMS, 0)

    async def checkpoints_of(self, keys: StreamKeys) -> list[Checkpoint]:
        """Return the latest checkpoint of each epoch, verified; none for an empty stream."""
        try:
            return await self._client.checkpoints(keys)
        except HubRefused as exc:
            if is_not_found(exc):
                return []
            raise

    async def _entry(self, keys: StreamKeys, seq: int, epoch: int) -> Entry:
        for entry in await self._entries(keys, seq, seq, epoch):
            return entry
        raise NoEntries(f"{keys} has no entry {seq} in epoch {epoch}")

    async def _entries(self, keys: StreamKeys, first: int, last: int, epoch: int) -> list[Entry]:
        """Read a range to its end: only then is it compared with earlier proofs."""
        reading = self._client.read(keys, from_seq=first, to_seq=last, epoch=epoch, open=keys.can_read)
        return [entry async for entry in reading]

    async def _samples(self, keys: StreamKeys, checkpoint: Checkpoint) -> list[tuple[int, int]]:
        """Return numbers and times of some entries, each by a receipt verified against the known log."""
        label, samples = checkpoint.label_curr, []
        for seq in sample_numbers(checkpoint.upto_seq):
            if (label, seq) not in self._times:
                if len(self._times) >= _MAX_TIMES:
                    self._times.clear()
                try:
                    receipt = await self._client.receipt(keys, seq, epoch=checkpoint.epoch)
                except HubRefused as exc:
                    if is_not_found(exc):  # pruned: the strip begins later
                        continue
                    raise
                self._times[label, seq] = receipt.hub_ts
            samples.append((seq, self._times[label, seq]))
        return samples

    async def _first_since(self, keys: StreamKeys, since: int, epoch: int, head: int) -> int:
        """Return the number of the first entry from a time on; the one after the last if there is none."""
        reading = self._client.read(keys, since=since, epoch=epoch, open=False)
        async with contextlib.aclosing(reading):
            async for entry in reading:
                return entry.seq
        return head + 1

    def keys_of(self, stream_id: str) -> StreamKeys:
        """Return the keys of a stream of the keyring. Raise UnknownStream for any other."""
        try:
            return self._streams[bytes.fromhex(stream_id)]
        except (KeyError, ValueError):
            raise UnknownStream(f"hex:{stream_id[:64]}") from None


# --- data of a page --------------------------------------------------------------------------------------------------


def _stream_data(keys: StreamKeys) -> dict[str, Any]:
    return {"stream": str(keys), "stream_id": keys.stream_id.hex(), "can_read": keys.can_read}


def _checkpoint_data(signed: Checkpoint) -> dict[str, Any]:
    return {
        "epoch": signed.epoch,
        "head": signed.upto_seq,
        "root": signed.mmr_root.hex(),
        "label": signed.label_curr.hex(),
        "label_prev": signed.label_prev.hex(),
        "witnesses": len(signed.witness_sigs or ()),
    }


def witnesses_of(checkpoint: Checkpoint, policy: WitnessPolicy | None) -> dict[str, Any]:
    """Return the signatures of witnesses on a checkpoint, and the names of the policy whose keys verify them."""
    names = {} if policy is None else {witness.vkey.public: name for name, witness in policy.witnesses.items()}
    verified = checkpoint.verify_witnesses(list(names)) if checkpoint.witness_sigs else ()
    return {
        "witnesses": len(checkpoint.witness_sigs or ()),
        "witnesses_verified": sorted(names[key] for key in verified),
    }


def _entry_data(entry: Entry, chars: int) -> dict[str, Any]:
    """Return an entry as the command line shows it; a long body is cut, with its size."""
    data = data_of(entry)
    size = None if entry.event is None else len(entry.body)
    whole = data["body"] if data["body"] is not None else data["body_hex"]
    cut = whole is not None and len(whole) > chars
    if cut:
        name = "body" if data["body"] is not None else "body_hex"
        data[name] = whole[:chars]
    schema, decoded = _decode_body(entry)
    return data | {
        "body_bytes": size,
        "body_cut": cut,
        "msg_bytes": len(entry.msg.ciphertext),
        "schema_name": schema,
        "decoded": decoded if decoded is None or len(decoded) <= chars else decoded[:chars],
        "decoded_cut": decoded is not None and len(decoded) > chars,
    }


def _decode_body(entry: Entry) -> tuple[str | None, str | None]:
    """Return the name of a schema that VEEN knows, and the body as JSON if it is valid."""
    if entry.event is None or (schema := BUILTIN.schemas.get(entry.event.hdr.schema)) is None:
        return None, None
    typed = decode(entry.event, schema)
    return schema.name, compact(plain(typed.body)) if isinstance(typed, Typed) else None


def stream_word(keys: StreamKeys) -> str:
    """Return a stream as a shell word: by its id, if a terminal would not show the name unchanged."""
    name = str(keys)
    if safe(name) != name or name.startswith("-"):
        return f"hex:{keys.stream_id.hex()}"
    return shlex.quote(name)


def _epoch_option(signed: list[Checkpoint], epoch: int) -> str:
    return f" --epoch {epoch}" if len(signed) > 1 or epoch else ""


# --- addresses -------------------------------------------------------------------------------------------------------


def number_of(query: Query, name: str, default: int, *, least: int = 1, most: int = _MAX_NUMBER) -> int:
    text = query.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
        raise BadAddress(f"{name} is a whole number from {least} to {most}")
    return int(text)


def _moment(query: Query) -> int | None:
    text = query.get("time", "").strip()
    if not text:
        return None
    try:
        return MOMENT.convert(text[:64], None, None)
    except click.BadParameter as exc:
        raise BadAddress(exc.message) from exc


def _epoch(signed: list[Checkpoint], query: Query) -> int:
    checkpoint = _select_checkpoint(signed, query)
    return 0 if checkpoint is None else checkpoint.epoch


def _select_checkpoint(signed: list[Checkpoint], query: Query) -> Checkpoint | None:
    """Return the checkpoint of the requested epoch, or the newest."""
    if not query.get("epoch", "").strip():
        return signed[-1] if signed else None
    epoch = number_of(query, "epoch", 0, least=0)
    checkpoint = next((checkpoint for checkpoint in signed if checkpoint.epoch == epoch), None)
    if checkpoint is None:
        raise NoEntries(f"the stream has no entries in epoch {epoch}")
    return checkpoint
