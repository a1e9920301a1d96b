"""Audit records of a bridge, written by an identity with no other task (AGB-11, D-106).

Anchors of the bridge's own records: of bundle ids, through the audit streams that list them, and of reports
(AGB-17).

The hub anchors a root of a label (D-104). bridge/online/log and bridge/offline/log have an audit record of each bundle,
so an anchor of such a stream covers every earlier bundle_id. The report of a reconciliation is a file; its hash is
recorded on bridge/reports first, and that stream is anchored.

The roles of a bridge, and the rights that none of them may have (AGB-02, AGB-19, D-53, D-106).

To read a stream is to have its secret key, to write is to have a token for it (D-53). So rights are checked from
keyrings and tokens alone; tokens that a hub has recorded are checked in addition where the hub is reachable.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from veen.client.client import Client
from veen.client.errors import LocalError
from veen.client.identity.keyring import Stream
from veen.client.send.sealing import Draft, Prepared
from veen.client.send.writing import Sent
from veen.core import canonical
from veen.core.canonical import InvalidJson
from veen.core.crypto.ed25519 import verify as verify_signature
from veen.core.hashing import Ht
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import AnchorPublish
from veen.overlays.airgap.bodies import REPORT, ReportRecord
from veen.overlays.framework.schema import AnySchema, Body
from veen.products.bridge.bundle import ReportRefused

ONLINE_LOG = "bridge/online/log"
OFFLINE_LOG = "bridge/offline/log"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A sealed record without a receipt yet. It is stored, so that it is written exactly once after any crash."""

    schema: bytes
    body: bytes
    msg: bytes

    def to_json(self) -> dict[str, str]:
        return {"schema": self.schema.hex(), "body": self.body.hex(), "msg": self.msg.hex()}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> "AuditEntry":
        return cls(*(bytes.fromhex(value[name]) for name in ("schema", "body", "msg")))


class Auditor:
    """One audit stream, and the client that writes it."""

    def __init__(self, client: Client, stream: Stream, capability: CapToken | None = None) -> None:
        self._client, self._stream, self._capability = client, stream, capability

    async def prepare(self, schema: AnySchema, body: Body) -> AuditEntry:
        """Seal a record. Store the result before `submit`: a repetition then sends the identical bytes (D-09)."""
        draft = Draft(body=body.to_bytes(), schema=schema.id)
        (prepared,) = await self._client.prepare(self._stream, [draft], capability=self._capability)
        return AuditEntry(schema.id, draft.body, prepared.raw)

    async def submit(self, entry: AuditEntry) -> None:
        """Write the record. Seal it again only if the hub can no longer accept the stored bytes."""
        try:
            (outcome,) = await self._client.submit_prepared(self._stream, [Prepared.of(entry.msg)])
        except LocalError:  # its epoch is over
            outcome = None
        if not isinstance(outcome, Sent):
            await self._client.resync(self._stream)
            await self._client.send(self._stream, entry.body, schema=entry.schema, capability=self._capability)


REPORTS: Final = "bridge/reports"
_MAX_REPORT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SignedReport:
    """A report file of `veen bridge reconcile` with a verified signature."""

    report_hash: bytes
    signer: bytes
    is_clean: bool

    @classmethod
    def read(cls, data: bytes) -> "SignedReport":
        """Read a report and verify its signature.

        Raise ReportRefused if it is not a report, or not signed by its signer.
        """
        try:
            if len(data) > _MAX_REPORT_BYTES:
                raise ValueError("too large")
            value: Any = canonical.parse(data)
            report_hash = Ht("veen/bridge-report", canonical.encode(value["report"]))
            signer, signature = bytes.fromhex(value["signer_pk"]), bytes.fromhex(value["signature"])
            is_clean = value["report"]["clean"]
            if type(is_clean) is not bool:
                raise TypeError("clean")
        except (InvalidJson, ValueError, TypeError, LookupError) as exc:
            raise ReportRefused("the file is not a report of `veen bridge reconcile`") from exc
        if not verify_signature(signer, report_hash, signature):
            raise ReportRefused("the signature of the report is invalid")
        return cls(report_hash, signer, is_clean)


async def record_report(
    client: Client, report: SignedReport, *, operator: str, capability: CapToken | None = None, now: int | None = None
) -> Sent:
    """Record the hash of a report on bridge/reports."""
    body = ReportRecord(
        report_hash=report.report_hash,
        signer=report.signer,
        is_clean=report.is_clean,
        operator=operator,
        ts=int(time.time()) if now is None else now,
    )
    return await client.send(REPORTS, body.to_bytes(), schema=REPORT.id, capability=capability)


async def anchor_stream(client: Client, stream: str, upto_seq: int | None = None) -> AnchorPublish:
    """Have the hub anchor a stream; return the verified record of the anchor. Needs the hub's admin token."""
    record = await client.anchor(stream, upto_seq)
    assert isinstance(record.body, AnchorPublish)  # noqa: S101 - `Client.anchor` has verified it
    return record.body


ROLES: Final = ("exporter", "online-log", "importer", "offline-log")
_ONLINE: Final = ("exporter", "online-log")
_LOGS: Final = {"online-log": ONLINE_LOG, "offline-log": OFFLINE_LOG}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHolder:
    """An identity in a role, with all its keys and tokens."""

    role: str
    name: str
    keys: frozenset[bytes]  # public halves: of the identity and of all its client keys
    readable: tuple[str, ...]  # streams whose secret key it has
    tokens: tuple[CapToken, ...]


@dataclass(frozen=True, slots=True)
class RoleFinding:
    role: str
    what: str


def judge(holders: Sequence[RoleHolder]) -> list[RoleFinding]:
    """Return the violations, by role; empty if the roles are separated."""
    return [finding for holder in holders for finding in _alone(holder)] + [
        finding for left, right in combinations(holders, 2) for finding in _together(left, right)
    ]


def _alone(holder: RoleHolder) -> Iterable[RoleFinding]:
    role = holder.role
    if role == "exporter" and holder.tokens:
        yield RoleFinding(role, f"{holder.name} has a token to write: the exporter only reads")
    if role == "exporter" and (streams := [name for name in holder.readable if name.startswith("import/")]):
        yield RoleFinding(role, f"{holder.name} can read {streams[0]}, a stream of the other zone")
    if role == "importer" and holder.readable:
        yield RoleFinding(role, f"{holder.name} can read {holder.readable[0]}: the importer only writes")
    if role in _LOGS:
        log = _LOGS[role]
        if any(token.allow.stream_ids != (stream_id_of(log),) for token in holder.tokens):
            yield RoleFinding(role, f"{holder.name} has a token for other streams than {log}")
        if streams := [name for name in holder.readable if name != log]:
            yield RoleFinding(role, f"{holder.name} can read {streams[0]}: the log identity does nothing but {log}")


def _together(left: RoleHolder, right: RoleHolder) -> Iterable[RoleFinding]:
    if left.keys & right.keys:
        yield RoleFinding(left.role, f"{left.name} and {right.name} ({right.role}) share a private key")
    if (left.role in _ONLINE) != (right.role in _ONLINE):
        for reader, writer in ((left, right), (right, left)):
            ids = {stream_id for token in writer.tokens for stream_id in token.allow.stream_ids}
            if streams := [name for name in reader.readable if stream_id_of(name) in ids]:
                what = f"{reader.name} reads {streams[0]}, which {writer.name} ({writer.role}) of the other zone writes"
                yield RoleFinding(reader.role, what)


def judge_at_hub(zone: str, holder: RoleHolder, known: Iterable[bytes]) -> list[RoleFinding]:
    """Return a finding for each token that the zone's hub must not know. `known`: auth_refs recorded there."""
    allowed = {"online": ("online-log",), "offline": ("importer", "offline-log")}[zone]
    if holder.role in allowed:
        return []
    return [
        RoleFinding(holder.role, f"the hub of the {zone} zone lets {holder.name} write: token {auth_ref.hex()}")
        for auth_ref in known
    ]
