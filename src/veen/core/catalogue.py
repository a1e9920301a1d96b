"""The words of errors: what a code means, where the fault is, and what to do. `errors.toml` describes its own keys.

The file is a part of the package, also inside a zip, and is read like a module: once, when the first error is put into
words. Commands that succeed do not pay for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from veen.core.errors import RETIRED_CODES, ApiCode, Refusal

BLAMES: Final = ("you", "producer", "hub", "network", "this machine", "bug")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """One code of the catalogue."""

    code: str
    blame: str
    exit_status: int
    means: str
    because: str
    spec: str
    fixes: tuple[str, ...]
    message: str = ""  # a template; empty where the exception brings its text
    http_status: int | None = None
    part_of: str | None = None  # the code of which this one is a detail

    @property
    def hint(self) -> str:
        return self.fixes[0]


@cache
def catalogue() -> Mapping[str, ErrorRow]:
    """Every code in the order of the file."""
    import pkgutil
    import tomllib

    tables = tomllib.loads((pkgutil.get_data("veen.core", "errors.toml") or b"").decode())
    families, shared = tables.pop("family"), tables.pop("shared")
    protocol = {code.code: code.http_status for code in ApiCode}
    protocol |= {refusal.code: refusal.http_status for refusal in Refusal}
    details = {refusal.detail_enum: refusal for refusal in Refusal}

    def row(code: str, table: dict[str, Any]) -> ErrorRow:
        family = families[max((prefix for prefix in families if code.startswith(prefix)), key=len)]
        values = {"part_of": None, "http": protocol.get(code), "message": "", **family, **table}
        if refusal := details.get(code):
            values |= {"part_of": refusal.code, "http": refusal.http_status}
        fixes = tuple(shared[fix[1:]] if fix.startswith("@") else fix for fix in values.pop("fixes"))
        return ErrorRow(
            code=code, fixes=fixes, exit_status=values.pop("exit"), http_status=values.pop("http"), **values
        )

    return {code: row(code, table) for code, table in tables.items()}


def row_of(code: str) -> ErrorRow | None:
    """By code, in any case; a detail also as `E.SEQ/CLIENT_SEQ`, and names that older documents use (D-55)."""
    rows = catalogue()
    if code in rows:
        return rows[code]
    wanted = code.strip().upper().replace("-", "_")
    retired = RETIRED_CODES.get(wanted)
    for name in (wanted, wanted.rpartition("/")[2], retired.detail_enum if retired else "", wanted.lower()):
        if name in rows:
            return rows[name]
    return None


def details_of(code: str) -> list[ErrorRow]:
    """The details under one code of the hub."""
    return [row for row in catalogue().values() if row.part_of == code]
