"""Sending of drafts and showing of states, for the commands of overlays.

A command that writes sends a draft and, where the fold may refuse an event, reads the log again and checks the
message's effect: exit code 6 and the code of the violation if it has none. A command that reads folds (`folding`) and
shows a part of the state. Nothing heavy is imported before a command runs.

Values of overlays: from the command line into bodies, and from states into JSON and onto the screen.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.as_of import View
from veen.cli.shared.authority import authority
from veen.cli.shared.command import CliSession
from veen.cli.shared.output import Exit, Fail, Mode, Output
from veen.cli.shared.people import show_table
from veen.cli.shared.text import short
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded
    from veen.client.send.writing import Sent
    from veen.overlays.framework.fold import AnyFold
    from veen.overlays.framework.schema import Draft

F = TypeVar("F", bound=Callable[..., Any])

_MAX_VALUE: Final = 64 * 1024 * 1024  # more than any hub takes; its limits decide
_BINARY_FORMS: Final[Sequence[str]] = ("text", "hex")
_FORMS: Final[Sequence[str]] = (*_BINARY_FORMS, "json")


class _Hex32(click.ParamType[bytes]):
    """A msg_id, a client_id or another id: 64 hex digits."""

    name = "hex"

    def convert(self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        from veen.cli.shared.files import hex32

        return hex32(value)


HEX32: Final = _Hex32()


def value_options(name: str, *, binary: bool = False) -> Callable[[F], F]:
    """Let the argument `name` be text, JSON or hex, or standard input as "-"; with `binary` it becomes bytes."""

    def decorate(command: F) -> F:
        @click.option(
            "--format",
            "written",
            type=click.Choice(_BINARY_FORMS if binary else _FORMS),
            default="text",
            show_default=True,
            help=f"How {name.upper()} is written.",
        )
        @wraps(command)
        def run(*args: Any, written: str, **kwargs: Any) -> Any:
            if kwargs[name] is not None:
                kwargs[name] = _value(kwargs[name], written, binary=binary)
            return command(*args, **kwargs)

        return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters

    return decorate


def _value(text: str, form: str, *, binary: bool) -> Any:
    if text == "-":
        data = sys.stdin.buffer.read(_MAX_VALUE)
        if binary and form == "text":
            return data
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError as exc:
            raise click.UsageError("standard input is not UTF-8 text") from exc
    if form == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as exc:
            raise click.UsageError(f"{text!r} is not hex") from exc
    if form == "text":
        return text.encode("utf-8", "surrogateescape") if binary else text
    return json_value(text)


def json_value(text: str) -> Any:
    """Parse an argument as JSON."""
    try:
        return json.loads(text, parse_float=_no_float, parse_constant=_no_float)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"this is not JSON that can be sent: {exc}") from exc


def _no_float(text: str) -> Any:
    raise ValueError(f"{text}: bodies hold integers, no other numbers; write it as text or in a smaller unit")


def printable(data: bytes) -> str:
    """Return printable UTF-8 as text, other bytes as hex:…."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return text if text.isprintable() else f"hex:{data.hex()}"


T = TypeVar("T")


# --- writing ---------------------------------------------------------------------------------------------------


def drafted(make: "Callable[[], T]") -> T:
    """Return a draft. Raise a usage error with the code of the rule that it breaks: nothing was sent."""
    from veen.core.errors import FormatError

    try:
        return make()
    except FormatError as exc:
        code = getattr(exc, "code", None)
        raise Fail(
            code if isinstance(code, str) else "E.USAGE",
            "this cannot be sent",
            str(exc),
            "change the value; see the help of the command",
            exit_code=Exit.USAGE,
        ) from exc


def send_draft(
    session: CliSession, stream: Any, draft: "Draft", cap: Path | None = None, *, by_name: bool = False
) -> "Sent":
    """Send a draft with the capability that the hub asks for.

    `by_name` is true for a message that names the identity in use: its client key is bound to it in the stream first.
    """
    client = session.client()
    if isinstance(stream, str):
        session.make_stream_keys(stream)
    token = authority(session, stream, cap)
    with session.output.progress("sending"):
        if by_name:
            client.run(lambda client: client.speak(stream, capability=token, by_name=True))
        sent = client.send(
            stream,
            draft.body,
            schema=draft.schema,
            parent=draft.parent_id,
            expires_at=draft.expires_at,
            capability=token,
        )
    if isinstance(stream, str):
        session.remember_stream(stream)
    return sent


def tell(output: Output, sent: "Sent", facts: Mapping[str, Any], *, counted: bool | None = None) -> None:
    """Print the result of a command that wrote: the facts of the overlay and the place of the message."""
    place = {
        "seq": sent.seq,
        "msg_id": sent.msg_id.hex(),
        "label": sent.label.hex(),
        "mmr_root": sent.root.hex(),
        "hub_ts": sent.receipt.hub_ts,
        "verified": True,
    }
    data = {**plain(facts), **place, **({} if counted is None else {"counted": counted})}

    def human() -> None:
        if output.mode is Mode.PLAIN:
            output.fields(data.items())
            return
        output.fields([*plain(facts).items(), ("accepted", f"seq {sent.seq}, receipt verified")])
        output.fields([("msg_id", sent.msg_id.hex()), ("root", short(sent.root))])

    output.result(data, human)


def tell_counted(
    session: CliSession,
    sent: "Sent",
    facts: Mapping[str, Any],
    fold: "AnyFold",
    streams: Sequence[Any],
    after: "Callable[[Any], Mapping[str, Any]]",
) -> None:
    """Print the result as `tell` does, with the message's effect. Raise Fail with the code of a violation.

    `after` tells facts of the state after it. Who cannot read the stream cannot know: the message is in the log, and
    readers will judge it.
    """
    from veen.cli.shared.folding import fold_streams
    from veen.client.errors import NoReaderKey

    try:
        folded = fold_streams(session, fold, streams)
    except NoReaderKey:
        session.output.note("no read key for this stream: readers of it will see whether the message counts")
        tell(session.output, sent, facts)
        return
    issue = folded.issue_at(sent.label, sent.seq)
    if issue is not None:
        raise Fail(
            issue.code,
            f"the message is in the log at {sent.seq} and has no effect",
            issue.what,
            f"look at the state, then send another message: veen explain {issue.code}",
            exit_code=Exit.POLICY,
        )
    tell(session.output, sent, {**facts, **after(folded.state)}, counted=True)


def make_keys(session: CliSession, stream: str) -> None:
    """Make keys for a stream that the keyring does not know, such as that of a new wallet."""
    from dataclasses import replace

    from veen.client.errors import UnknownStream
    from veen.client.identity.keyring import StreamKeys

    with session.home.lock(session.identity_name):
        keystore = session.keystore
        ring = keystore.secrets.keyring
        try:
            ring.readers(stream)
        except UnknownStream:
            keys = StreamKeys.create(stream, owner_pk=keystore.identity.id_sign_pk)
            keystore.save(replace(keystore.secrets, keyring=ring.with_keys(keys)))
            invite = f"veen invite {shlex.quote(stream)} --code"
            session.output.note(f"made the keys of {stream}; to let somebody else use it: {invite}")


# --- reading ---------------------------------------------------------------------------------------------------


def state_of(session: CliSession, fold: "AnyFold", streams: Sequence[Any], view: View) -> "Folded":
    """Fold for a person: expired values are gone now, unless another moment is given."""
    from veen.cli.shared.folding import fold_streams

    now = int(time.time()) if view.moment is None else None
    folded = fold_streams(session, fold, streams, moment=view.moment, at=now, keep=view.keep)
    for stream in streams:
        if isinstance(stream, str):
            session.remember_stream(stream)
    return folded


def derived_streams(session: CliSession) -> list[str]:
    """Return the readable streams without a name: overlays derive their ids from keys and ids.

    The streams of identities and wallets are hashes of their subjects, so they have no names.
    """
    ring = session.keystore.secrets.keyring
    return [f"hex:{keys.stream_id.hex()}" for keys in ring.entries if keys.name is None and keys.can_read]


def absent(what: str, hint: str) -> Fail:
    """Return the error for a name that the state does not have."""
    return Fail("E.ABSENT", f"there is no {what}", "the state that was folded does not hold it", hint)


def show_folded(session: CliSession, folded: "Folded", data: Mapping[str, Any], human: Callable[[], None]) -> None:
    """Print a part of a state; programs also get its basis, people a warning if something failed."""
    output = session.output

    def both() -> None:
        human()
        if output.mode is Mode.HUMAN and not output.quiet:
            tell_basis(output, folded)

    output.result({**plain(data), **plain(folded.about())}, both)


def show_rows(
    session: CliSession,
    folded: "Folded",
    name: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    headings: Sequence[str] = (),
) -> None:
    """Print rows as the list `name` of the JSON object, and some of their columns as a table; see `show_folded`."""
    cells = [[row[column] for column in columns] for row in rows]
    show_folded(session, folded, {name: rows}, lambda: show_table(session, headings or columns, cells))


def tell_basis(output: Output, folded: "Folded") -> None:
    """Print how far the log was read and the messages without effect, for people, on stderr."""
    upto = ", ".join(f"{short(cut.label)} up to {cut.upto_seq}" for cut in folded.cuts) or "an empty log"
    output.note(f"from {upto}; state_hash {short(folded.state_hash)}")
    if folded.issues:
        codes = sorted({issue.code for issue in folded.issues})
        output.note(f"{len(folded.issues)} messages have no effect: {', '.join(codes)}")
    if folded.unopened_count:
        output.note(f"{folded.unopened_count} entries could not be opened with the keys held")
