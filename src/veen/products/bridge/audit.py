"""Audit records of a bridge, written by an identity with no other task (AGB-11, D-106)."""

from dataclasses import dataclass

from veen.client.client import Client
from veen.client.errors import LocalError
from veen.client.identity.keyring import Stream
from veen.client.send.sealing import Draft, Prepared
from veen.client.send.writing import Sent
from veen.core.objects.captoken import CapToken
from veen.overlays.framework.body import Body
from veen.overlays.framework.schema import AnySchema

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
