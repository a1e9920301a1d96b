"""`veen pending`: sealed messages without a receipt; they are kept on this machine, and sent once."""

import contextlib
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.entries import when
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.text import short

if TYPE_CHECKING:
    from veen.client.send.writing import Sent
    from veen.client.state import LabelState

pending = LazyGroup(
    "pending",
    help="""Messages that got no receipt: list them, send them, drop them.

    When the hub gives no answer, or says "not now", a message stays on this machine, sealed and signed. The next
    `veen send` to its stream sends it first, byte for byte, so that the log never has it twice.
    """,
)

_STREAM = click.argument("stream", type=STREAM, required=False)


@pending.verb("list", "Pending messages on this machine; asks no hub.")
@identity_options
def list_(output: Output, session: CliSession) -> None:
    """List the messages of your identity that got no receipt, of all hubs. Needs neither a hub nor a passphrase, and
    works while another command of the identity runs.

    \b
    veen pending list
    veen pending list --json
    """
    from veen.client.state import StateSnapshot

    human = output.mode is Mode.HUMAN
    shown = short if human else bytes.hex
    columns = ("label", "client_seq", "sealed", "bytes", "msg_id", "hub_id")
    count = 0
    store = StateSnapshot.at(session.home, session.identity_name)
    with (
        contextlib.nullcontext() if store is None else store,
        output.records("messages", columns, (9, 10, 20, 6, 9)) as records,
    ):
        for state in [] if store is None else store.states_with_pending():
            notes = {} if store is None else store.notes(state)
            for message in _messages(state):
                note = notes.get(message["client_seq"])
                sealed = None if note is None else when(note.sealed_at)
                data = {**message, "sealed": sealed}
                msg_id, hub_id = (bytes.fromhex(data[name]) for name in ("msg_id", "hub_id"))
                records.add(
                    data,
                    (
                        *(shown(state.label), data["client_seq"], sealed or "unknown", data["bytes"]),
                        *(shown(msg_id), shown(hub_id)),
                    ),
                )
                count += 1
    if not count:
        output.note("no message waits: every message that was sealed here has its receipt, or was refused")
        return
    output.next("veen pending send")


def _messages(state: "LabelState") -> list[dict[str, Any]]:
    from veen.core.objects.msg import Msg

    return [
        {
            "hub_id": state.hub_id.hex(),
            "label": state.label.hex(),
            "client_id": state.client_id.hex(),
            "client_seq": message.client_seq,
            "msg_id": Msg.from_bytes(message.msg).leaf_hash().hex(),
            "bytes": len(message.msg),
        }
        for message in state.pending
    ]


def _states(session: CliSession, stream: str | None) -> "list[LabelState]":
    """Return the states of the hub in use, or of one stream there."""
    client = session.client()
    states = client.pending()
    if stream is None:
        return states
    label = client.label(stream) if not stream.startswith("label:") else bytes.fromhex(stream.removeprefix("label:"))
    return [state for state in states if state.label == label]


@pending.verb("send", "Send pending messages, each once.")
@_STREAM
@client_options
def send(output: Output, session: CliSession, stream: str | None) -> None:
    """Send the messages that wait for this hub, or those of STREAM: byte for byte, and only if the log lacks them.

    \b
    veen pending send
    veen pending send record/app/http
    """
    session.sends = True
    states = _states(session, stream)
    client = session.client()
    before = sum(len(state.pending) for state in states)
    late: list[Sent] = []
    with output.progress(f"sending {before} messages"):
        try:
            for state in states:
                client.send_pending(state)
        finally:
            late = client.take_recovered()
            _show(output, late, before - len(late))


def _show(output: Output, late: "list[Sent]", refused: int) -> None:
    human = output.mode is Mode.HUMAN
    shown = short if human else bytes.hex
    with output.records("messages", ("seq", "msg_id", "label"), (6, 9, 9)) as records:
        for sent in late:
            data = {
                "seq": sent.seq,
                "msg_id": sent.msg_id.hex(),
                "label": sent.label.hex(),
                "client_seq": sent.msg.client_seq,
                "hub_ts": sent.receipt.hub_ts,
                "mmr_root": sent.root.hex(),
                "verified": True,
            }
            records.add(data, (sent.seq, shown(sent.msg_id), shown(sent.label)))
        records.summary({"delivered": len(late), "not_delivered": refused})
    if late and human:
        output.line(f"{len(late)} delivered, receipts verified", good="receipts verified")
    elif not late:
        output.note("no message waits for this hub" if not refused else "none was delivered")


@pending.verb("drop", "Drop pending messages.")
@_STREAM
@click.option("--all", "everything", is_flag=True, help="Drop the messages of every stream at this hub.")
@click.option("--offline", is_flag=True, help=options.OFFLINE)
@client_options
def drop(output: Output, session: CliSession, stream: str | None, everything: bool, offline: bool) -> None:
    """Give up the messages of STREAM that got no receipt. What the log turns out to have is kept as sent.

    The hub is asked to its last entry first: a message whose answer was lost may stand in the log, and what stands
    there cannot be taken back. With --offline nothing is asked, and STREAM may be label:HEX of `veen pending list`.

    \b
    veen pending drop record/app/http
    veen pending drop --all --offline
    """
    if everything == (stream is not None):
        raise click.UsageError("give STREAM, or --all")
    if offline:
        confirmed, dropped = 0, _drop_offline(session, stream)
    else:
        confirmed = dropped = 0
        client = session.client()
        with output.progress("reading the log"):
            for state in _states(session, stream):
                logged, given_up = client.drop_pending(state)
                confirmed, dropped = confirmed + logged, dropped + given_up
    data = {"dropped": dropped, "in_log": confirmed, "hub_asked": not offline}

    def human() -> None:
        output.fields(data.items())

    output.result(data, human)
    if offline and dropped:
        output.note("no hub was asked: if one took a message before its answer was lost, the log has it")


def _drop_offline(session: CliSession, stream: str | None) -> int:
    from veen.client.state import StateStore

    label = None
    if stream is not None:
        if not stream.startswith("label:"):
            raise Fail(
                "E.USAGE",
                "--offline takes a label",
                f"the label of {stream} follows from its hub's key, which is not asked",
                "give label:HEX as `veen pending list --json` prints it, or --all",
            )
        label = bytes.fromhex(stream.removeprefix("label:"))
    dropped = 0
    with StateStore.open(session.home, session.identity_name) as store:
        for state in store.states_with_pending():
            if label in (None, state.label):
                dropped += len(state.pending)
                store.save(state.withdraw(state.pending[0].client_seq))
    return dropped
