"""Redaction with commitments: a value leaves the event, and can be disclosed and checked later.

A rule names a member of the payload (`.password`, `.user.email`) or a pattern of text (`re:\\d{16}`). The value becomes
{"_commit": hex(Ht("sdr/redact", salt ‖ canonical value))}; salt and value go to record/security/openings, whose only
reader is the disclosure role. A salt has 32 random bytes, so a commitment does not show which of a few values it hides.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from veen.client.errors import LocalError
from veen.core.hashing import Ht
from veen.query.canonical import Json, encode

_SALT_BYTES: Final = 32
_MAX_PATTERN: Final = 500


class RuleInvalid(LocalError, code="SDR.REDACT"):
    """A redaction rule that cannot be followed."""


@dataclass(frozen=True, slots=True, repr=False)
class Opening:
    """What a commitment hides."""

    commit: str
    salt: bytes
    value: Json
    path: str

    def payload(self) -> dict[str, Json]:
        return {"commit": self.commit, "salt": self.salt.hex(), "value": self.value, "path": self.path}


def commitment(salt: bytes, value: Json) -> str:
    return Ht("sdr/redact", salt + encode(value)).hex()


class Redactor:
    """Applies rules to payloads."""

    def __init__(
        self, paths: Sequence[str], patterns: Sequence[re.Pattern[str]], random: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._paths, self._patterns, self._random = frozenset(paths), tuple(patterns), random

    @classmethod
    def of(cls, rules: Sequence[str], random: Callable[[int], bytes] = os.urandom) -> Self:
        """RuleInvalid names a rule that is neither a path nor a pattern."""
        paths, patterns = [], []
        for rule in rules:
            if rule.startswith("re:"):
                try:
                    patterns.append(re.compile(rule[3 : 3 + _MAX_PATTERN]))
                except re.error as exc:
                    raise RuleInvalid(f"{rule!r}: {exc}") from exc
            elif rule.startswith(".") and len(rule) > 1:
                paths.append(rule)
            else:
                raise RuleInvalid(f"{rule!r} is neither a path such as .password nor re:PATTERN")
        return cls(paths, patterns, random)

    def __bool__(self) -> bool:
        return bool(self._paths or self._patterns)

    def apply(self, payload: Json) -> tuple[Json, list[Opening]]:
        """The payload without what the rules name, and the openings of what was taken out."""
        openings: list[Opening] = []
        return self._walk(payload, "", openings), openings

    def _walk(self, value: Json, path: str, openings: list[Opening]) -> Json:
        if path in self._paths:
            return self._hide(value, path, openings)
        if isinstance(value, dict):
            return {key: self._walk(element, f"{path}.{key}", openings) for key, element in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._walk(element, path, openings) for element in value]
        if isinstance(value, str) and any(pattern.search(value) for pattern in self._patterns):
            return self._hide(value, path, openings)
        return value

    def _hide(self, value: Json, path: str, openings: list[Opening]) -> Json:
        salt = self._random(_SALT_BYTES)
        commit = commitment(salt, value)
        openings.append(Opening(commit, salt, value, path))
        return {"_commit": commit}
