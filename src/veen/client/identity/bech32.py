"""Bech32m text (BIP 350), which detects typing errors, as in `veen1…`.

The checksum finds every change of one, two or three characters in texts of up to 1,023 characters, which bounds what
is written here. It does not protect against forgery: texts that need that have a signature inside.
"""

from typing import Final

from veen.client.errors import KeyTextInvalid

MAX_CHARS: Final = 1_023  # the length of the code: beyond it, two changes could cancel each other
_ALPHABET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUES: Final = {char: value for value, char in enumerate(_ALPHABET)}
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32M: Final = 0x2BC830A3
_CHECKSUM_CHARS: Final = 6


def to_text(prefix: str, data: bytes) -> str:
    """Encode data as `prefix`, the digit 1, the data and its checksum."""
    values = _regroup(data)
    remainder = _polymod([*_expand_prefix(prefix), *values, *[0] * _CHECKSUM_CHARS]) ^ _BECH32M
    values += [remainder >> 5 * (_CHECKSUM_CHARS - 1 - place) & 31 for place in range(_CHECKSUM_CHARS)]
    text = f"{prefix}1{''.join(_ALPHABET[value] for value in values)}"
    if len(text) > MAX_CHARS:
        raise KeyTextInvalid(f"a text of {len(text)} characters is too long: at most {MAX_CHARS}")
    return text


def from_text(prefix: str, text: str) -> bytes:
    """Decode `text`. Raise KeyTextInvalid if any character differs from the encoded ones.

    As in BIP 173, a text in capitals is the same text, and one that mixes both is invalid.
    """
    text = text.strip()
    if len(text) > MAX_CHARS:
        raise KeyTextInvalid(f"too long: at most {MAX_CHARS} characters")
    if text != text.lower() and text != text.upper():
        raise KeyTextInvalid("small letters and capitals are mixed")
    text = text.lower()
    head = f"{prefix}1"
    if not text.startswith(head):
        raise KeyTextInvalid(f"it does not begin with {head}")
    try:
        values = [_VALUES[char] for char in text[len(head) :]]
    except KeyError as exc:
        raise KeyTextInvalid(f"{exc.args[0]!r} does not occur in such a text") from None
    if len(values) < _CHECKSUM_CHARS or _polymod([*_expand_prefix(prefix), *values]) != _BECH32M:
        raise KeyTextInvalid("its checksum is wrong: a character was changed, lost or added")
    return _join_groups(values[:-_CHECKSUM_CHARS])


def _polymod(values: list[int]) -> int:
    """Return the remainder of the values, read as a polynomial over GF(32), by the generator of the code."""
    remainder = 1
    for value in values:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << 5 ^ value
        for bit, term in enumerate(_GENERATOR):
            if top >> bit & 1:
                remainder ^= term
    return remainder


def _expand_prefix(prefix: str) -> list[int]:
    return [ord(char) >> 5 for char in prefix] + [0] + [ord(char) & 31 for char in prefix]


def _regroup(data: bytes) -> list[int]:
    """Regroup bytes into groups of five bits, the last one filled with zeros."""
    groups = -(-len(data) * 8 // 5)
    number = int.from_bytes(data, "big") << groups * 5 - len(data) * 8
    return [number >> 5 * (groups - 1 - place) & 31 for place in range(groups)]


def _join_groups(values: list[int]) -> bytes:
    size, spare = divmod(len(values) * 5, 8)
    number = 0
    for value in values:
        number = number << 5 | value
    if spare >= 5 or number & (1 << spare) - 1:
        # Otherwise two texts could mean the same bytes.
        raise KeyTextInvalid("invalid bech32m data: not a whole number of bytes")
    return (number >> spare).to_bytes(size, "big")
