"""Principals of a query service: tokens and certificates, mapped to VEEN identities and streams (QRY-20).

The configuration is a TOML file with one table for each principal. It has hashes of tokens, never tokens:

    [principal.alice]
    token_sha256 = "9f86d0…"            # of the bearer token: `veen query token` creates both
    certificate_names = ["alice.example"]  # in a client certificate: common name, DNS name or URI; either or both
    client_id = "5be1…"                 # the VEEN identity of the principal; audit records name it
    subject_id = "user:alice"           # subject of query.submitted
    scopes = ["record/app/*"]           # patterns over names of streams
    max_rows = 100000
    evidence_min = "none"               # or spot, or full
    auditor = false                     # true: may see the results of others

    [classes]                           # classes of streams in audit records; the first matching pattern applies
    "record/hr/*" = "confidential"
"""

import hmac
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self, cast

from veen.core.errors import StatedError
from veen.lake.query.descriptor import MODES, Mode, QueryDescriptor
from veen.lake.query.errors import ForbiddenScope, InvalidDescriptor

_MAX_FILE: Final = 1024 * 1024
_UNCLASSIFIED: Final = "unclassified"
_MEMBERS: Final = frozenset(
    {
        "token_sha256",
        "certificate_names",
        "client_id",
        "subject_id",
        "scopes",
        "max_rows",
        "evidence_min",
        "auditor",
    }
)


class PrincipalsInvalid(StatedError, code="E.LOCAL"):
    """The file of principals is invalid."""

    hint = "docs/query-service.md shows the file; `veen query token` makes a token and its hash."


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPrincipal:
    """A principal of the service."""

    name: str
    token_hash: bytes | None  # None: known by certificate only
    client_id: bytes
    subject_id: str
    scopes: tuple[str, ...]
    max_rows: int = 100_000
    evidence_min: Mode = "none"
    auditor: bool = False
    certificate_names: tuple[str, ...] = ()

    def check(self, descriptor: QueryDescriptor) -> None:
        """Raise ForbiddenScope or InvalidDescriptor if this principal may not submit the query."""
        self.check_scope(descriptor)
        if MODES.index(descriptor.evidence.mode) < MODES.index(self.evidence_min):
            raise InvalidDescriptor(
                "evidence", f"this principal must ask for mode {self.evidence_min} or a stricter one"
            )

    def check_scope(self, descriptor: QueryDescriptor) -> None:
        """Raise ForbiddenScope unless this principal may read every stream of a query."""
        for stream in descriptor.scope:
            if not any(fnmatchcase(stream, pattern) for pattern in self.scopes):
                raise ForbiddenScope(f"stream {stream!r} is not known or may not be read")

    def may_see(self, subject_id: str) -> bool:
        return self.auditor or subject_id == self.subject_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Principals:
    """All principals of the service, and the classes of streams in audit records."""

    members: tuple[QueryPrincipal, ...]
    classes: tuple[tuple[str, str], ...] = ()  # pattern, class

    @classmethod
    def read(cls, path: Path) -> Self:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
        if len(data) > _MAX_FILE:
            raise PrincipalsInvalid(f"{path}: more than {_MAX_FILE} bytes")
        try:
            return cls.of(tomllib.loads(data.decode()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise PrincipalsInvalid(f"{path}: {exc}") from exc

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        if unknown := set(table) - {"principal", "classes"}:
            raise PrincipalsInvalid(f"unknown table {sorted(unknown)[0]!r}: there are [principal.NAME] and [classes]")
        tables, classes = table.get("principal", {}), table.get("classes", {})
        if not isinstance(tables, dict) or not tables:
            raise PrincipalsInvalid("the file has no [principal.NAME]: nobody could use the service")
        if not isinstance(classes, dict) or not all(isinstance(name, str) and name for name in classes.values()):
            raise PrincipalsInvalid("[classes] maps patterns of stream names to the name of a class")
        principals = tuple(_principal(name, members) for name, members in tables.items())
        hashes = [principal.token_hash for principal in principals if principal.token_hash is not None]
        if len(set(hashes)) < len(hashes):
            raise PrincipalsInvalid("two principals have the same token")
        names = [name for principal in principals for name in principal.certificate_names]
        if len(set(names)) < len(names):
            raise PrincipalsInvalid("a name of certificate_names occurs twice: it must belong to one principal")
        if len({principal.subject_id for principal in principals}) < len(principals):
            raise PrincipalsInvalid("two principals have the same subject_id: their results could not be told apart")
        return cls(members=principals, classes=tuple(classes.items()))

    def by_token(self, token: bytes) -> QueryPrincipal | None:
        """Return the principal of a token, or None. Every hash is compared, in constant time."""
        digest, match = sha256(token).digest(), None
        for principal in self.members:
            if principal.token_hash is not None and hmac.compare_digest(digest, principal.token_hash):
                match = principal
        return match

    def by_certificate(self, names: Collection[str]) -> QueryPrincipal | None:
        """Return the principal of a verified certificate's names; None also if they belong to two principals."""
        matches = [principal for principal in self.members if not set(principal.certificate_names).isdisjoint(names)]
        return matches[0] if len(matches) == 1 else None

    @property
    def need_certificates(self) -> str | None:
        """The name of a principal that uses a certificate, or None."""
        return next((principal.name for principal in self.members if principal.certificate_names), None)

    def by_subject(self, subject_id: str) -> QueryPrincipal | None:
        return next((principal for principal in self.members if principal.subject_id == subject_id), None)

    def class_of(self, scope: tuple[str, ...]) -> str:
        """Return the first class in the file that matches a stream of a scope (D-135)."""
        for pattern, name in self.classes:
            if any(fnmatchcase(stream, pattern) for stream in scope):
                return name
        return _UNCLASSIFIED


def _principal(name: str, members: Any) -> QueryPrincipal:
    if not isinstance(members, dict):
        raise PrincipalsInvalid(f"[principal.{name}] is not a table")
    if unknown := set(members) - _MEMBERS:
        raise PrincipalsInvalid(f"[principal.{name}]: unknown key {sorted(unknown)[0]!r}")
    scopes, mode = members.get("scopes"), members.get("evidence_min", "none")
    max_rows, auditor = members.get("max_rows", 100_000), members.get("auditor", False)
    subject_id = members.get("subject_id", f"user:{name}")
    if not isinstance(scopes, list) or not scopes or not all(isinstance(scope, str) and scope for scope in scopes):
        raise PrincipalsInvalid(f"[principal.{name}]: scopes is a list of patterns such as record/app/*")
    if mode not in MODES:
        raise PrincipalsInvalid(f"[principal.{name}]: evidence_min is one of {', '.join(MODES)}")
    if type(max_rows) is not int or max_rows < 1:
        raise PrincipalsInvalid(f"[principal.{name}]: max_rows is a whole number above 0")
    names = members.get("certificate_names", [])
    if not isinstance(names, list) or not all(isinstance(text, str) and text for text in names):
        raise PrincipalsInvalid(f"[principal.{name}]: certificate_names is a list of names such as alice.example")
    if "token_sha256" not in members and not names:
        raise PrincipalsInvalid(f"[principal.{name}]: token_sha256 or certificate_names must say how to know them")
    if type(auditor) is not bool or not isinstance(subject_id, str) or not subject_id:
        raise PrincipalsInvalid(f"[principal.{name}]: auditor is true or false, subject_id a text")
    return QueryPrincipal(
        name=name,
        token_hash=_hex32(name, members, "token_sha256") if "token_sha256" in members else None,
        client_id=_hex32(name, members, "client_id"),
        subject_id=subject_id,
        scopes=tuple(scopes),
        max_rows=max_rows,
        evidence_min=cast(Mode, mode),
        auditor=auditor,
        certificate_names=tuple(names),
    )


def _hex32(name: str, members: Mapping[str, Any], member: str) -> bytes:
    try:
        value = bytes.fromhex(members.get(member, ""))
    except (TypeError, ValueError):
        value = b""
    if len(value) != 32:
        raise PrincipalsInvalid(f"[principal.{name}]: {member} is 64 hex digits")
    return value
