"""The birth certificate: permission for a hub key to begin a log in an empty data directory, until a time (D-121).

A key that already signed position 1 of a log must not sign it again, so a hub with a configured key does not begin in
an empty directory by itself. The certificate is made with the key and says until when a first start may take place.

    sig = Ed25519 by hub_pk over Ht("veen/birth", hub_pk ‖ u64be(not_after))
"""

from dataclasses import dataclass
from typing import Any, Final, Self

from veen.core.crypto import ed25519
from veen.core.errors import MalformedError, SignatureError
from veen.core.hashing import Ht, u64be
from veen.core.objects.identity import canonical_json, read_canonical_json

BIRTH_SECONDS: Final = 24 * 3600
_CERTIFICATE: Final = "birth certificate"
_MAX_CERTIFICATE_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BirthCertificate:
    hub_pk: bytes
    not_after: int  # the last second in which a blank directory may become this hub's
    sig: bytes

    @classmethod
    def issue(cls, key: ed25519.SigningKey, not_after: int) -> Self:
        return cls(hub_pk=key.public, not_after=not_after, sig=key.sign(_digest(key.public, not_after)))

    def verify(self) -> None:
        if not ed25519.verify(self.hub_pk, _digest(self.hub_pk, self.not_after), self.sig):
            raise SignatureError(f"{_CERTIFICATE}: the signature is not by its key")

    def to_bytes(self) -> bytes:
        return canonical_json(
            {"ver": 1, "hub_pk": self.hub_pk.hex(), "not_after": self.not_after, "sig": self.sig.hex()}
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical form; raise FormatError otherwise. A final line feed is allowed: people edit
        Secrets.
        """
        value: Any = read_canonical_json(data.removesuffix(b"\n"), _CERTIFICATE, max_bytes=_MAX_CERTIFICATE_BYTES)
        try:
            certificate = cls(
                hub_pk=bytes.fromhex(value["hub_pk"]), not_after=value["not_after"], sig=bytes.fromhex(value["sig"])
            )
            sizes = (len(certificate.hub_pk), len(certificate.sig)) == (32, 64)
            if not sizes or type(certificate.not_after) is not int or not 0 <= certificate.not_after < 2**63:
                raise ValueError
            if certificate.to_bytes() != data.removesuffix(b"\n"):
                raise ValueError
        except (KeyError, TypeError, ValueError) as exc:
            raise MalformedError("expected ver 1, hub_pk, not_after and sig", _CERTIFICATE) from exc
        return certificate


def _digest(hub_pk: bytes, not_after: int) -> bytes:
    return Ht("veen/birth", hub_pk + u64be(not_after))
