"""Nouns of overlays and their verbs, declared once as data and pure functions (docs/extending.md).

    Noun(
        name="vote", about="Votes on questions.", fold=VotesFold,
        verbs=[Verb(name="cast", help="Vote.", schema=VOTE, args={"question": Arg(), "choice": Arg()})],
        entry=Tally, entries=lambda state: state.values(), columns=("question", "yes"), keys=("question",),
    )

From a noun follow the commands that write, `list` and `show` with their JSON, the table of the state and the section of
the console. This module knows no click, no session and no clock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from veen.overlays.framework.args import Arg, Face
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.core.wire import Wire
    from veen.overlays.framework.fold import AnyFold
    from veen.overlays.framework.schema import AnySchema, Draft
    from veen.overlays.framework.typed_table import StateTable

Row = Mapping[str, Any]

_CLOCKS: Final = ("created_at", "updated_at", "ts")  # fields that are the time of the writer
_TIMES: Final = ("created_at", "updated_at", "expires_at", "revoked_since", "until")  # columns that are times


class Message(NamedTuple):
    """A message that a verb makes: its body, and what was computed on the way."""

    body: "Wire | None"  # None: `draft` of the verb made the message
    draft: "Draft"
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A command that writes one message. The values are the fields of its body by name, or those of a draft function.

    A field for the time of the writer is the clock's unless it is among the values. `expires_at` is a field of the
    body, or of the message where the body has none.
    """

    name: str
    help: str  # one line
    about: str = ""  # default: the same line
    examples: Sequence[str] = ()
    schema: "AnySchema | None" = None
    draft: "Callable[..., Draft] | None" = None  # in place of a schema: takes the values of `args` by their names
    to_draft: "Callable[[Any, int], Draft] | None" = None  # of a body and the time; default: that of the schema
    args: Mapping[str, Arg] = field(default_factory=dict)  # in the order of the arguments
    fixed: dict[str, Any] = field(default_factory=dict)  # fields that are always the same
    derive: Callable[[dict[str, Any]], Row] | None = None  # fields that follow from values
    facts: Sequence[str] = ()  # values that the command prints, those that there are
    any_of: Sequence[str] = ()  # at least one of these must be given
    one_of: Sequence[str] = ()  # at most one
    # For a message that ends what an earlier one said: the values to repeat, by state, values and client_id of the
    # writer; None: there is nothing to end, and `missing` says what, as a format of the values.
    repeat: Callable[[Any, Row, bytes], Row | None] | None = None
    missing: str = ""
    is_judged: bool = True  # the fold can refuse the message: the command says whether it counts
    follow_up: str = ""  # the command that a person is likely to run next, as a format of the values

    @property
    def face(self) -> Face:
        """Help and arguments of the command."""
        text = self.about or self.help
        if self.examples:
            text = "\n".join([text, "", "\b", *self.examples])
        return Face(self.help, text.replace("\n", "\n    "), self.args)  # indented as a docstring is

    def message(self, values: Row, now: int) -> Message:
        """Return the message for values. A FormatError if the body does not allow them."""
        derived = dict(values) | self.fixed
        if self.derive is not None:
            derived |= self.derive(derived)
        if self.draft is not None:
            return Message(None, self.draft(**{name: derived[name] for name in self.args}), derived)
        assert self.schema is not None  # noqa: S101 - a verb has the one or the other
        optional = {wire_field.attribute: wire_field.optional for wire_field in self.schema.body.wire_fields()}
        values = derived | {name: now for name in _CLOCKS if optional.get(name) is False and derived.get(name) is None}
        body = self.schema.body(**{name: value for name, value in values.items() if name in optional})
        expires_at = None if "expires_at" in optional else derived.get("expires_at")
        if self.to_draft is not None:
            return Message(body, self.to_draft(body, now), derived)
        return Message(body, self.schema.draft(body, expires_at=expires_at), derived)


class ListView(NamedTuple):
    """A part of a state for people and programs: members of a JSON object, and a table."""

    data: Row
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """A kind of thing in the state of an overlay: the verbs that write about it, and its two views.

    `entries` are its records in a state, and `derived` what follows from the state and a moment; both together are
    a row. `listing` is for a list that is more than rows.
    """

    name: str
    help: str = ""  # one line, in the list of a group
    about: str
    fold: "Callable[..., AnyFold]"
    plural: str = ""  # the name of the list in JSON; default: the name and an s
    verbs: Sequence[Verb] = ()
    entry: type = object  # of the records: a dataclass
    entries: Callable[[Any], Iterable[Any]] | None = None
    derived: Callable[[Any, Any, int], Row] = lambda state, entry, as_of: {}
    columns: Sequence[str] = ()  # of the list, on a terminal
    keys: Sequence[str] = ()  # columns by which `show` finds a row
    listing: Callable[[Any, int], ListView] | None = None
    list_help: str = ""
    show_help: str = ""
    table: str = ""  # what the table of the state has, in one line; "": there is none
    part: str | None = None  # of the name of the table; default: the plural
    id: Sequence[str] = ()  # columns that name a row of the table

    @property
    def members(self) -> str:
        """Plural of the name."""
        return self.plural or f"{self.name}s"

    def verb(self, name: str) -> Verb:
        """Return the verb of this name."""
        return next(verb for verb in self.verbs if verb.name == name)

    def faces(self) -> dict[str, Face]:
        """Return what help shows of each command."""
        faces = {verb.name: verb.face for verb in self.verbs}
        if self.entries is not None or self.listing is not None:
            words = self.list_help or f"All {self.members}."
            faces["list"] = Face(words, words, {})
        if self.keys:
            words = self.show_help or f"One {self.name}."
            faces["show"] = Face(words, words, {"key": Arg(metavar="/".join(self.keys).upper())})
        return faces

    def rows(self, state: Any, as_of: int) -> list[dict[str, Any]]:
        """Return the records of a state as JSON has them, with what is derived from the state at a moment."""
        entries = () if self.entries is None else self.entries(state)
        return [{**plain(entry), **plain(self.derived(state, entry, as_of))} for entry in entries]

    def list(self, state: Any, as_of: int) -> ListView:
        """Return what `list` shows."""
        if self.listing is not None:
            return self.listing(state, as_of)
        rows = self.rows(state, as_of)
        return ListView({self.members: rows}, self.columns, [[row[column] for column in self.columns] for row in rows])

    def state_table(self) -> "StateTable":
        """Return the table of the state: a column for each field of a record."""
        from veen.overlays.framework.typed_table import StateTable, kinds_of

        entries, key = self.entries, attrgetter(*self.id)
        assert entries is not None  # noqa: S101 - a table has rows
        return StateTable.of(
            self.fold.name,  # type: ignore[attr-defined]  # a fold class
            self.entry,
            kinds_of(self.entry, self.id),
            lambda view: ((key(entry), entry) for entry in entries(view)),
            part=self.members if self.part is None else self.part,
            about=self.table,
            times=_TIMES,
        )
