"""`veen resync` and `veen verify-state`: rebuilding and checking the stored state of logs (RESYNC0)."""

from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Mode, Output
from veen.cli.shared.stream_args import EPOCH, stream_argument
from veen.cli.shared.text import short

if TYPE_CHECKING:
    from veen.client.verify.label_state import LabelState


@click.command()
@stream_argument()
@EPOCH
@click.option("--from-scratch", is_flag=True, help="Discard the stored state of the log first, and read all of it.")
@client_options
def resync(output: Output, session: CliSession, stream: str, epoch: int | None, from_scratch: bool) -> None:
    """Read the log of STREAM to its end, verify every step, and rebuild its stored state.

    A state file that cannot be read is set aside beside the new one. What contradicts what the hub proved before is
    never taken over: it ends the command with exit code 1, and the state stays as it was.
    """
    from veen.client.errors import StateDamaged
    from veen.client.state import StateStore

    session.hub_url, session.pinned  # noqa: B018 - before anything is moved: is there a hub to ask?
    with StateStore.open(session.home, session.identity_name, recover=True) as store:
        store.drop_damaged_hubs()
    client = session.client()
    with output.progress(f"reading {stream}"):
        try:
            done = client.resync(stream, epoch=epoch, from_scratch=from_scratch)
        except StateDamaged as exc:
            output.note(f"{exc}; the log is read from its beginning")
            done = client.resync(stream, epoch=epoch, from_scratch=True)
    session.remember_stream(stream)
    data = {
        "stream": stream,
        "label": done.label.hex(),
        "read": done.read,
        "seq": done.stream_seq,
        "mmr_root": None if done.mmr_root is None else done.mmr_root.hex(),
        "client_seq": done.client_seq,
        "confirmed": done.confirmed,
        "dropped": done.dropped,
    }
    output.result(data)
    for warning in done.warnings:
        output.notice(warning)
    if done.dropped:
        output.note(f"{done.dropped} messages without a receipt can never be admitted any more: send them again")


@click.command("verify-state")
@click.option("--offline", is_flag=True, help=options.OFFLINE)
@client_options
def verify_state(output: Output, session: CliSession, offline: bool) -> None:
    """Check what this machine remembers: that its file is whole, and that the hub's log still contains all of it.

    Exit code 1 means that the hub's log is another one than it proved before; 5 that the file is damaged.
    """
    from veen.client.state import StateStore

    with StateStore.open(session.home, session.identity_name) as store:
        states = list(store.states())
        hubs = store.pins()
    columns = ("label", "seq", "root", "client_seq", "pending", "checked")
    human = output.mode is Mode.HUMAN
    hub_id = None if offline else session.client().hub_id
    asked = 0
    with output.records("labels", columns, (9, 6, 9, 10, 7)) as records:
        for state in states:
            checked = "file"
            if state.hub_id == hub_id and state.last_stream_seq:
                with output.progress("asking the hub"):
                    signed = session.client().checkpoint(f"label:{state.label.hex()}")
                checked = f"hub, which has {signed.upto_seq}"
                asked += 1
            records.add(_data(state, checked), _cells(state, checked, human=human))
        records.summary({"ok": True, "hubs": len(hubs), "hub_asked": hub_id is not None})
    rest = len(states) - asked
    whole = f"the file is whole: {len(states)} labels of {len(hubs)} hubs"
    if offline:
        output.note(f"{whole}; no hub was asked")
        return
    others = f"; {rest} are of other hubs, or empty, and were not compared" if rest else ""
    output.note(f"{whole}; the log of this hub still contains what was verified of {asked} of them{others}")


def _data(state: "LabelState", checked: str) -> dict[str, Any]:
    return {
        "hub_id": state.hub_id.hex(),
        "label": state.label.hex(),
        "client_id": state.client_id.hex(),
        "mode": state.mode,
        "seq": state.last_stream_seq,
        "mmr_root": None if state.last_mmr_root is None else state.last_mmr_root.hex(),
        "client_seq": state.client_seq,
        "prev_ack": state.prev_ack,
        "pending": len(state.pending),
        "checked": checked,
    }


def _cells(state: "LabelState", checked: str, *, human: bool) -> tuple[Any, ...]:
    shown = short if human else bytes.hex
    root = "none" if state.last_mmr_root is None else shown(state.last_mmr_root)
    return shown(state.label), state.last_stream_seq, root, state.client_seq, len(state.pending), checked
