"""Entries of a stream in the output of commands: one set of names for JSON, `--format` and columns."""

import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.text import cell, short

if TYPE_CHECKING:
    from veen.client.read.reading import Entry
    from veen.client.verify.pin import HubPin

COLUMNS: Final = ("seq", "time", "author", "body")
WITH_PROOF: Final = ("seq", "time", "author", "proof", "body")  # for people: what may be long comes last
WIDTHS: Final = (4, 20, 9, 4)
FIELDS: Final = (
    "seq", "epoch", "label", "msg_id", "client_id", "client_seq", "hub_ts", "ts", "time", "schema", "parent_id",
    "auth_ref", "expires_at", "body", "body_hex", "attachments", "error", "mmr_root", "author", "author_kind",
)  # fmt: skip


def when(seconds: int) -> str:
    """Format a time of the hub. A time beyond the calendar stays a number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def data_of(entry: "Entry", *, with_proof: bool = False) -> dict[str, Any]:
    """Return all that is known of an entry. `body` is its text; if it is not text, `body_hex` has the bytes."""
    from veen.client.read.frames import row_of

    row = row_of(entry)
    body = row.pop("body")
    data = {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}
    data["time"] = when(entry.ts)
    data["body"], data["body_hex"] = (None, None) if body is None else _text(body)
    data["attachments"] = [attachment.to_json() for attachment in entry.attachments]
    data |= {"author": None, "author_kind": "unknown"}  # who it is says `veen.cli.shared.people`
    data = {name: data[name] for name in FIELDS}
    if with_proof:
        from veen.cli.shared.wire_tree import to_named

        data |= {"receipt": to_named(entry.receipt), "proof": entry.proof.to_json() if entry.proof else None}
    return data


def _text(body: bytes) -> tuple[str | None, str | None]:
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, body.hex()


def cells_of(entry: "Entry", data: Mapping[str, Any], *, human: bool, with_proof: bool = False) -> Sequence[Any]:
    """Return the cells of an entry, short for people and complete in a pipe.

    `?` marks an unknown author, `former` a key whose binding had ended at the entry. An entry without body states the
    reason.
    """
    author = data["author"] or f"?{short(entry.msg.client_id) if human else data['client_id']}"
    if data["author_kind"] == "former":
        author += " (former)"
    row = [data["seq"], data["time"], author, _shown(data)]
    if with_proof and entry.proof is not None:
        hashes = len(entry.proof.path) + len(entry.proof.peaks_after)
        unit = "hash" if hashes == 1 else "hashes"
        proof = f"{hashes} {unit} to {short(entry.receipt.mmr_root) if human else data['mmr_root']}"
        row.insert(WITH_PROOF.index("proof") if human else len(row), proof)
    return row


def summary_line(first: "Entry", last: "Entry", count: int, pin: "HubPin") -> str:
    """Return the line that names the verified entries and the key that signed them."""
    entries = "1 entry" if count == 1 else f"{count} entries"
    hub = f"ed25519:{short(pin.identity.current.hub_pk)}"
    root = short(last.receipt.mmr_root)
    return (
        f"verified  {entries}, {first.seq} to {last.seq}: signed by their authors, in the order"
        f" and under the root {root} that hub {hub} signed"
    )


def _shown(data: Mapping[str, Any]) -> str:
    if data["error"] is not None:
        return f"[{data['error']}]"
    if data["body"] is None and data["body_hex"] is None:
        return "[sealed]"
    if data["body_hex"] is not None and data["schema"] is not None:
        from veen.client.generations.records import KEY_SCHEMAS, describe
        from veen.core.objects.speaking import SPEAKING_SCHEMAS, describe_statement

        if (schema := bytes.fromhex(data["schema"])) in KEY_SCHEMAS:
            return f"[{describe(schema, bytes.fromhex(data['body_hex']))}]"
        if schema in SPEAKING_SCHEMAS:
            return f"[{describe_statement(schema, bytes.fromhex(data['body_hex']))}]"
    text = data["body"] if data["body"] is not None else f"hex:{data['body_hex']}"
    names = [
        str(attachment.get("name") or f"attachment {number}") for number, attachment in enumerate(data["attachments"])
    ]
    return f"{text}  [{', '.join(names)}]" if names else str(text)


# --- --format --------------------------------------------------------------------------------------------------


def parse_format(text: str) -> list[tuple[str, str | None]]:
    """Split `{seq} {body}` into pieces of text and names. Allow plain names only, which reach no attributes."""
    try:
        parts = list(string.Formatter().parse(text.replace("\\t", "\t").replace("\\n", "\n")))
    except ValueError as exc:
        raise click.UsageError(f"--format {text!r}: {exc}") from exc
    for _, name, spec, conversion in parts:
        if name is not None and (name not in FIELDS or spec or conversion):
            raise click.UsageError(f"--format: there is no field {{{name}}}; there are {', '.join(FIELDS)}")
    return [(before, name) for before, name, _, _ in parts]


def line_of(parts: Sequence[tuple[str, str | None]], data: Mapping[str, Any]) -> str:
    """Format one entry. Text of the author cannot control the terminal; that of the format can."""
    return "".join(before + (cell(data[name]) if name is not None else "") for before, name in parts)
