"""Text form of a pin: `ed25519:HEX` is a key of a hub, `root:ed25519:HEX` a root key that signs identities (D-121).

HEX are the 64 digits of the public key. `ed25519:` may be omitted in input.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

_ROOT: Final = "root:"
_PREFIX: Final = "ed25519:"
_DIGITS: Final = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True)
class PinnedKey:
    """The key of a pin, and its kind."""

    public: bytes
    is_root: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pin; raise ValueError with the expected form."""
        rest = text.strip()
        is_root = rest.startswith(_ROOT)
        digits = rest.removeprefix(_ROOT).removeprefix(_PREFIX)
        if not _DIGITS.fullmatch(digits):
            raise ValueError(
                f"expected ed25519: and 64 hex digits, or root:ed25519: and 64 hex digits for the root key of an"
                f" ephemeral hub, found {text[:100]!r}"
            )
        return cls(bytes.fromhex(digits), is_root)

    def to_text(self) -> str:
        return f"{_ROOT if self.is_root else ''}{_PREFIX}{self.public.hex()}"
