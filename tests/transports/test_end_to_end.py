"""People and programs by each scheme: a real hub process, `veen` commands, `veen.connect`, the client library."""

import contextlib
import json

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.client.hubs import bodies, client_at, person, pin_of, run
from tests.client.test_invites import invitation
from tests.hub.test_http import certificate
from tests.transports.builders import OTHERS, hub_by, transport_by, world_of
from tests.transports.natsserver import nats_server

import veen
from veen.client.config.file import check_value, read
from veen.client.errors import InviteDamaged, SettingsError
from veen.client.transport.addresses import without_credentials

ACROSS = pytest.mark.parametrize("kind", OTHERS)
OPEN = ("--set", "admission.capability_gating=false", "--set", "admission.stream_scope=open")
QUIET = ("--set", "engine.workers=0", "--set", "log.level=error", "--set", "listen.port=0")


@contextlib.contextmanager
def hub_process(kind, root):
    """`veen hub start` with one more transport; its address, and what a client needs to trust it."""
    trust = []
    with contextlib.ExitStack() as stack:
        if kind == "file":
            more = {"spool.directory": root / "spool"}
        elif kind == "nats":
            more = {"nats.url": stack.enter_context(nats_server(root / "nats")).url}
        else:
            cert, key, _ = certificate(root, "localhost")
            more = {"quic.enabled": "true", "quic.port": "0", "tls.cert": cert, "tls.key": key}
            trust = ["--ca-file", cert]
        settings = [word for name, value in more.items() for word in ("--set", f"{name}={value}")]
        hub = stack.enter_context(running(root / "hub", *OPEN, *QUIET, *settings))
        (url,) = hub.about["transports"]
        yield hub, url.replace("127.0.0.1", "localhost") if kind == "quic" else url, trust


@ACROSS
def test_a_message_is_sent_and_read_and_the_hub_is_looked_at_from_the_command_line(kind, tmp_path):
    with hub_process(kind, tmp_path) as (hub, url, trust):
        cli = Cli(tmp_path / "home")
        cli.keygen("alice")
        cli.run("context", "add", "site", "--hub", url, "--pin", hub.about["hub_pk"], *trust, "--use")
        cli.run("id", "keyring", "new", "orders")
        sent = cli.json("send", "orders", f"by {kind}")
        assert (sent["seq"], sent["verified"]) == (1, True)
        entries = cli.run("stream", "orders", "--ndjson").stdout.splitlines()
        assert json.loads(entries[0])["body"] == f"by {kind}"
        assert cli.json("hub", "health")["readyz"]["ready"] is True
        assert cli.json("hub", "status")["url"] == url
        assert "claims the pinned key" in cli.invoke("doctor", "--json").output
        with veen.connect("site", home=tmp_path / "home") as connection:
            orders = connection.stream("orders")
            assert orders.send("from Python").seq == len(entries) + 1
            assert [entry.text for entry in orders.read()][-1] == "from Python"


@ACROSS
def test_the_client_library_sends_proves_and_attaches(kind, tmp_path):
    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub) as transport,
            client_at(transport, pin_of(hub), person("alice"), tmp_path / "home") as client,
        ):
            sent = await client.send("orders", b"one")
            await client.send_many("orders", [b"two", b"three"])
            assert (await client.checkpoint("orders")).upto_seq == 3
            assert (await client.receipt("orders", 1)).to_bytes() == sent.receipt.to_bytes()
            await client.proof("orders", 2)
            assert await bodies(client) == [b"one", b"two", b"three"]

    run(check())


@pytest.mark.parametrize(
    "url",
    [
        "file:///srv/spool",
        f"nats://host/?hub={'0' * 16}",
        f"nats+tls://host:4222/?hub={'0' * 16}&credentials=/home/me/nats",
        "quic://hub.example:8443",
        "https://hub.example",
    ],
)
def test_a_context_takes_the_address_of_every_transport(url):
    assert check_value("context.site.hub", url) == url


@pytest.mark.parametrize(
    "url",
    [
        "file://host/spool",
        "file:///",
        "file:spool",
        "nats://host",
        "nats://host/?hub=xyz",
        f"nats://host/?hub={'0' * 16}&other=1",
        f"nats://user:secret@host/?hub={'0' * 16}",
        f"nats://host/path?hub={'0' * 16}",
        "quic://host",
        "quic://host:1/path",
        "ftp://host",
        "quic://[::1",
    ],
)
def test_an_address_that_no_transport_has_is_refused_with_what_was_expected(url):
    with pytest.raises(ValueError, match=r"expected|credentials"):
        check_value("context.site.hub", url)


def test_a_project_file_cannot_have_a_file_of_the_user_sent_to_a_nats_server(tmp_path):
    """A file of credentials that a project names must lie beside it, as its other files."""
    project = tmp_path / "project"
    project.mkdir()
    url = f"nats://host/?hub={'0' * 16}&credentials=/home/me/.ssh/id"
    (project / "veen.toml").write_text(f'[context.x]\nhub = "{url}"\n')
    with pytest.raises(SettingsError, match="outside the directory"):
        read(project / "veen.toml", project=True)
    (project / "veen.toml").write_text(f'[context.x]\nhub = "{url.replace("/home/me/.ssh/", "")}"\n')
    assert read(project / "veen.toml", project=True).contexts


def test_an_invitation_neither_tells_nor_chooses_a_file_of_credentials():
    url = f"nats://host:4222/?hub={'0' * 16}&credentials=/home/me/nats"
    assert without_credentials(url) == f"nats://host:4222/?hub={'0' * 16}"
    assert without_credentials("https://hub.example/x?y=1") == "https://hub.example/x?y=1"
    opened = invitation(hub=url)
    with pytest.raises(InviteDamaged, match="credentials"):
        opened.check(opened.expires_at)
    opened = invitation(hub="https://[")
    opened.check(opened.expires_at)  # no URL: said when it is used
