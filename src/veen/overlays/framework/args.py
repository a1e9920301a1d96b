"""The values that a command takes, and what help and TAB show of it: all that is loaded to answer them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

# Kinds of values that every overlay has. A place adds its own, such as the accounts of a realm.
KINDS: Final[Mapping[str, str]] = {
    "text": "a text",
    "identity": "`me`, a card (veen1…), a contact or a key in hex: an identity",
    "reference": "64 hex digits: a msg_id, an auth_ref or another id",
    "uint": "a number from 0 to 2**64 - 1",
    "time": "seconds since 1970, ISO 8601, or +30d",
    "span": "seconds, or 10m",
    "json": "a JSON value",
    "object": "a JSON object",
    "value": "text, or JSON or hex by --format; - is standard input",
    "bytes": "the same as bytes: text, or hex by --format",
    "raw": "a text, as bytes",
    "integer": "a number from -2**64 to 2**64 - 1",
    "nonce": "16 random bytes: no parameter",
    "flag": "an option without a value",
}


class Arg(NamedTuple):
    """One value that a person gives: an argument of the command, or an option if it has a help text."""

    kind: str = "text"
    help: str = ""
    option: str | None = None  # default: the name of the value, as an option
    word: str | None = None  # the name of an argument; default: that of the value
    metavar: str | None = None
    required: bool | None = None  # default: an argument that takes one value is, others are not
    many: bool = False
    choices: Sequence[str] = ()
    default: Any = None
    own: bool = False  # absent: that of the identity in use


class Face(NamedTuple):
    """Help and arguments of a command, as help and TAB show them."""

    help: str  # one line, in the list of the group
    text: str
    args: Mapping[str, Arg]

    def to_json(self) -> dict[str, Any]:
        """Return the face as JSON, without values that are defaults."""
        defaults = Arg._field_defaults
        args = {
            name: {key: value for key, value in arg._asdict().items() if value != defaults[key]}
            for name, arg in self.args.items()
        }
        return {"help": self.help, "text": self.text, "args": args}

    @classmethod
    def from_json(cls, face: Mapping[str, Any]) -> "Face":
        return cls(face["help"], face["text"], {name: Arg(**arg) for name, arg in face["args"].items()})
