"""The cryptographic profile and its id, carried in every MSG (spec §3.2, D-25)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.errors import MalformedError
from veen.core.hashing import Ht
from veen.core.wire import Fields, Form, Wire

__all__ = ["PRESETS", "Profile"]

_SUITE: Final = {
    "aead": "xchacha20poly1305",
    "kdf": "hkdf-sha256",
    "sig": "ed25519",
    "dh": "x25519",
    "hpke_suite": "X25519-HKDF-SHA256-CHACHA20POLY1305",
    "mmr_hash": "sha256",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Wire):
    """v0.0.1 knows one cipher suite; profiles differ in label rotation and padding only.

    Neither field has a default: the spec wants both chosen, never implied.
    """

    KIND: ClassVar[str] = "profile"
    FORM: ClassVar[Form] = "map"

    epoch_sec: int  # 0: labels never rotate
    pad_block: int  # 0: no padding

    @classmethod
    def _read(cls, f: Fields) -> Self:
        for name in ("aead", "kdf", "sig", "dh", "hpke_suite"):
            _check_suite(name, f.text(name))
        profile = cls(epoch_sec=f.uint("epoch_sec"), pad_block=f.uint("pad_block"))
        _check_suite("mmr_hash", f.text("mmr_hash"))
        return profile

    def _write(self) -> dict[str, Any]:
        suite = dict(_SUITE)
        mmr_hash = suite.pop("mmr_hash")
        return {**suite, "epoch_sec": self.epoch_sec, "pad_block": self.pad_block, "mmr_hash": mmr_hash}

    def profile_id(self) -> bytes:
        return Ht("veen/profile", cbor.encode(self.to_tree()))


def _check_suite(name: str, value: str) -> None:
    if value != _SUITE[name]:
        raise MalformedError(f"v0.0.1 allows only {_SUITE[name]!r}, found {value!r}", f"profile.{name}")


PRESETS: Final = {
    "messaging": Profile(epoch_sec=0, pad_block=256),
    "bulk": Profile(epoch_sec=0, pad_block=0),
    "rotating": Profile(epoch_sec=3600, pad_block=256),
    "ref": Profile(epoch_sec=60, pad_block=0),
}
