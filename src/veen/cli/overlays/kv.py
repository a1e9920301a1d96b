"""`veen kv`: values by key over a stream, the last writer wins (spec §11.4, D-84)."""

from typing import Final

from click import argument, option

from veen.cli.shared.as_of import View
from veen.cli.shared.command import CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, OneStream, index
from veen.cli.shared.overlay_commands import absent, show_folded, show_rows, state_of
from veen.cli.shared.text import compact
from veen.overlays.framework.plain import plain

_NOUN: Final = "veen.overlays.kv:kv"

kv: Final = NounGroup("kv", index()[_NOUN]["about"], takes=[argument("stream", type=STREAM)])
kv.declare(_NOUN, OneStream)
_KEY: Final = argument("key")


@kv.read("get", "Print the value of a key.", _KEY)
def _get(session: CliSession, stream: str, key: str, view: View) -> None:
    """Print the value of KEY in STREAM, now or as of a moment.

    \b
    veen kv get app/settings colour
    veen kv get app/settings colour --as-of 120
    veen kv get app/settings colour --as-of -15m
    """
    from veen.overlays.kv import KvFold

    folded = state_of(session, KvFold(), [stream], view)
    if key not in folded.state:
        raise absent(f"value under {key!r}", f"veen kv list {stream}")
    entry = plain(folded.state[key])
    text = entry["value"] if isinstance(entry["value"], str) else compact(entry["value"])
    show_folded(session, folded, {"key": key, **entry}, lambda: session.output.line(text))


@kv.read("list", "List all keys and values.", option("--prefix", default="", help="Prefix of the keys to list."))
def _list(session: CliSession, stream: str, prefix: str, view: View) -> None:
    """List all keys of STREAM with their values, now or as of a moment."""
    from veen.overlays.kv import KvFold

    folded = state_of(session, KvFold(), [stream], view)
    entries = [{"key": key, **plain(entry)} for key, entry in folded.state.items() if key.startswith(prefix)]
    show_rows(session, folded, "entries", entries, ("key", "value", "ts", "client_id"))
