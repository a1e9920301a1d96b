"""`veen label-class`: hints about labels, and their advice (LCLASS0, 001 spec-2 §6)."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from click import argument, option

from veen.cli.label.realm import MAKE_KEYS, AdminRealm, realm_options
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.overlay_commands import absent, make_keys, show_folded, show_rows, state_of
from veen.cli.shared.values import SPAN
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.overlays.framework.schema import Draft
    from veen.overlays.naming.label_class import LabelClassFold

label_class: Final = NounGroup(
    "label-class",
    "Hints about labels: padding, rate and retention. They advise; a hub admits messages as ever.",
    writes=[realm_options],
    reads=[realm_options, view_options],
)
_TARGET: Final = argument("target")


def _fold(session: CliSession, realm: AdminRealm) -> "LabelClassFold":
    from veen.overlays.naming.label_class import LabelClassFold

    return LabelClassFold(realm.realm_id, **realm.rule(session, realm.class_stream()))


def _labels(session: CliSession, text: str) -> dict[bytes, str]:
    """Return the names of labels. A stream has the label of this epoch; a pattern selects streams of the keyring."""
    from veen.client.identity.keyring import StreamRef
    from veen.core.labels import label_of, routing_key_of

    ref = StreamRef.parse(text)
    if ref.label is not None:
        return {ref.label: text}
    client = session.client()
    routing_key, epoch = routing_key_of(client.hub_id), client.status().epoch
    if any(mark in text for mark in "*?["):
        entries = session.keystore.secrets.keyring.entries
        named = {keys.name: keys.stream_id for keys in entries if keys.name and fnmatchcase(keys.name, text)}
        if not named:
            raise absent(f"stream like {text!r} in the keyring", "veen id keyring list")
    else:
        assert ref.stream_id is not None  # noqa: S101 - a reference is a label or a stream
        named = {text: ref.stream_id}
    return {label_of(routing_key, stream_id, epoch): name for name, stream_id in sorted(named.items())}


@label_class.write(
    "set",
    "Give a class to a stream, to streams by pattern, or to a label.",
    _TARGET,
    argument("class_name", metavar="CLASS"),
    option("--sensitivity", help="Sensitivity: low, medium, high, or another word."),
    option("--retention", type=SPAN, help="Advised retention, such as 600 or 30d."),
    MAKE_KEYS,
)
def _set(
    session: CliSession,
    target: str,
    class_name: str,
    sensitivity: str | None,
    retention: int | None,
    keys: bool,
    realm: AdminRealm,
) -> Iterator[Outgoing]:
    """Give CLASS to TARGET: a stream, a pattern over names of the keyring ('record/*'), or label:HEX.

    \b
    veen label-class set record/app/http log --retention 30d --make-keys
    veen label-class set 'record/*' log
    """
    from veen.overlays.naming.label_class import KNOWN_CLASSES, classify

    if class_name not in KNOWN_CLASSES:
        names = ", ".join(KNOWN_CLASSES)
        session.output.note(f"{class_name!r} is none of the classes that advise something: {names}")
    stream = realm.class_stream()
    if keys:
        make_keys(session, stream)  # before the identity is in use for reading the hub
    realm.announce(session, stream)
    for label, name in _labels(session, target).items():

        def draft(label: bytes = label) -> "Draft":
            return classify(label, class_name, sensitivity=sensitivity, retention_hint=retention)

        facts = {"target": name, "classified": label, "class": class_name, "stream": stream}
        yield Outgoing(stream, draft, facts, fold=lambda: _fold(session, realm))


def _row(label: bytes, entry: Any) -> dict[str, Any]:
    data = plain(entry)
    data.pop("order")
    return {"label": label.hex(), "class": data.pop("class_name"), **data}


@label_class.read("list", "List the labels that have a class.")
def _list(session: CliSession, realm: AdminRealm, view: View) -> None:
    """List the labels of a realm that have a class."""
    folded = state_of(session, _fold(session, realm), [realm.class_stream()], view)
    rows = [_row(label, entry) for label, entry in folded.state.labels.items()]
    columns = ("label", "class", "sensitivity", "retention_hint")
    show_rows(session, folded, "labels", rows, columns, headings=("label", "class", "sensitivity", "retention"))


@label_class.read("show", "Print the class of a stream or label, and its advice.", _TARGET)
def _show(session: CliSession, target: str, realm: AdminRealm, view: View) -> None:
    """Print the class of TARGET (a stream, or label:HEX) and its advice. A label without a class is valid."""
    folded = state_of(session, _fold(session, realm), [realm.class_stream()], view)
    rows = []
    for label in _labels(session, target):
        entry = folded.state.class_of(label)
        row = {"label": label.hex(), "class": None} if entry is None else _row(label, entry)
        rows.append({**row, "advice": plain(folded.state.advice(label))})
    output = session.output

    def human() -> None:
        for row in rows:
            advice = row["advice"]
            pads = " or ".join(str(size) for size in advice["pad_blocks"]) or "as the profile has it"
            output.fields([("label", row["label"]), ("class", row["class"] or "none")])
            output.fields([("padding", pads), ("rate", advice["rate"]), ("retention", advice["retention_sec"] or "-")])

    show_folded(session, folded, {"labels": rows}, human)
