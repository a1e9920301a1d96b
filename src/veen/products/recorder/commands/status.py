"""`veen recorder status`: shows streams, checkpoints and agents."""

import time
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.output import Output

if TYPE_CHECKING:
    from veen.client.client import Client


@click.command()
@client_options
def status(output: Output, session: CliSession) -> None:
    """Show the streams and their heads, the last checkpoint, a due checkpoint, and the last report of each agent.

    \b
    veen recorder status --identity recorder-admin
    """
    ring = session.keystore.secrets.keyring

    async def work(opened: "Client") -> dict[str, Any]:
        from veen.overlays.framework.decode import Issue
        from veen.overlays.recorder import events as sdr
        from veen.products.recorder.events import OWN_STREAM
        from veen.products.recorder.heads import heads_of, is_due, read_chain, select_covered
        from veen.products.recorder.roles import record_streams
        from veen.products.recorder.setup import events_of, read_history
        from veen.products.recorder.verify import Agents

        admins = {key.client_id for key in session.keystore.identity.client_keys}
        configuration = (await read_history(opened, admins)).now
        last = (await read_chain(opened, admins)).last
        readable = select_covered(record_streams(ring))
        heads = await heads_of(opened, readable)
        names = {keys.stream_id: str(keys) for keys in readable}
        events, now = sum(head.last_seq for head in heads), int(time.time())
        agents = Agents()
        for event in await events_of(opened, OWN_STREAM):
            if event.hdr.schema == sdr.EVENT.id and not isinstance(typed := sdr.read(event), Issue):
                agents.note(typed.body, event.stream_seq, event.hub_ts)
        return {
            "streams": [
                {"stream": names[head.stream_id], "epoch": head.epoch, "last_seq": head.last_seq}
                for head in sorted(heads, key=lambda head: (names[head.stream_id], head.epoch))
            ],
            "events": events,
            "checkpoint": last and {"seq": last.seq, "time": when(last.body.ts), "events": last.body.events,
                                    "log_root": last.body.log_root.hex()},
            "checkpoint_due": is_due(last, events, now, configuration),
            "every_sec": configuration.every_sec,
            "every_events": configuration.every_events,
            "sdr_profile_id": configuration.profile_id().hex(),
            "agents": [
                {"client_id": who.hex(), "said": kind, "at": when(ts), "seconds_ago": max(now - ts, 0),
                 "counts": payload}
                for who, (kind, ts, payload) in agents.last.items()
            ],
            "lost": sum(agents.lost.values()),
        }  # fmt: skip

    with output.progress("asking the hub"):
        data = session.client().run(work)

    def human() -> None:
        rows = [(entry["stream"], entry["epoch"], entry["last_seq"]) for entry in data["streams"]]
        output.table(("stream", "epoch", "last_seq"), rows)
        shown = ("events", "checkpoint", "checkpoint_due", "every_sec", "every_events", "lost")
        output.fields((name, data[name]) for name in shown)
        agents = [(entry["client_id"][:16], entry["said"], entry["at"]) for entry in data["agents"]]
        output.table(("agent", "said", "at"), agents)

    output.result(data, human)
    output.next("veen recorder checkpoint" if data["checkpoint_due"] else "veen recorder verify")
