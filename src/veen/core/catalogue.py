"""The catalogue of errors: meaning, origin and remedy of each code. `errors.toml` describes its own keys.

The file is part of the package, also inside a zip. It is read once, when the first error is shown: commands that
succeed do not pay for it.

Installation of optional parts: from a checkout or a wheel, never by the bare name from a registry.

No release is on a registry, where anybody could own the name.
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
    """Return every code in the order of the file."""
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
    """Return the row of a code, in any case; accept a detail as `E.SEQ/CLIENT_SEQ`, and codes of older documents
    (D-55).
    """
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
    """Return the details of one code of the hub."""
    return [row for row in catalogue().values() if row.part_of == code]


def install_hint(extra: str) -> str:
    """Return the sentence that ends every text about a missing extra."""
    return f"Install the extra: pip install '.[{extra}]' in a checkout, or 'FILE.whl[{extra}]' of the wheel."
