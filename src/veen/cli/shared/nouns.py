"""Nouns of overlays and their verbs, as a table: what each verb takes, and the function that drafts or shows.

::

    kv = Noun("kv", "Values by key over a stream.", takes=[argument("stream", type=STREAM)])

    @kv.write("put", "Set the value of a key.", argument("key"), argument("value"))
    def _put(session: CliSession, stream: str, key: str, value: str) -> Outgoing:
        \"\"\"Set KEY of STREAM to VALUE. (This is the help of the command.)\"\"\"
        from veen.overlays.kv import put
        return Outgoing(stream, lambda: put(key, value), {"stream": stream, "key": key})

    @kv.read("list", "All keys and values.")
    def _list(session: CliSession, stream: str, view: View) -> None: ...

A verb that writes gets `--cap`, one that reads `--as-of` and `--no-cache`, both the options of output, hub and
identity. Commands are made when they are asked for: listing them, for help and TAB, costs nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup, Table
from veen.cli.shared.as_of import view_options
from veen.cli.shared.authority import CAP
from veen.cli.shared.command import CliSession, client_options, several
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import drafted, make_keys, send_draft, tell, tell_counted

if TYPE_CHECKING:
    from veen.client.send.writing import Sent
    from veen.overlays.framework.body import Draft
    from veen.overlays.framework.fold import AnyFold

Parameter = Callable[[Any], Any]  # a decorator of click, or several of them in one


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that a verb sends, and what the command prints about it."""

    stream: str
    draft: "Callable[[], Draft]"  # a FormatError of it is a usage error: nothing was sent
    facts: "Mapping[str, Any] | Callable[[Sent], Mapping[str, Any]]"
    fold: "Callable[[], AnyFold] | None" = field(default=None, kw_only=True)  # decides whether the message counts
    streams: Sequence[str] = field(default=(), kw_only=True)  # folded together; default: the stream of the message
    after: Callable[[Any], Mapping[str, Any]] = field(default=lambda state: {}, kw_only=True)  # facts of the new state
    make_keys: bool = field(default=False, kw_only=True)
    check: "Callable[[Draft], None]" = field(default=lambda draft: None, kw_only=True)  # called before anything is sent
    follow_up: str | None = field(default=None, kw_only=True)  # the command that a person is likely to run next
    by_name: bool = field(default=False, kw_only=True)  # it names the identity: the client key is bound to it first


Build = Callable[..., Outgoing | Iterable[Outgoing]]


class Noun(LazyGroup):
    """A group whose commands are the verbs of one noun.

    `takes` are the parameters before those of each verb; `writes` and `reads` follow them. `others` are commands of
    their own.
    """

    def __init__(
        self,
        name: str,
        about: str,
        *,
        takes: Sequence[Parameter] = (),
        writes: Sequence[Parameter] = (),
        reads: Sequence[Parameter] = (view_options,),
        others: Table | None = None,
    ) -> None:
        super().__init__(name, help=about, table=others)
        self._rows: dict[str, Callable[[], click.Command]] = {}
        self._takes, self._writes, self._reads = takes, writes, reads

    def write(self, verb: str, short: str, *parameters: Parameter, text: str | None = None) -> Callable[[Build], Build]:
        """Add a verb that sends what the function returns."""

        def add(build: Build) -> Build:
            def run(output: Output, session: CliSession, cap: Path | None, **values: Any) -> None:
                outgoing = build(session, **values)
                for message in [outgoing] if isinstance(outgoing, Outgoing) else outgoing:
                    _send(session, message, cap)

            self._add(verb, short, run, text or build.__doc__, [*self._takes, *parameters, *self._writes, CAP])
            return build

        return add

    def read(
        self, verb: str, short: str, *parameters: Parameter, text: str | None = None
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a verb that shows something of a state."""

        def add(show: Callable[..., None]) -> Callable[..., None]:
            def run(output: Output, session: CliSession, **values: Any) -> None:
                show(session, **values)

            self._add(verb, short, run, text or show.__doc__, [*self._takes, *parameters, *self._reads])
            return show

        return add

    def _add(
        self, verb: str, short: str, run: Callable[..., None], text: str | None, parameters: Sequence[Parameter]
    ) -> None:
        def command() -> click.Command:
            return click.command(verb, help=text)(several(*parameters)(client_options(run)))

        self.table[verb] = ("", short)
        self._rows[verb] = command

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._rows[cmd_name]() if cmd_name in self._rows else super().get_command(ctx, cmd_name)


def _send(session: CliSession, message: Outgoing, cap: Path | None) -> None:
    draft = drafted(message.draft)
    if message.make_keys:
        make_keys(session, message.stream)
    message.check(draft)
    sent = send_draft(session, message.stream, draft, cap, by_name=message.by_name)
    facts = message.facts(sent) if callable(message.facts) else message.facts
    if message.fold is None:
        tell(session.output, sent, facts)
    else:
        tell_counted(session, sent, facts, message.fold(), message.streams or [message.stream], message.after)
    if message.follow_up is not None:
        session.output.next(message.follow_up)
