"""`veen recorder checkpoint`: writes one root over all streams, now or when it is due by time or volume (SDR-06)."""

import time
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.authority import token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.output import Output

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.core.objects.control import AnchorPublish
    from veen.products.recorder.heads import RecordedHead


@click.command()
@click.option("--if-due", is_flag=True, help="Write only if the configured interval or number of events has passed.")
@click.option("--follow", is_flag=True, help="Run until stopped; write a checkpoint whenever one is due.")
@click.option("--look-every", type=click.FloatRange(0.1), default=5.0, help="Seconds between two checks with --follow.")
@click.option(
    "--anchor", is_flag=True, help="Have the hub anchor the checkpoint outside of its log. Requires --token-file."
)
@client_options
def checkpoint(
    output: Output, session: CliSession, if_due: bool, follow: bool, look_every: float, anchor: bool
) -> None:
    """Write a checkpoint of all record/* streams, as the admin --identity.

    It names the last entry and the root of every stream, each under the hub's signature, and one log_root over all;
    and it names the checkpoint before it. An anchor of it covers every entry of every stream up to there.

    \b
    veen recorder checkpoint --identity recorder-admin
    veen recorder checkpoint --identity recorder-admin --follow
    veen recorder checkpoint --identity recorder-admin --anchor --token-file hub-admin.token
    """
    client, tokens = session.client(), token_store(session)
    streams = session.keystore.secrets.keyring

    async def work(opened: "Client") -> "tuple[RecordedHead, AnchorPublish | None] | None":
        from veen.api.token_authority import TokenAuthority
        from veen.core.objects.control import AnchorPublish
        from veen.products.recorder.events import CHECKPOINTS_STREAM
        from veen.products.recorder.heads import heads_of, is_due, read_chain, select_covered, take
        from veen.products.recorder.roles import record_streams
        from veen.products.recorder.setup import read_history

        admins = {key.client_id for key in session.keystore.identity.client_keys}
        configuration = (await read_history(opened, admins)).now
        last = (await read_chain(opened, admins)).last
        readable = record_streams(streams)
        now = int(time.time())
        if if_due or follow:
            heads = await heads_of(opened, select_covered(readable))
            if not is_due(last, sum(head.last_seq for head in heads), now, configuration):
                return None
        recorded = await take(TokenAuthority(opened, tokens), readable, configuration, last, now=now)
        if not anchor:
            return recorded, None
        record = await opened.anchor(CHECKPOINTS_STREAM, recorded.seq)
        assert isinstance(record.body, AnchorPublish)  # noqa: S101 - `anchor` has verified it
        return recorded, record.body

    while True:
        with output.progress("reading the heads of all streams"):
            written = client.run(work)
        if written is not None or not follow:
            _show(output, *(written or (None, None)))
        if not follow:
            return
        time.sleep(look_every)


def _show(output: Output, written: "RecordedHead | None", anchored: "AnchorPublish | None") -> None:
    if written is None:
        data: dict[str, Any] = {"written": False, "why": "none is due"}
        return output.result(data, lambda: output.line("no checkpoint is due"))
    body = written.body
    data = {
        "written": True,
        "seq": written.seq,
        "msg_id": written.msg_id.hex(),
        "log_root": body.log_root.hex(),
        "streams": len(body.streams),
        "events": body.events,
        "hub_pk": f"ed25519:{body.hub_pk.hex()}",
        "profile_id": body.profile_id.hex(),
        "sdr_profile_id": body.sdr_profile_id.hex(),
        "time": when(body.ts),
        "prev": body.prev and body.prev.hex(),
    }
    if anchored is not None:
        data |= {"anchor": anchored.backend, "anchor_ref": anchored.anchor_ref.hex(), "root": anchored.mmr_root.hex()}
    return output.result(data)
