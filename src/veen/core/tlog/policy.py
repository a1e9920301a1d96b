"""Witness policies in the format of c2sp.org/tlog-policy: logs, witnesses, groups of k of n, one quorum.

log VKEY [URL]
witness NAME VKEY [URL]
group NAME k|any|all MEMBER…
quorum NAME|none
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from veen.core.tlog.note import COSIGNATURE, ED25519, LogCheckpoint, Note, VerifierKey, verify_signatures
from veen.core.tlog.tree import NoteError, QuorumError, WitnessPolicyError

_MAX_BYTES: Final = 1 << 20
_MAX_LINES: Final = 10_000


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """A log or a witness of a policy, and its URL."""

    vkey: VerifierKey
    url: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyGroup:
    """At least `threshold` of `members`, which are names of witnesses or of groups."""

    threshold: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CosignedCheckpoint:
    """A note that a policy accepts: its checkpoint, and the witnesses that cosigned it with their times."""

    checkpoint: LogCheckpoint
    log: VerifierKey
    cosigned: Mapping[str, int]  # names of the policy, with the time in seconds


@dataclass(frozen=True, slots=True)
class WitnessPolicy:
    """A parsed policy. Names are those of the file; `quorum` is None for `quorum none`."""

    logs: tuple[PolicyKey, ...]
    witnesses: Mapping[str, PolicyKey]
    groups: Mapping[str, PolicyGroup]
    quorum: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        if len(text) > _MAX_BYTES or text.count("\n") > _MAX_LINES:
            raise WitnessPolicyError("the policy is too large")
        reader = _PolicyReader()
        for number, line in enumerate(text.split("\n"), 1):
            words = line.removesuffix("\r").split()
            if not words or words[0].startswith("#"):
                continue
            try:
                reader.read(words)
            except NoteError as exc:
                raise WitnessPolicyError(f"line {number}: {exc}") from exc
            except WitnessPolicyError as exc:
                raise WitnessPolicyError(f"line {number}: {exc.what}") from exc
        if not reader.has_quorum:
            raise WitnessPolicyError("the policy has no quorum line")
        return cls(tuple(reader.logs), reader.witnesses, reader.groups, reader.quorum)

    def log_of(self, origin: str) -> PolicyKey:
        """Return the log of an origin; raise QuorumError if the policy does not list it."""
        for log in self.logs:
            if log.vkey.name == origin:
                return log
        raise QuorumError(f"the policy lists no log {origin!r}")

    def check(self, note: Note) -> CosignedCheckpoint:
        """Return what the note proves under this policy; raise QuorumError, NoteError or NoteSignatureError."""
        checkpoint = LogCheckpoint.parse(note.text)
        log = self.log_of(checkpoint.origin).vkey
        if log not in verify_signatures(note, (log,)):
            raise QuorumError(f"the log {log.name} did not sign the note")
        keys = {witness.vkey: name for name, witness in self.witnesses.items()}
        cosigned = {keys[key]: time for key, time in verify_signatures(note, keys).items()}
        if not self.is_met(cosigned):
            raise QuorumError(
                f"{len(cosigned)} of the witnesses cosigned the note, which is not a quorum ({self.quorum})"
            )
        return CosignedCheckpoint(checkpoint, log, cosigned)

    def is_met(self, names: Mapping[str, int]) -> bool:
        """Return True if these witnesses are a quorum."""
        return self.quorum is None or self._holds(self.quorum, names)

    def _holds(self, name: str, names: Mapping[str, int]) -> bool:
        group = self.groups.get(name)
        if group is None:
            return name in names
        return sum(self._holds(member, names) for member in group.members) >= group.threshold


class _PolicyReader:
    """Reads a policy line by line; names are defined before they are used."""

    def __init__(self) -> None:
        self.logs: list[PolicyKey] = []
        self.witnesses: dict[str, PolicyKey] = {}
        self.groups: dict[str, PolicyGroup] = {}
        self.quorum: str | None = None
        self.has_quorum = False
        self._members: set[str] = set()
        self._publics: set[bytes] = set()

    def read(self, words: list[str]) -> None:
        keyword, *rest = words
        if keyword == "log" and len(rest) in (1, 2):
            key = self._key(rest[0], ED25519)
            if any(log.vkey.name == key.name for log in self.logs):
                raise WitnessPolicyError(f"log {key.name} is listed twice")
            self.logs.append(PolicyKey(key, *rest[1:]))
        elif keyword == "witness" and len(rest) in (2, 3):
            self.witnesses[self._new_name(rest[0])] = PolicyKey(self._key(rest[1], COSIGNATURE), *rest[2:])
        elif keyword == "group" and len(rest) >= 3:
            self._group(rest[0], rest[1], rest[2:])
        elif keyword == "quorum" and len(rest) == 1:
            self._quorum(rest[0])
        else:
            raise WitnessPolicyError("expected log, witness, group or quorum with its words")

    def _key(self, text: str, key_type: int) -> VerifierKey:
        key = VerifierKey.parse(text)
        if key.key_type != key_type:
            raise WitnessPolicyError(f"the key of {key.name} has type {key.key_type}, expected {key_type}")
        if key.public in self._publics:
            raise WitnessPolicyError(f"the public key of {key.name} is listed twice")
        self._publics.add(key.public)
        return key

    def _new_name(self, name: str) -> str:
        if name == "none" or name in self.witnesses or name in self.groups:
            raise WitnessPolicyError(f"the name {name} is reserved or defined twice")
        return name

    def _check_defined(self, name: str) -> str:
        if name not in self.witnesses and name not in self.groups:
            raise WitnessPolicyError(f"the name {name} is not defined above")
        return name

    def _group(self, name: str, threshold_text: str, members: list[str]) -> None:
        new_name = self._new_name(name)
        for member in members:
            if self._check_defined(member) in self._members:
                raise WitnessPolicyError(f"{member} is a member twice")
            self._members.add(member)
        if threshold_text in ("any", "all"):
            threshold = 1 if threshold_text == "any" else len(members)
        elif threshold_text.isascii() and threshold_text.isdecimal() and len(threshold_text) <= 6:
            threshold = int(threshold_text)
        else:
            raise WitnessPolicyError("expected a number, any or all")
        if not 1 <= threshold <= len(members) or (threshold_text[0] == "0"):
            raise WitnessPolicyError(f"{threshold_text} of {len(members)} members is not a possible threshold")
        self.groups[new_name] = PolicyGroup(threshold, tuple(members))

    def _quorum(self, name: str) -> None:
        if self.has_quorum:
            raise WitnessPolicyError("a policy has one quorum line")
        self.quorum = None if name == "none" else self._check_defined(name)
        self.has_quorum = True
