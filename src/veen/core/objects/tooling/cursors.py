"""The cursor of one writer in one label. Only that writer may ask for it (D-162)."""

from dataclasses import dataclass
from typing import Any, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.wire import Bytes32, Bytes64, Map, Uint

_TAG: Final = "veen/cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCursorRequest(Map, kind="client_cursor request"):
    """Request for the cursor of `client_id` in `label`, and for the entry with `client_seq`, if it is given.

    `sig` is by the client key over Ht("veen/cursor", CBOR of the fields before it); `ts` limits the time of its use.
    """

    label: Bytes32
    client_id: Bytes32
    client_seq: Uint | None = None
    ts: Uint
    sig: Bytes64 = b""

    @classmethod
    def issue(cls, key: ed25519.SigningKey, label: bytes, *, ts: int, client_seq: int | None = None) -> Self:
        fields: dict[str, Any] = {"label": label, "client_id": key.public, "client_seq": client_seq, "ts": ts}
        return cls(**fields, sig=key.sign(cls(**fields).signing_digest()))

    def signing_digest(self) -> bytes:
        tree = self.to_tree()
        assert type(tree) is dict  # noqa: S101 - its FORM is map
        return Ht(_TAG, cbor.encode({key: value for key, value in tree.items() if key != _SIG}))

    def verify(self) -> None:
        """Raise SignatureError unless the client key signed this request."""
        if not ed25519.verify(self.client_id, self.signing_digest(), self.sig):
            raise SignatureError("client_cursor request: not signed by client_id")


_SIG: Final = 6  # the key of `sig` in the map


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCursorResponse(Map, kind="client_cursor response"):
    """The last accepted client_seq and prev_ack, both 0 if there is none.

    `stream_seq` and `leaf` are those of the requested entry, absent if the client has no such entry in this label. All
    of it is durable.
    """

    last_client_seq: Uint
    last_prev_ack: Uint
    stream_seq: Uint | None = None
    leaf: Bytes32 | None = None
