"""Documented shapes of the --json output of every command: JSON Schema, one per command, with a version.

`shapes.json` has them. They are recorded from the outputs in the tests of the commands, merged by
`tools/json_shapes.py`, and every output in those tests is compared with them. A version rises when a field is removed
or changes its type; new fields do not raise it.

A command that runs until it is stopped also prints one line on standard error when it is ready; `start` is its shape.
"""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_VERSION: Final = 1

# Commands whose output is that of something else: why they have no shape of their own. A test names every other command
# without a shape.
FOREIGN: Final = {
    "shell": "each command of the script prints the JSON that is documented for it, one after the other",
    "spark shell": "it prints what the Python code that it is given prints",
}
_START: Final = "printed on standard error, in one line, when it is ready; it runs until it is stopped"

# What every command prints on standard error if it fails.
ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "stage": {"type": ["string", "null"]},
        "message": {"type": "string"},
        "cause": {"type": "string"},
        "hint": {"type": "string"},
        "request_id": {"type": ["string", "null"]},
        "exit": {"type": "integer"},
        "pending": {"type": "integer"},
    },
    "required": ["code", "stage", "message", "cause", "hint", "request_id", "exit"],
}

# What every command that verifies something prints beside `ok` (docs/verdicts.md); `Verdict.to_json` makes it.
VERDICT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "value": {"type": "string"},
        "compared": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "log": {"type": "string"},
                    "first": {"type": "integer"},
                    "read": {"type": "integer"},
                    "head": {"type": ["integer", "null"]},
                    "behind": {"type": "integer"},
                    "stated_by": {"type": "string"},
                    "identity": {"type": ["string", "null"]},
                    "signatures": {"type": "string"},
                },
                "required": ["log", "first", "read", "head", "behind", "stated_by", "identity", "signatures"],
            },
        },
        "reasons": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"because": {"type": "string"}, "text": {"type": "string"}},
                "required": ["because", "text"],
            },
        },
        "headline": {"type": "string"},
    },
    "required": ["value", "compared", "reasons", "headline"],
}

# The meaning of a field, wherever it stands: one name has one meaning in all commands.
_MEANINGS: Final = {
    "accepted": "how many messages the hub took, with receipts that verify",
    "attachments": "the files that travel with the message, or how many",
    "auth_ref": "the id of the capability token that the message was written with",
    "author": "who wrote it",
    "because": "the kind of the reason: evidence, coverage, policy, derived or effect",
    "headline": "the value of the verdict, with the level if not all signatures were verified",
    "signatures": "how many signatures were verified, or a number of them",
    "behind": "entries up to the stated head that were not compared",
    "body": "what the message says, if it is text",
    "body_hex": "what the message says, if it is no text",
    "bytes": "the size in bytes",
    "card_id": "the id of an identity card",
    "cause": "why",
    "checkpoint": "the CHECKPOINT with named fields",
    "checks": "what was checked, in words",
    "client_id": "the public key that signed the message",
    "client_seq": "the number of the message among those of this client key in this label",
    "code": "the code, for `veen explain`",
    "compared": "the logs that the verdict covers",
    "ct_hash": "the hash of the ciphertext",
    "data_dir": "the data directory of the hub",
    "dropped": "messages that were given up",
    "entries": "entries of the log, or how many",
    "epoch": "the epoch of the label; 0 where labels do not change with time",
    "error": "why the entry could not be opened, or the message not accepted; null if nothing is wrong",
    "exit": "the exit code of the command",
    "expires_at": "when readers may forget it, in seconds since 1970",
    "failed": "how many were not accepted",
    "hashes": "how many hashes the proof brings along",
    "hint": "what to do next",
    "hub": "the URL of the hub",
    "hub_id": "the id of the hub, which stays when its keys change",
    "hub_pk": "the key that the hub signs with, ed25519:HEX",
    "hub_pks": "keys of hubs, ed25519:HEX",
    "hub_sig": "the signature of the hub",
    "hub_ts": "the time of the hub, in seconds since 1970",
    "identity": "the name of the identity",
    "keys": "whether the keys were pinned",
    "kind": "what it is",
    "label": "what the hub sees of the stream: 32 bytes",
    "labels": "labels, or how many",
    "late": "whether an earlier command sealed it and got no answer",
    "leaf_hash": "the msg_id, as the tree has it",
    "line": "the line of the input",
    "message": "what happened",
    "mmr_root": "the root of the log after this entry",
    "mode": "how much the client remembers of the log: full or light",
    "msg_id": "the id of the message",
    "name": "the name",
    "ok": "true if and only if everything was compared and all checks hold",
    "parent_id": "the msg_id of the message that this one answers",
    "pending": "messages that are kept because they got no receipt",
    "proof": "the inclusion proof",
    "receipt": "the RECEIPT with named fields",
    "reasons": "the reasons why the verdict is not good",
    "request_id": "the id under which the hub logged the request",
    "root": "the root that the hub signed",
    "schema": "the id of the schema of the body",
    "seconds": "how long it took",
    "seq": "the position in the log, from 1",
    "stated_by": "who states the head of the log",
    "stage": "the stage of admission that refused",
    "stream": "the name of the stream",
    "stream_seq": "the position in the log, from 1",
    "time": "the time in UTC, ISO 8601",
    "tree_size": "how many entries the log has at the root",
    "ts": "the time of the entry, in seconds since 1970",
    "upto_seq": "how many entries the checkpoint is about",
    "url": "the URL",
    "ver": "the version of the wire format",
    "verdict": "good, bad or incomplete, and what was compared (docs/verdicts.md)",
    "verified": "whether this client verified it; a command that prints false, or fails, did not",
    "version": "the version of the program",
    "witness_sigs": "signatures of witnesses",
}


def describe_field(name: str) -> str:
    """Return the meaning of a field; empty where the name suffices."""
    return _MEANINGS.get(name, "")


@lru_cache(maxsize=1)
def shapes() -> dict[str, dict[str, Any]]:
    """Return by command its recorded shape: `version`, `schema`, `start`, and `lines`, the elements of --ndjson."""
    text = files("veen.cli").joinpath("shapes.json").read_text("utf-8")
    recorded: dict[str, dict[str, Any]] = json.loads(text)
    return recorded


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema of `veen COMMAND --json`; for a command in FOREIGN, anything.

    A command that prints only the line of its start has the schema of that line.
    """
    row = shapes().get(command)
    head = {
        "$schema": _DIALECT,
        "$id": f"veen:json:{command.replace(' ', ':')}:{_VERSION if row is None else row['version']}",
        "title": f"veen {command} --json",
    }
    if row is None:
        return {**head, "description": FOREIGN.get(command, "a command of an installed package")}
    start = _describe(row["start"]) if "start" in row else None
    if "schema" not in row:
        return {**head, "description": _START, **(start or {})}
    more: dict[str, Any] = {}
    if row.get("lines"):
        more["x-ndjson"] = f"one line for each element of {row['lines']}"
    if start is not None:
        more["x-start"] = {"description": _START, **start}
    return {**head, **_describe(row["schema"]), **more}


def _describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the meaning of every field that has one."""
    schema = dict(schema)
    if "properties" in schema:
        schema["properties"] = {
            name: {**({"description": meaning} if (meaning := describe_field(name)) else {}), **_describe(part)}
            for name, part in schema["properties"].items()
        }
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            schema[inner] = _describe(schema[inner])
    return schema
