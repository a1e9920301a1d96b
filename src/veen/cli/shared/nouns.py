"""The commands of nouns: those that overlays declare (`veen.overlays.framework.nouns`), and others written beside them.

::

    kv = NounGroup("kv", "Values by key over a stream.", takes=[argument("stream", type=STREAM)])
    kv.declare("veen.overlays.kv:KV_NOUN", OneStream)

    @kv.read("get", "Print the value of a key.", argument("key"))
    def _get(session: CliSession, stream: str, key: str, view: View) -> None:
        \"\"\"Print the value of KEY in STREAM. (This is the help of the command.)\"\"\"

A verb that writes gets `--cap`, one that reads `--as-of` and `--no-cache`, both the options of output, hub and
identity. Commands are made when they are asked for. Help and TAB read `index.json`, which `tools/command_index.py`
writes from the declarations: overlays are imported when a command runs.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from veen.cli.lazy import LazyGroup, Table, load
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.authority import CAP
from veen.cli.shared.command import CliSession, client_options, several
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import (
    HEX32,
    absent,
    drafted,
    json_value,
    make_keys,
    send_draft,
    show_folded,
    state_of,
    tell,
    tell_counted,
    value_options,
)
from veen.cli.shared.people import principal_of, show_table
from veen.cli.shared.values import MOMENT, SPAN
from veen.overlays.framework.args import Arg, Face
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded
    from veen.client.send.writing import Sent
    from veen.overlays.framework.fold import AnyFold
    from veen.overlays.framework.nouns import Message, Noun, Verb
    from veen.overlays.framework.registry import Overlay
    from veen.overlays.framework.schema import Draft

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


class NounGroup(LazyGroup):
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
                    send(session, message, cap)

            around = (*self._writes, CAP)
            self._add(verb, short, run, text or build.__doc__, lambda: [*self._takes, *parameters, *around])
            return build

        return add

    def read(
        self, verb: str, short: str, *parameters: Parameter, text: str | None = None
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a verb that shows something of a state."""

        def add(show: Callable[..., None]) -> Callable[..., None]:
            def run(output: Output, session: CliSession, **values: Any) -> None:
                show(session, **values)

            self._add(verb, short, run, text or show.__doc__, lambda: [*self._takes, *parameters, *self._reads])
            return show

        return add

    def declare(
        self,
        noun: "str | Noun",
        place: "MakePlace",
        *,
        list_text: str = "{}",
        show_text: str = "{}",
        more: "Callable[[str], Sequence[Parameter]]" = lambda verb: (),
        write: Callable[..., None] | None = None,
    ) -> None:
        """Add the commands of a noun, which is given as "module:name" where the index knows it.

        `place` takes from the values of a command those that say where it acts. The texts go around the help of `list`
        and `show`. `more` are further options of a verb, for which `write` runs it in place of `write_message`.
        """
        faces = (
            {name: Face.from_json(face) for name, face in index()[noun]["commands"].items()}
            if isinstance(noun, str)
            else noun.faces()
        )
        for name, face in faces.items():
            views: dict[str, Callable[..., None]] = {"list": _run_list, "show": _run_show}
            run = views.get(name) or partial(write or write_message, name)
            text = {"list": list_text, "show": show_text}.get(name, "{}").format(face.text)
            around = self._reads if name in views else (*more(name), *self._writes, CAP)
            parameters = partial(_parameters, self._takes, face, around)
            self._add(name, face.help, partial(run, noun, place), text, parameters)

    def _add(
        self,
        verb: str,
        short: str,
        run: Callable[..., None],
        text: str | None,
        parameters: Callable[[], Sequence[Parameter]],
    ) -> None:
        def command() -> click.Command:
            return click.command(verb, help=text)(several(*parameters())(client_options(run)))

        self.table[verb] = ("", short)
        self._rows[verb] = command

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._rows[cmd_name]() if cmd_name in self._rows else super().get_command(ctx, cmd_name)


def send(session: CliSession, message: Outgoing, cap: Path | None) -> None:
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


# --- nouns that overlays declare ----------------------------------------------------------------------------------

_INDEX: Final = Path(__file__).parents[1] / "index.json"
_TYPES: Final[Mapping[str, Any]] = {
    "reference": HEX32,
    "integer": click.IntRange(-(1 << 64), (1 << 64) - 1),
    "uint": click.IntRange(0, (1 << 64) - 1),
    "time": MOMENT,
    "span": SPAN,
    "stream": STREAM,
    "terms": click.Path(exists=True, dir_okay=False),
}
_METAVARS: Final = {
    "identity": "IDENTITY",
    "speaker": "IDENTITY",
    "account": "ACCOUNT",
    "id": "ID",
    "json": "JSON",
    "object": "JSON",
}
MAKE_KEYS: Final = click.option(
    "--make-keys", "keys", is_flag=True, help="Make the keys of the stream, if there are none."
)
_AS_GIVEN: Final = frozenset(("text", "integer", "reference", "uint", "time", "span", "flag", "value", "bytes"))
_NO_PARAMETER: Final = frozenset(("clock", "nonce", "realm"))  # the place knows them, or nobody


class CommandPlace(Protocol):
    """Streams that a command reads and writes, and the rules of its fold."""

    def fold(self, session: CliSession) -> "AnyFold": ...

    def streams(self, session: CliSession) -> list[str]:
        """Return the streams that are folded together."""

    def stream_of(self, message: "Message") -> str:
        """Return the stream that a message belongs to."""

    def value(self, session: CliSession, kind: str, text: Any) -> Any:
        """Return the value of a kind that only this place has; of None: that of the identity in use."""


MakePlace = Callable[[Any, dict[str, Any]], CommandPlace]  # of a Noun, and the values of a command


class OneStream:
    """The stream that a command names."""

    def __init__(self, noun: "Noun", values: dict[str, Any]) -> None:
        self._noun = noun
        self.stream: str = values.pop("stream")

    def fold(self, session: CliSession) -> "AnyFold":
        return self._noun.fold()

    def streams(self, session: CliSession) -> list[str]:
        return [self.stream]

    def stream_of(self, message: "Message") -> str:
        return self.stream

    def value(self, session: CliSession, kind: str, text: Any) -> Any:
        raise ValueError(f"there is no kind {kind!r}")


@cache
def index() -> dict[str, Any]:
    """Return what help shows of nouns and their commands, by "module:name" of the declaration."""
    nouns: dict[str, Any] = json.loads(_INDEX.read_text("utf-8"))
    return nouns


def _parameters(takes: Sequence[Parameter], face: Face, around: Sequence[Parameter]) -> list[Parameter]:
    return [*takes, *(parameter for arg in face.args.items() for parameter in parameters_of(*arg)), *around]


def parameters_of(name: str, arg: Arg) -> list[Parameter]:
    """Return the parameters of click for one value of a verb."""
    if arg.kind in _NO_PARAMETER:
        return []
    kind = click.Choice(arg.choices) if arg.choices else _TYPES.get(arg.kind, str)
    if not arg.help:
        required, nargs = not arg.many if arg.required is None else arg.required, -1 if arg.many else 1
        argument = click.argument(arg.word or name, type=kind, nargs=nargs, required=required, metavar=arg.metavar)
        is_value = arg.kind in ("value", "bytes")
        return [argument, value_options(arg.word or name, binary=arg.kind == "bytes")] if is_value else [argument]
    spelling = _spelling(name, arg)
    if arg.kind == "flag":
        default = None if "/" in spelling else False
        return [click.option(spelling, name, is_flag=True, default=default, help=arg.help)]
    metavar = arg.metavar or _METAVARS.get(arg.kind)
    more = {} if arg.default is None else {"default": arg.default, "show_default": bool(arg.default)}
    return [
        click.option(
            spelling,
            name,
            type=kind,
            multiple=arg.many,
            required=bool(arg.required),
            metavar=metavar,
            help=arg.help,
            **more,
        )
    ]


def _spelling(name: str, arg: Arg) -> str:
    """Return what a person writes for a value: the name of an argument, or an option."""
    return arg.option or (f"--{name.replace('_', '-')}" if arg.help else (arg.word or name).upper())


def values_of(session: CliSession, place: CommandPlace, verb: "Verb", given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a verb, by their names, from what was given on the command line."""
    by_name = {name: given.get(arg.word or name) for name, arg in verb.args.items()}
    options = {name: _spelling(name, verb.args[name]) for name in (*verb.any_of, *verb.one_of)}
    count = [name for name in options if by_name[name] not in (None, (), False)]
    if verb.any_of and not count:
        raise click.UsageError(f"give {' or '.join(options.values())}")
    if verb.one_of and len(count) > 1:
        raise click.UsageError(f"give one of {' and '.join(options.values())}")
    return {name: _value(session, place, verb.args[name], value) for name, value in by_name.items()}


def _value(session: CliSession, place: CommandPlace, arg: Arg, value: Any) -> Any:
    if arg.many:
        items = tuple(_item(session, place, arg.kind, item) for item in value)
        return (tuple(sorted(set(items))) if arg.kind == "stream" else items) or None
    if value is None and not arg.own and arg.kind not in _NO_PARAMETER:
        return None
    return _item(session, place, arg.kind, value)


def _item(session: CliSession, place: CommandPlace, kind: str, value: Any) -> Any:
    if kind in _AS_GIVEN:
        return value
    if kind == "raw":
        return value.encode("utf-8", "surrogateescape")
    if kind == "nonce":
        return os.urandom(16)
    if kind == "identity":
        return principal_of(session, value)
    if kind in ("json", "object"):
        data = json_value(value)
        if kind == "object" and type(data) is not dict:
            raise click.UsageError(f"{value!r} is no JSON object")
        return data
    return place.value(session, kind, value)


def message_of(session: CliSession, place: CommandPlace, verb: "Verb", given: Mapping[str, Any]) -> "Message":
    """Return the message of a verb; a usage error if its body does not allow the values."""
    values, now = values_of(session, place, verb, given), int(time.time())
    if verb.repeat is not None:
        state = state_of(session, place.fold(session), place.streams(session), View(None, keep=True)).state
        earlier = verb.repeat(state, values, session.client().client_id)
        if earlier is None:
            raise absent(verb.missing.format_map(values), _list_of(click.get_current_context()))
        values |= {**earlier, "ts": max(now, earlier["ts"]), "expires_at": now - 1}
    return drafted(lambda: verb.message(values, now))


def _list_of(context: click.Context) -> str:
    """Return the command that lists what the command of a context did not find."""
    names = [parameter.name for parameter in context.command.params if isinstance(parameter, click.Argument)]
    stream = [context.params["stream"]] if "stream" in names else []
    return " ".join([context.command_path.rpartition(" ")[0], "list", *stream])


def noun_of(noun: "str | Noun") -> "Noun":
    if not isinstance(noun, str):
        return noun
    module, _, name = noun.partition(":")
    declared: Noun = load(f"{module}:NOUNS")[name]
    return declared


def facts_of(verb: "Verb", message: "Message", stream: str) -> dict[str, Any]:
    """Return what the command prints of a message, beside its place in the log."""
    values = {**message.values, "stream": stream}
    names = verb.facts if "stream" in verb.facts else (*verb.facts, "stream")
    return {name: values[name] for name in names if name in values}


def follow_up_of(verb: "Verb", message: "Message", stream: str) -> str | None:
    """Return the command that a person is likely to run next."""
    return verb.follow_up.format_map({**plain(message.values), "stream": stream}) or None


def write_message(
    name: str,
    noun: "str | Noun",
    make_place: MakePlace,
    output: Output,
    session: CliSession,
    /,
    *,
    cap: Path | None,
    keys: bool = False,
    **given: Any,
) -> None:
    """Run a verb: make its message, send it and say whether it counts."""
    declared = noun_of(noun)
    verb, place = declared.verb(name), make_place(declared, given)
    message = message_of(session, place, verb, given)
    stream = place.stream_of(message)
    facts = facts_of(verb, message, stream)
    fold = (lambda: place.fold(session)) if verb.is_judged else None
    follow_up = follow_up_of(verb, message, stream)
    outgoing = Outgoing(stream, lambda: message.draft, facts, fold=fold, make_keys=keys, follow_up=follow_up)
    send(session, outgoing, cap)


def _folded(session: CliSession, place: CommandPlace, view: View) -> "Folded":
    return state_of(session, place.fold(session), place.streams(session), view)


def _run_list(
    noun: "str | Noun", make_place: MakePlace, output: Output, session: CliSession, /, *, view: View, **given: Any
) -> None:
    declared = noun_of(noun)
    folded = _folded(session, make_place(declared, given), view)
    data, columns, rows = declared.list(folded.state, folded.as_of)
    show_folded(session, folded, data, lambda: show_table(session, columns, rows))


def _run_show(
    noun: "str | Noun",
    make_place: MakePlace,
    output: Output,
    session: CliSession,
    /,
    *,
    key: str,
    view: View,
    **given: Any,
) -> None:
    declared = noun_of(noun)
    folded = _folded(session, make_place(declared, given), view)
    rows = declared.rows(folded.state, folded.as_of)
    matches = [row for row in rows if key in [row[member] for member in declared.keys]]
    if not matches:
        raise absent(f"{declared.name} {key!r}", _list_of(click.get_current_context()))
    if len(matches) > 1:
        raise click.UsageError(f"{key!r} fits {len(matches)} of them: give the id")
    show_folded(session, folded, matches[0], lambda: output.fields(matches[0].items()))


# --- commands of other packages -----------------------------------------------------------------------------------


def installed(name: str) -> click.Command | None:
    """Return the command of an installed package: the nouns of an overlay, or what a product has under the name."""
    from importlib.metadata import entry_points

    for group in ("veen.overlays", "veen.products"):
        for point in entry_points(group=group, name=name):
            try:
                offer: Any = point.load()
                if group == "veen.overlays":
                    return group_of(offer) if offer.nouns else None
                if name not in offer.commands:
                    raise click.UsageError(
                        f"the entry point {point.name!r} is a product without a command of this name: an entry point"
                        f" has the name of a command, one of {', '.join(sorted(offer.commands))}"
                    )
                command: click.Command = load(offer.commands[name])
            except click.UsageError:
                raise
            except Exception as exc:  # foreign code may raise anything while it is imported
                raise click.UsageError(f"{point.value} cannot be used: {type(exc).__name__}: {exc}") from exc
            return command
    return None


def group_of(overlay: "Overlay") -> click.Group:
    """Return the commands of the nouns of an overlay; a noun with the name of the overlay is the group itself."""
    groups = {}
    for noun in overlay.nouns:
        groups[noun.name] = NounGroup(noun.name, noun.about, takes=[click.argument("stream", type=STREAM)])
        groups[noun.name].declare(noun, OneStream)
    group = groups.pop(overlay.name, None) or LazyGroup(overlay.name, help=overlay.about)
    for name, inner in groups.items():
        group.table[name] = ("", str(inner.help))
        group.commands[name] = inner
    return group
