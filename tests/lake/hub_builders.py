"""A hub process with a few streams in it, for reading and writing by URL."""

import asyncio
import contextlib
import os
from pathlib import Path

from tests.cli.hubprocess import HubProcess, running
from tests.client.hubs import ISSUER, QUICK, person, token_for

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore, Secrets
from veen.client.send.writing import Sent
from veen.client.transport.calls import Calls
from veen.client.transport.http import HttpTransport
from veen.client.verify.pin import HubPin
from veen.core.objects.tooling import RecordResponse, StreamRegisterRequest

ORDERS, TRADES = StreamKeys.create("orders"), StreamKeys.create("trades")
RING = Keyring().with_keys(ORDERS).with_keys(TRADES)
SECRET = "sesame-of-the-administrator"


def settings(tmp_path, *more):
    """Small chunks, streams that are known by name, and an administrator."""
    token = tmp_path / "admin.token"
    if not token.exists():
        token.write_text(SECRET)
        token.chmod(0o600)
    flags = {
        "engine.workers": "0",
        "admission.trusted_issuers": ISSUER.public.hex(),
        "auth.admin_token_files": str(token),
        "limits.max_msg_bytes": "4096",
        "limits.max_body_bytes": "2048",
        "limits.max_hdr_bytes": "512",
        "limits.max_chunk_bytes": "8192",
    }
    sets = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
    return ["--port", "0", *sets, *(part for option in more for part in ("--set", option))]


def restarted(hub, *options):
    """The same hub again, on the same port."""
    port = hub.url.rsplit(":", 1)[1]
    hub.stop()
    return HubProcess(hub.data_dir, *[port if option == "0" and before == "--port" else option
                                      for before, option in zip(["", *options], options, strict=False)])  # fmt: skip


def write(hub, home, count, *, name="alice", streams=("orders", "trades")):
    """Messages of one writer, to several streams in turn."""

    async def send():
        who = person(name)
        pin = HubPin.parse(hub.about["hub_pk"])
        async with await Client.connect(
            hub.url, pin=pin, identity=who, keyring=RING, home=Home.at(Path(home)), retry=QUICK
        ) as client:
            await client.authorize(token_for(who.client_id, ORDERS.stream_id, TRADES.stream_id))
            for number, stream in enumerate(streams):
                share = count // len(streams) + (number < count % len(streams))
                for outcome in await client.send_many(stream, [os.urandom(n % 700) for n in range(share)]):
                    assert isinstance(outcome, Sent)

    asyncio.run(send())


def register(hub, *stream_ids):
    """As an administrator does, so that labels have names and writers need no token of an issuer."""

    async def go():
        secret = Path(hub.data_dir).parent / "admin.token"
        transport = HttpTransport(hub.url, token_file=secret)
        try:
            for stream_id in stream_ids:
                await Calls(transport).ask(
                    "tooling/streams", StreamRegisterRequest(stream_id=stream_id), RecordResponse
                )
        finally:
            await transport.aclose()

    asyncio.run(go())


def identity_at(path, name="loader", passphrase=None):
    """An identity on disk, with the keys of both streams."""
    who = person(name)
    home = Home.at(path)
    Keystore.create(home.identity_fs(name), Secrets(identity=who, keyring=RING), passphrase)
    return home.identity_dir(name), who


@contextlib.contextmanager
def hub_with_entries(tmp_path, count, *more):
    with running(tmp_path / "hub", *settings(tmp_path, *more)) as hub:
        write(hub, tmp_path / "home", count)
        yield hub
