"""The cryptographic profile and its id, carried in every MSG (spec §3.2, D-25)."""

from dataclasses import dataclass
from typing import ClassVar, Final

from veen.core import cbor
from veen.core.hashing import Ht
from veen.core.wire import Fixed, Part, Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Part, kind="profile"):
    """A cryptographic profile. v0.0.1 has one cipher suite; profiles differ in label rotation and padding only.

    Neither field has a default: the spec requires an explicit choice.
    """

    aead: ClassVar[Fixed] = "xchacha20poly1305"
    kdf: ClassVar[Fixed] = "hkdf-sha256"
    sig: ClassVar[Fixed] = "ed25519"
    dh: ClassVar[Fixed] = "x25519"
    hpke_suite: ClassVar[Fixed] = "X25519-HKDF-SHA256-CHACHA20POLY1305"
    epoch_sec: Uint  # 0: labels never rotate
    pad_block: Uint  # 0: no padding
    mmr_hash: ClassVar[Fixed] = "sha256"

    def profile_id(self) -> bytes:
        return Ht("veen/profile", cbor.encode(self.to_tree()))


PRESETS: Final = {
    "messaging": Profile(epoch_sec=0, pad_block=256),
    "bulk": Profile(epoch_sec=0, pad_block=0),
    "rotating": Profile(epoch_sec=3600, pad_block=256),
    "ref": Profile(epoch_sec=60, pad_block=0),
}
