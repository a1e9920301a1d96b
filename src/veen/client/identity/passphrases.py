"""Passphrases: their stretching into a key, and a check for weak ones.

A passphrase has a minimum length and a minimum number of guesses that a program would need, roughly estimated. The
estimate detects short words, repetitions, runs along the alphabet or the keyboard, and the passwords that every list of
guesses begins with. It is not a dictionary, and it does not prove a passphrase strong.
"""

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import ClassVar, Final

from nacl.bindings import crypto_pwhash_alg, crypto_pwhash_ALG_ARGON2ID13
from nacl.exceptions import CryptoError

from veen.client.errors import KeystoreDamaged, LocalError
from veen.core.crypto import aead

MIN_CHARACTERS: Final = 10
MIN_BITS: Final = 40.0
_WORD_BITS: Final = 8.0  # estimate for a word that every list of guesses has
_EXPECTED_BITS: Final = 1.0  # estimate for a character that follows from the ones before it
_COMMON: Final = [
    "password",
    "passwort",
    "passwd",
    "pass",
    "qwerty",
    "qwertz",
    "asdf",
    "letmein",
    "welcome",
    "admin",
    "administrator",
    "root",
    "secret",
    "login",
    "master",
    "iloveyou",
    "monkey",
    "dragon",
    "football",
    "baseball",
    "princess",
    "sunshine",
    "shadow",
    "superman",
    "batman",
    "trustno",
    "hello",
    "test",
    "changeme",
    "default",
    "user",
    "guest",
    "access",
    "money",
    "love",
    "whatever",
    "summer",
    "winter",
    "computer",
    "internet",
    "samsung",
    "google",
    "apple",
    "veen",
    "keystore",
]
_ROWS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "0123456789",
    "qwertyuiop",
    "asdfghjkl",
    "zxcvbnm",
    "qwertzuiop",
    "yxcvbnm",
)
_LEET: Final = str.maketrans("013457@$", "oleastas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kdf:
    """Parameters of argon2id, which stretches a passphrase. The same bounds apply to writing and to reading."""

    memory_kib: int = 64 * 1024
    passes: int = 3

    MIN_MEMORY_KIB: ClassVar[int] = 8  # libsodium's own; 0 in a file without passphrase
    MAX_MEMORY_KIB: ClassVar[int] = 256 * 1024
    MAX_PASSES: ClassVar[int] = 16

    def key(self, passphrase: str, salt: bytes) -> bytes:
        """Stretch a passphrase. The bounds are checked before anything is allocated: a hostile header costs nothing."""
        if not self.MIN_MEMORY_KIB <= self.memory_kib <= self.MAX_MEMORY_KIB or not 1 <= self.passes <= self.MAX_PASSES:
            raise KeystoreDamaged(
                f"it asks for {self.memory_kib} KiB and {self.passes} passes of argon2id;"
                f" at most {self.MAX_MEMORY_KIB} KiB and {self.MAX_PASSES} passes are done"
            )
        # The same characters typed on another system may arrive composed otherwise.
        secret = unicodedata.normalize("NFC", passphrase).encode(errors="surrogatepass")
        try:
            return crypto_pwhash_alg(
                aead.KEY_BYTES, secret, salt, self.passes, self.memory_kib * 1024, crypto_pwhash_ALG_ARGON2ID13
            )
        except CryptoError as exc:
            raise LocalError(f"argon2id could not run with {self.memory_kib} KiB of memory") from exc


class WeakPassphrase(LocalError, code="E.LOCAL.WEAK"):
    """A passphrase that guessing would find."""


def check_passphrase(text: str, name: str = "") -> None:
    """Raise WeakPassphrase with the reason unless the text may seal a keystore. Guesses include `name`."""
    if len(text) < MIN_CHARACTERS:
        raise WeakPassphrase(f"it has {len(text)} characters; a passphrase has at least {MIN_CHARACTERS}")
    bits = guess_bits(text, name)
    if bits < MIN_BITS:
        raise WeakPassphrase(
            "common words, repetitions and runs such as 1234 are guessed first: about"
            f" 2^{int(bits)} tries would find it, and at least 2^{int(MIN_BITS)} are asked for"
        )


def guess_bits(text: str, name: str = "") -> float:
    """Return about the base-2 logarithm of the number of guesses that a program needs."""
    plain = text.lower()
    words = sorted({*_COMMON, *([name.lower()] if len(name) > 2 else [])}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, words)))
    forms = (plain, plain.translate(_LEET)) if len(plain) == len(text) else ()  # p4ssw0rd is the word as well
    return min([_bits(text, text), *(_without_words(text, form, pattern) for form in forms)])


def _without_words(text: str, form: str, pattern: re.Pattern[str]) -> float:
    """Return the estimate in which each common word counts as one guess among few."""
    rest = sum(_bits(text[begin:end], text) for begin, end in _ranges_outside(pattern, form))
    return len(pattern.findall(form)) * _WORD_BITS + rest


def _ranges_outside(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    """Return the ranges of text outside the words."""
    edges = [0, *(edge for match in pattern.finditer(text) for edge in match.span()), len(text)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _bits(part: str, whole: str) -> float:
    each = math.log2(_pool(whole))
    return sum(_EXPECTED_BITS if _is_expected(part, at) else each for at in range(len(part)))


def _pool(text: str) -> int:
    """Return the number of characters that a guess has to try at each place."""
    sizes = (
        (26, str.islower),
        (26, str.isupper),
        (10, str.isdecimal),
        (33, lambda char: char.isascii() and not char.isalnum()),
        (100, lambda char: not char.isascii()),
    )
    return max(sum(size for size, belongs in sizes if any(map(belongs, text))), 2)


def _is_expected(text: str, at: int) -> bool:
    """Return True if the character repeats, continues a run, or is part of a repeated sequence."""
    if at == 0:
        return False
    pair = text[at - 1 : at + 1].lower()
    if pair[0] == pair[1] or any(pair in row or pair in row[::-1] for row in _ROWS):
        return True
    return at >= 2 and text[at - 2 : at + 1] in text[:at]
