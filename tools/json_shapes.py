"""The documented shapes of --json: record them from the tests of the commands, and write docs/json.md.

    VEEN_RECORD_SHAPES=/tmp/shapes python -m pytest -n 2 tests/cli    # what the commands print, as the tests see it
    python tools/json_shapes.py --merge /tmp/shapes                   # widen src/veen/cli/shapes.json by it
    python tools/json_shapes.py                                       # write docs/json.md
    python tools/json_shapes.py --check                               # is docs/json.md current?

Merging only widens: a field that goes away, or another type, is edited by hand together with the version.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from veen.cli.shared.shapes import ERROR, FOREIGN, VERDICT, describe_field

ROOT: Final = Path(__file__).parents[1]
SHAPES: Final = ROOT / "src/veen/cli/shapes.json"
PAGE: Final = ROOT / "docs/json.md"
_NAME: Final = re.compile(r"(?![0-9a-f]{16})[a-z$][a-z0-9_]*")
_MANY: Final = 60  # more names than a shape has: the names are data
# Members that hold what users or other documents decide: any JSON.
_FREE: Final = frozenset((
    "payload", "value", "record", "state", "args", "result", "settings", "row", "attributes", "metadata", "object",
    "fields", "derived", "claims", "document", "values", "policy", "summary", "data", "detail", "counters",
    "invariants", "facts", "config", "sections", "spec", "element", "rows", "elements", "records", "items", "answer",
))  # fmt: skip
# Fields whose texts always have one form; of others a form is chance.
_EXACT: Final = frozenset((
    "hub_pk", "hub_pks", "source_hub_pk", "hub_id", "msg_id", "label", "label_curr", "label_prev", "mmr_root",
    "leaf_hash", "client_id", "hub_sig", "ct_hash", "time",
))  # fmt: skip
# Members that are maps: their names are those of groups, streams, codes and the like.
_MAPS: Final = frozenset(("producers", "groups", "pending", "codes", "common", "counts", "mapping", "heads", "sums"))
_PATTERNS: Final = (
    r"^[0-9a-f]{64}$",
    r"^[0-9a-f]{128}$",
    r"^ed25519:[0-9a-f]{64}$",
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
)


class Observed:
    """Observations of one place in a shape: types, fields, elements, patterns."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.fields: dict[str, Observed] = {}
        self.required: set[str] | None = None
        self.items: Observed | None = None
        self.patterns = set(_PATTERNS)
        self.texts = 0

    def add(self, value: Any, name: str = "", *, whole: bool = True) -> None:
        self.types.add(_type(value))
        if isinstance(value, str):
            self.texts += 1
            self.patterns = {pattern for pattern in self.patterns if re.search(pattern, value)}
        elif isinstance(value, dict):
            if whole:
                self.required = set(value) if self.required is None else self.required & set(value)
            for field, element in value.items():
                self.fields.setdefault(field, Observed()).add(element, field, whole=whole)
        elif isinstance(value, list):
            self.items = self.items or Observed()
            for element in value:
                self.items.add(element, name, whole=whole)

    def schema(self, name: str = "") -> dict[str, Any]:
        types = set(self.types)
        if types <= {"null"}:
            return {}
        if "number" in types:
            types.discard("integer")
        ordered = sorted(types, key=lambda kind: (kind == "null", kind))
        schema: dict[str, Any] = {"type": ordered[0] if len(ordered) == 1 else ordered}
        if name in _EXACT and self.patterns and self.texts and types <= {"string", "null"}:
            schema["pattern"] = min(self.patterns)
        if name == "verdict" and types == {"object"}:
            return VERDICT
        if name in _FREE and ("object" in types or "array" in types):
            return schema
        if "object" in types and self.fields:
            if name in _MAPS or len(self.fields) > _MANY or not all(_NAME.fullmatch(field) for field in self.fields):
                together = Observed()
                for part in self.fields.values():
                    together.merge(part)
                schema["additionalProperties"] = together.schema(name)
            else:
                schema["properties"] = {field: self.fields[field].schema(field) for field in self.fields}
                if self.required:
                    schema["required"] = [field for field in self.fields if field in self.required]
        if "array" in types and self.items is not None and self.items.types:
            schema["items"] = self.items.schema(name)
        return schema

    def merge(self, other: "Observed") -> None:
        self.types |= other.types
        self.texts += other.texts
        if other.texts:
            self.patterns &= other.patterns
        for field, part in other.fields.items():
            self.fields.setdefault(field, Observed()).merge(part)
        if other.required is not None:
            self.required = other.required if self.required is None else self.required & other.required
        if other.items is not None:
            self.items = self.items or Observed()
            self.items.merge(other.items)


def _type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def widen(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts everything that either one accepts."""
    if VERDICT in (old, new):
        return VERDICT
    if not old:
        return new
    if not new:
        return old
    types = [*_types(old), *(kind for kind in _types(new) if kind not in _types(old))]
    if "number" in types and "integer" in types:
        types.remove("integer")
    types.sort(key=lambda kind: (kind == "null", kind))
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    texts = [part for part in (old, new) if "string" in _types(part)]
    if texts and all("pattern" in part for part in texts) and len({part["pattern"] for part in texts}) == 1:
        schema["pattern"] = texts[0]["pattern"]
    objects = [part for part in (old, new) if "object" in _types(part)]
    if any("additionalProperties" in part for part in objects):
        together: dict[str, Any] = {}
        for part in objects:
            for element in (part.get("additionalProperties", {}), *part.get("properties", {}).values()):
                together = widen(together, element)
        schema["additionalProperties"] = together
    elif objects and all("properties" in part for part in objects):
        names = dict.fromkeys(name for part in objects for name in part["properties"])
        schema["properties"] = {
            name: widen(*(part["properties"].get(name, {}) for part in (old, new))) if len(objects) == 2
            else objects[0]["properties"][name]
            for name in names
        }  # fmt: skip
        required = [name for name in names if all(name in part.get("required", ()) for part in objects)]
        if required:
            schema["required"] = required
    arrays = [part for part in (old, new) if "array" in _types(part)]
    items = [part["items"] for part in arrays if "items" in part]
    if items:
        schema["items"] = items[0] if len(items) == 1 else widen(*items)
    return schema


def _types(schema: dict[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def merge(directory: Path) -> None:
    """Widen the recorded shapes by what was observed."""
    shapes: dict[str, dict[str, Any]] = json.loads(SHAPES.read_text("utf-8"))
    wholes: dict[str, Observed] = {}
    starts: dict[str, Observed] = {}
    lines: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(directory.glob("*.ndjson")):
        for text in path.read_text("utf-8").splitlines():
            row = json.loads(text)
            if not isinstance(row["value"], dict):
                continue
            if row.get("start"):
                starts.setdefault(row["command"], Observed()).add(row["value"])
            elif row["line"]:
                lines.setdefault(row["command"], []).append(row["value"])
            else:
                wholes.setdefault(row["command"], Observed()).add(row["value"], whole=not row["code"])
    for command in sorted({*wholes, *lines}):
        observed = wholes.get(command)
        listed = _list_of(observed, lines.get(command, []))
        if listed is not None and observed is not None:
            for value in lines[command]:
                part = observed.fields[listed]
                part.items = part.items or Observed()
                part.items.add(value, listed)
        elif lines.get(command):
            observed = observed or Observed()
            for value in lines[command]:
                observed.add(value)
        assert observed is not None  # noqa: S101 - one of the two has the command
        old = shapes.get(command)
        schema = widen((old or {}).get("schema", {}), observed.schema())
        shapes[command] = {"version": 1 if old is None else old["version"], **(old or {}), "schema": schema}
        listed = listed or (old or {}).get("lines")
        if listed:
            shapes[command]["lines"] = listed
    for command, observed in starts.items():
        row = shapes.setdefault(command, {"version": 1})
        row["start"] = widen(row.get("start", {}), observed.schema())
    SHAPES.write_text(json.dumps(dict(sorted(shapes.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")


def _list_of(whole: Observed | None, lines: list[dict[str, Any]]) -> str | None:
    """Return the member of the one object whose elements --ndjson prints one by one, if there is one."""
    if whole is None or not lines or set(lines[0]) == set(whole.required or ()):
        return None
    lists = [name for name, part in whole.fields.items() if "array" in part.types]
    fitting = [
        name for name in lists if (items := whole.fields[name].items) is not None and set(lines[0]) & set(items.fields)
    ] or (lists if len(lists) == 1 else [])
    return fitting[0] if fitting and not set(lines[0]) <= set(whole.fields) else None


def page() -> str:
    """docs/json.md."""
    shapes: dict[str, dict[str, Any]] = json.loads(SHAPES.read_text("utf-8"))
    parts = [_HEAD, "## Errors\n\nOn standard error, one object on one line.\n\n", _table(ERROR)]
    for command in sorted(shapes):
        row = shapes[command]
        parts.append(f"\n## veen {command}\n\nVersion {row['version']}.")
        if row.get("lines"):
            parts.append(f" `--ndjson` prints one line for each element of `{row['lines']}`.")
        if "schema" in row:
            parts += ["\n\n", _table(row["schema"])]
        if "start" in row:
            parts += ["\n\nOn standard error, one line when it is ready:\n\n", _table(row["start"])]
    parts.append("\n## Commands without a shape\n\n| command | why |\n|---|---|\n")
    parts += [f"| `veen {command}` | {reason} |\n" for command, reason in sorted(FOREIGN.items())]
    return "".join(parts)


_HEAD: Final = """# JSON of every command

<!-- Written by tools/json_shapes.py from src/veen/cli/shapes.json: do not edit. -->

`--json` prints one object, `--ndjson` one object per line. `veen COMMAND --json-schema` prints the shape below as JSON
Schema, with a version. New fields may come at any time and change no version; a field that goes away, or changes its
type, raises it. Hashes, ids and keys are lower-case hex; the key of a hub is `ed25519:HEX` everywhere. Wire objects
(RECEIPT, CHECKPOINT) have named fields, and `veen verify` reads them in this form too. "?" marks a field that is not
always there; `[]` is an element of a list, `*` any name.

"""


def _table(schema: dict[str, Any]) -> str:
    rows = list(_rows(schema, ""))
    if not rows:
        return "Any object: what it holds is decided by what was asked.\n"
    lines = [f"| `{path}` | {kind} | {meaning} |" for path, kind, meaning in rows]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *lines]) + "\n"


def _rows(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    for name, part in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        optional = "" if name in schema.get("required", ()) else "?"
        yield here + optional, _kind(part), describe_field(name)
        yield from _rows(part, here)
        if isinstance(part.get("items"), dict):
            yield from _rows(part["items"], f"{here}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        here = f"{path}.*" if path else "*"
        yield here, _kind(schema["additionalProperties"]), ""
        yield from _rows(schema["additionalProperties"], here)


_WORDS: Final = {
    _PATTERNS[0]: "hex, 64 digits",
    _PATTERNS[1]: "hex, 128 digits",
    _PATTERNS[2]: "ed25519:HEX",
    _PATTERNS[3]: "time, UTC",
}


def _kind(schema: dict[str, Any]) -> str:
    kinds = _types(schema)
    if not kinds:
        return "any"
    words = [_WORDS[schema["pattern"]] if kind == "string" and "pattern" in schema else kind for kind in kinds]
    if "array" in kinds and isinstance(schema.get("items"), dict):
        words[kinds.index("array")] = f"list of {_kind(schema['items'])}"
    return " or ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", type=Path, metavar="DIRECTORY", help="widen the shapes by recorded outputs")
    parser.add_argument("--check", action="store_true", help="exit 1 unless docs/json.md is current")
    options = parser.parse_args()
    if options.merge:
        merge(options.merge)
    if options.check:
        if PAGE.read_text("utf-8") == page():
            return 0
        print("docs/json.md is not current: run python tools/json_shapes.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
