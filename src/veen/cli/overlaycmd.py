"""What the commands of overlays share: drafts to the hub, states to the screen.

A command that writes sends a draft and, where the fold may refuse an event, reads the log again and tells whether the
message counted: exit code 6 and the code of the violation if not. A command that reads folds (`veen.cli.folding`) and
shows a part of the state. Nothing heavy is imported before a command runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from veen.cli.asof import View
from veen.cli.authority import CAP, authority
from veen.cli.clictx import Session
from veen.cli.output import Exit, Fail, Mode, Output
from veen.cli.overlayvalues import plain
from veen.cli.text import short

if TYPE_CHECKING:
    from veen.cli.folding import Folded
    from veen.client.writing import Sent
    from veen.overlays.body import Draft
    from veen.overlays.fold import AnyFold

__all__ = [
    "absent",
    "derived_streams",
    "drafted",
    "make_keys",
    "send_draft",
    "show_folded",
    "state_of",
    "tell",
    "tell_counted",
    "write_options",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


# --- writing ---------------------------------------------------------------------------------------------------


def write_options(command: F) -> F:
    """What every command that sends takes."""
    decorated: F = CAP(command)
    return decorated


def drafted(make: "Callable[[], T]") -> T:
    """A draft, or a usage error with the code of the rule that it breaks: nothing was sent."""
    from veen.core.errors import FormatError

    try:
        return make()
    except FormatError as exc:
        code = getattr(exc, "code", None)
        raise Fail(
            Exit.USAGE,
            "this cannot be sent",
            str(exc),
            "change the value; the help of the command says what it takes",
            code if isinstance(code, str) else "E.USAGE",
        ) from exc


def send_draft(session: Session, stream: Any, draft: "Draft", cap: Path | None = None) -> "Sent":
    """Send what an overlay has drafted, with the capability that the hub asks for."""
    client = session.client()
    token = authority(session, stream, cap)
    with session.output.progress("sending"):
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
    """The result of a command that has written: the facts of the overlay and the place of the message."""
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
    output: Output,
    session: Session,
    sent: "Sent",
    facts: Mapping[str, Any],
    fold: "AnyFold",
    streams: Sequence[Any],
    after: "Callable[[Any], Mapping[str, Any]]" = lambda state: {},
) -> None:
    """As `tell`, once the log has told whether the message counts; Fail with the code of the violation if not.

    `after` tells facts of the state after it. Who cannot read the stream cannot know: the message is in the log, and
    readers will judge it.
    """
    from veen.cli.folding import fold_streams
    from veen.client.errors import NoReaderKey

    try:
        found = fold_streams(session, fold, streams)
    except NoReaderKey:
        output.note("whether it counts is for readers to say: the keyring cannot read this stream")
        tell(output, sent, facts)
        return
    issue = found.issue_at(sent.label, sent.seq)
    if issue is not None:
        raise Fail(
            Exit.POLICY,
            f"the message is in the log at {sent.seq} and counts for nothing",
            issue.what,
            f"see what the state is now, then send another: veen explain {issue.code}",
            issue.code,
        )
    tell(output, sent, {**facts, **after(found.state)}, counted=True)


def make_keys(session: Session, stream: str) -> None:
    """Keys for a stream that the keyring does not know, such as one that belongs to a new wallet."""
    from dataclasses import replace

    from veen.client.errors import UnknownStream
    from veen.client.keyring import StreamKeys

    with session.home.lock(session.identity_name):
        keystore = session.keystore
        ring = keystore.secrets.keyring
        try:
            ring.readers(stream)
        except UnknownStream:
            keystore.save(replace(keystore.secrets, keyring=ring.with_keys(StreamKeys.create(stream))))
            session.output.note(f"made the keys of {stream}; others get them by: veen id keyring share {stream} --read")


# --- reading ---------------------------------------------------------------------------------------------------


def state_of(session: Session, fold: "AnyFold", streams: Sequence[Any], view: View) -> "Folded":
    """The state for a person: what has expired by now is gone, unless another moment is asked for."""
    from veen.cli.folding import fold_streams

    found = fold_streams(session, fold, streams, moment=view.moment, at=_now(view), keep=view.keep)
    for stream in streams:
        if isinstance(stream, str):
            session.remember_stream(stream)
    return found


def _now(view: View) -> int | None:
    return int(time.time()) if view.moment is None else None


def derived_streams(session: Session) -> list[str]:
    """The streams that we can read and that have no name: those whose ids overlays derive from keys and ids.

    The streams of identities and wallets are hashes of what they are about; nobody could name them.
    """
    ring = session.keystore.secrets.keyring
    return [f"hex:{one.stream_id.hex()}" for one in ring.entries if one.name is None and one.can_read]


def absent(what: str, hint: str) -> Fail:
    """The state holds nothing of this name."""
    return Fail(Exit.LOCAL, f"there is no {what}", "the state that was folded does not hold it", hint, "E.ABSENT")


def show_folded(output: Output, folded: "Folded", data: Mapping[str, Any], human: Callable[[], None]) -> None:
    """A part of a state with what it rests on: programs get all, people the state and a warning if something failed."""

    def both() -> None:
        human()
        if output.mode is Mode.HUMAN and not output.quiet:
            tell_basis(output, folded)

    output.result({**plain(data), **plain(folded.about())}, both)


def tell_basis(output: Output, folded: "Folded") -> None:
    """For people, on stderr: how far the log was read, and what counted for nothing."""
    upto = ", ".join(f"{short(cut.label)} up to {cut.upto_seq}" for cut in folded.cuts) or "an empty log"
    output.note(f"from {upto}; state_hash {short(folded.state_hash)}")
    if folded.issues:
        codes = sorted({issue.code for issue in folded.issues})
        output.note(f"{len(folded.issues)} messages count for nothing: {', '.join(codes)}")
    if folded.unopened_count:
        output.note(f"{folded.unopened_count} entries could not be opened with the keys held")
