"""A reload means a reload: what may change is in force afterwards, and what is not is named, key by key."""

import asyncio
import contextlib
import functools
import http.client
import json
import socket
import ssl
from urllib.parse import urlsplit

import pytest
from tests.examples import spread
from tests.hub import builders as w
from tests.hub.test_http import certificate, trusting

from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import realm_id_of
from veen.core.objects.tooling import TailRequest
from veen.hub.api.access import Principal, Role
from veen.hub.process.config import SETTINGS, ConfigError, load
from veen.hub.process.runtime import Hub
from veen.io.tls import TlsError

OLD, NEW = "an-old-token-0000", "a-new-token-00000"
TOKEN = CapToken.issue(w.ISSUER, w.ALICE.public, [w.OTHER_STREAM], ttl=600)


def secret_file(path, text):
    path.write_text(text)
    path.chmod(0o600)  # others may not read a token


def flags_of(tmp_path, **flags):
    defaults = {
        "data_dir": str(tmp_path / "hub"),
        "listen.port": "0",
        "engine.workers": "0",
        "log.file": str(tmp_path / "log"),
        "admission.capability_gating": "false",
        "admission.stream_scope": "open",
    }
    return {**defaults, **{name.replace("__", "."): value for name, value in flags.items()}}


def configured(tmp_path, **flags):
    return load(None, {}, flags_of(tmp_path, **flags))


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 60))


def log_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- every key ---------------------------------------------------------------------------------------------


def policy(name):
    return lambda hub: getattr(hub.sequencer.policy, name)


def may(role, **principal):
    """Whether somebody has a role, as the API would decide it now."""
    return lambda hub: hub.access.check(role, Principal(**principal)) is None


# Another value for each key, beside the default, and what of the running hub shows which of them is in force. A key
# that waits for a restart needs no look: the test sees that the hub's own configuration keeps the old value.
REALM = realm_id_of("elsewhere")
OTHER = {
    "data_dir": ("elsewhere", None),
    "keys_dir": ("elsewhere", None),
    "identity": ("ephemeral", None),
    "role": ("authority", None),
    "universe_id": ("earth", lambda hub: hub.config.universe_id),  # nothing but `veen hub config` looks at these two
    "authority_id": ("first", lambda hub: hub.config.authority_id),
    "tenant_id": ("acme", lambda hub: logged(hub).get("tenant_id")),
    "authority_url": ("http://127.0.0.1:9", lambda hub: hub._authority.fault()),
    "force_plain_http": ("true", None),
    "dev": ("true", None),
    "replicas": ("http://127.0.0.1:9", lambda hub: hub.config.replicas),
    "replicas_ca_file": ("ca.pem", lambda hub: hub.config.replicas_ca_file),
    "replicas_required": ("true", lambda hub: hub.config.replicas_required),
    "listen.host": ("localhost", None),
    "listen.port": ("1", None),
    "listen.max_connections": ("7", lambda hub: hub._server.settings.max_connections),
    "listen.address_percent": ("50", lambda hub: hub._server.slots.shares.share),
    "listen.max_answer_bytes": ("64MiB", lambda hub: hub._server.answers.total),
    "listen.max_event_stream_seconds": ("60", None),
    "listen.denied_networks": ("192.0.2.0/24", lambda hub: hub._server.is_denied(("192.0.2.1", 1))),
    "tls.cert": ("{dir}/hub.pem", None),  # of a hub without TLS; with it, see below
    "tls.key": ("{dir}/hub.key", None),
    "tls.client_ca": ("{dir}/ca.pem", None),
    "auth.admin_token_files": ("{dir}/token", may(Role.ADMIN, bearer=NEW.encode())),
    "auth.read_token_files": ("{dir}/token", may(Role.READ)),
    "auth.admin_names": ("operator", may(Role.ADMIN, names=("operator",))),
    "auth.read_names": ("auditor", may(Role.READ)),
    "auth.metrics_token_files": ("{dir}/token", may(Role.METRICS)),
    "auth.metrics_names": ("prometheus", may(Role.METRICS)),
    "auth.open_status": ("true", lambda hub: hub.access.open_status),
    "auth.read_bytes_per_second": ("1KiB", lambda hub: hub.access.read_bytes_per_second),
    "admission.profiles": ("ref", None),
    "admission.capability_gating": ("true", policy("capability_gating")),
    "admission.stream_scope": ("enforced", None),
    "admission.trusted_issuers": (w.ISSUER.public.hex(), lambda hub: hub.sequencer.policy.trusts(TOKEN)),
    "admission.principal_grants": ("false", lambda hub: not hub.sequencer.policy.principal_grants),
    "admission.token_files": ("{dir}/cap", lambda hub: TOKEN.auth_ref() in hub.sequencer.policy.preloaded),
    "admission.streams": ("more", lambda hub: stream_id_of("more") in hub.resolver._streams),
    "admission.denied_clients": (w.BOB.public.hex(), policy("denied_clients")),
    "admission.pow_difficulty": ("3", policy("pow_difficulty")),
    "admission.kex1_plus": ("true", policy("kex1")),
    "admission.max_client_id_lifetime_sec": ("60", policy("kex1")),
    "admission.max_msgs_per_client_id_per_label": ("60", policy("kex1")),
    "admission.auth1": ("true", policy("auth1")),
    "admission.realm": (REALM.hex(), policy("auth1")),
    "admission.unspecified_authority": ("refuse", policy("auth1")),
    "engine.workers": ("1", None),
    "engine.max_queue": ("9", None),
    "engine.cached_labels": ("7", None),
    "engine.cached_clients": ("7", None),
    "engine.max_clock_step": ("7", None),
    "engine.min_free_bytes": ("8000000GiB", lambda hub: (hub.not_admitting, hub.attachments.min_free_bytes)),
    "engine.retire_seconds": ("9", lambda hub: hub.config.engine.retire_seconds),  # read for each round
    "log.level": ("error", lambda hub: hub.log._level),
    "log.format": ("text", lambda hub: sink_of(hub).as_json),
    "log.submits": ("off", lambda hub: hub.log._refused),
    "log.file": ("{dir}/other-log", lambda hub: logged(hub) and hub.config.log.file.name),
    "metrics.streams": ("orders", None),
    "retention.payloads": ("1d", lambda hub: hub.config.retention.payloads),  # read for each round
    "retention.receipts": ("2d", lambda hub: hub.config.retention.receipts),
    "attachments.client_bytes": ("1MiB", lambda hub: hub.attachment_policy.client_bytes),
    "attachments.open_bytes": ("2MiB", lambda hub: hub.attachment_policy.open_bytes),
    "attachments.bytes_per_token": ("1KiB", lambda hub: hub.attachment_policy.bytes_per_token),
    "anchor.every": ("1h", lambda hub: hub.config.anchor.every),  # read for each round
    "anchor.backend": ("rfc3161", None),
    "anchor.directory": ("{dir}/anchors", None),
    "anchor.url": ("http://127.0.0.1:9", None),
    "anchor.certificates": ("{dir}/ca.pem", None),
    "outer.origin": ("hub.example/veen", None),
    "outer.every": ("2m", lambda hub: hub.config.outer.every),  # read for each round, as the next two
    "outer.policy": ("{dir}/witnesses.policy", lambda hub: hub._witness_policy),
    "outer.witness_timeout": ("20", lambda hub: hub.config.outer.witness_timeout),
    "scrub.bytes_per_second": ("0", lambda hub: hub.scrubber.rate),
    "spool.directory": ("elsewhere", None),
    "spool.max_age": ("1h", None),
    "spool.max_bytes": ("1MiB", None),
    "spool.max_calls": ("1", None),
    "nats.url": ("nats://127.0.0.1:4222", None),
    "nats.credentials_file": ("elsewhere", None),
    "nats.ca_file": ("elsewhere", None),
    "nats.submit": ("false", None),
    "nats.tail": ("true", None),
    "nats.max_calls": ("1", None),
    "quic.enabled": ("true", None),
    "quic.port": ("9000", None),
    "quic.max_connections": ("1", None),
    "quic.max_calls": ("1", None),
    **{f"limits.{name}": ("1000", None) for name in ("max_msg_bytes", "max_hdr_bytes", "max_body_bytes")},
    **{f"limits.{name}": ("9", None) for name in ("max_attachments_per_msg", "max_attachment_bytes")},
    **{f"limits.{name}": ("9", None) for name in ("max_checkpoint_interval", "max_epoch_skew_sec")},
    **{f"limits.{name}": ("9", None) for name in ("max_cap_rate_per_sec", "max_cap_rate_burst")},
    "limits.max_chunk_bytes": ("2000000", None),
    "limits.compression": ("zlib", None),
}
# What a key needs beside it to mean something.
COMPANIONS = {
    "tls.cert": {"tls.key": "{dir}/hub.key"},
    "tls.key": {"tls.cert": "{dir}/hub.pem"},
    "tls.client_ca": {"tls.cert": "{dir}/hub.pem", "tls.key": "{dir}/hub.key"},
    "admission.max_client_id_lifetime_sec": {"admission.kex1_plus": "true"},
    "admission.max_msgs_per_client_id_per_label": {"admission.kex1_plus": "true"},
    "admission.realm": {"admission.auth1": "true"},
    "admission.unspecified_authority": {"admission.auth1": "true"},
    "retention.receipts": {"retention.payloads": "1d"},
    "admission.profiles": {"admission.stream_scope": "enforced"},
    "quic.enabled": {"tls.cert": "{dir}/hub.pem", "tls.key": "{dir}/hub.key"},
    "limits.max_msg_bytes": {"limits.max_body_bytes": "100", "limits.max_hdr_bytes": "100"},
}


def sink_of(hub):
    logged(hub)  # the writer thread takes the new sink after the lines before it
    return hub.log._sink


def logged(hub):
    """The line that an event leaves, in whatever file the log has now."""
    marker = f"look {len(logged_once)}"
    logged_once.append(marker)
    hub.log.event("error", "probe", marker)
    deadline = asyncio.get_running_loop().time() + 30
    while asyncio.get_running_loop().time() < deadline:
        text = hub.config.log.file.read_text() if hub.config.log.file.exists() else ""
        for line in text.splitlines():
            if marker in line:
                return json.loads(line) if line.startswith("{") else {"text": line}
    raise AssertionError("the line never came")


logged_once: list[str] = []


def test_every_key_has_another_value_here():
    assert set(OTHER) == {setting.key for setting in SETTINGS}
    for setting in SETTINGS:  # what counts at once is looked at in the running hub
        assert setting.restart == (OTHER[setting.key][1] is None) or setting.key.startswith("tls.")


@pytest.mark.parametrize("key", spread(OTHER, 32))
def test_each_key_is_in_force_after_a_reload_or_named(tmp_path, key):
    setting = next(each for each in SETTINGS if each.key == key)
    value, look = OTHER[key]
    ca_cert, _, _ = certificate(tmp_path, "ca")
    certificate(tmp_path, "hub")
    assert ca_cert.exists()
    secret_file(tmp_path / "token", NEW)
    (tmp_path / "cap").write_bytes(TOKEN.to_bytes())
    (tmp_path / "witnesses.policy").write_text("quorum none\n")
    beside = {name: text.format(dir=tmp_path) for name, text in COMPANIONS.get(key, {}).items()}
    base = {"admission.stream_scope": "enforced"} if key == "admission.profiles" else {}
    if look is not None:
        base |= beside  # so that only the one key changes

    async def scenario():
        async with Hub.serve(configured(tmp_path, **base)) as hub:
            before = look(hub) if look else hub.config.value_of(key)
            reload = hub.reload(configured(tmp_path, **{**beside, **base, key: value.format(dir=tmp_path)}))
            if look is None:
                assert key in reload.late
                assert key not in reload.applied
                assert hub.config.value_of(key) == before
                again = hub.reload(configured(tmp_path, **{**beside, **base, key: value.format(dir=tmp_path)}))
                assert key in again.late  # until the hub starts again, every reload says so
            else:
                assert not setting.restart
                assert (reload.applied, reload.late) == ((key,), ())
                assert look(hub) != before
            hub.log.event("error", "probe", "the last line")
            return hub.config.log.file, reload

    file, reload = run(scenario())
    if key not in ("log.level", "log.format"):
        (line, *_) = [line for line in log_lines(file) if line["operation"] == "reload"]
        assert line["needs_restart"] == (",".join(reload.late) or "nothing")
        assert line["applied"] == (",".join(reload.applied) or "nothing changed")


def test_a_stream_that_was_removed_is_named(tmp_path):
    async def scenario():
        async with Hub.serve(configured(tmp_path, admission__streams="one,two")) as hub:
            for _ in range(2):
                reload = hub.reload(configured(tmp_path, admission__streams="two,three"))
                assert reload.late == ("admission.streams",)
                assert stream_id_of("three") in hub.resolver._streams
            assert hub.reload(configured(tmp_path, admission__streams="two,three,one")).late == ()

    run(scenario())


def test_a_configuration_that_cannot_be_used_changes_nothing(tmp_path):
    secret_file(tmp_path / "token", OLD)
    flags = {"auth__read_token_files": str(tmp_path / "token")}
    late = {
        "log__file": str(tmp_path / "no-directory" / "log"),
        "auth__admin_token_files": str(tmp_path / "missing"),
        "admission__token_files": str(tmp_path / "token"),
    }

    async def scenario():
        async with Hub.serve(configured(tmp_path, **flags)) as hub:
            parts = (hub.config, hub.access, hub.policy, hub._server.settings, hub.log._level)
            for name, value in late.items():
                with pytest.raises(ConfigError):
                    hub.reload(
                        configured(tmp_path, **{"listen__max_connections": "3", "log__level": "error", name: value})
                    )
                assert (hub.config, hub.access, hub.policy, hub._server.settings, hub.log._level) == parts

    run(scenario())


def test_a_log_file_that_was_renamed_is_let_go(tmp_path):
    async def scenario():
        async with Hub.serve(configured(tmp_path)) as hub:
            logged(hub)
            (tmp_path / "log").rename(tmp_path / "log.1")
            hub.reload(configured(tmp_path))
            logged(hub)

    run(scenario())
    assert any(line["operation"] == "start" for line in log_lines(tmp_path / "log.1"))
    assert {"reload", "stop"} <= {line["operation"] for line in log_lines(tmp_path / "log")}


# --- trust in clients --------------------------------------------------------------------------------------


class Mutual:
    """A hub that demands client certificates, two CAs, and clients of both."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.cert, self.key, _ = certificate(tmp_path, "hub")
        self.ca_cert, _, ca = certificate(tmp_path, "ca")
        self.other_ca_cert, _, other_ca = certificate(tmp_path, "other-ca")
        self.clients = {"old": certificate(tmp_path, "old", ca)[:2], "new": certificate(tmp_path, "new", other_ca)[:2]}
        self.trust(self.ca_cert, self.other_ca_cert)

    def trust(self, *cas):
        (self.tmp_path / "cas.pem").write_bytes(b"# who may connect\n".join(path.read_bytes() for path in cas))

    def flags(self, **more):
        files = {"tls__cert": self.cert, "tls__key": self.key, "tls__client_ca": self.tmp_path / "cas.pem"}
        return {**{name: str(path) for name, path in files.items()}, **more}

    @functools.cache  # noqa: B019 - one context per client and version keeps its session tickets
    def context(self, name, version):
        context = trusting(self.cert)
        context.minimum_version = context.maximum_version = version
        if name in self.clients:
            context.load_cert_chain(*self.clients[name])
        return context

    def connect(self, hub, name, version=ssl.TLSVersion.TLSv1_3, session=None):
        parts = urlsplit(hub.url)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=30)
        try:
            return self.context(name, version).wrap_socket(plain, session=session)
        except BaseException:
            plain.close()
            raise

    def ask(self, secure, path="/healthz"):
        secure.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        return secure.recv(1 << 16)

    def is_let_in(self, hub, name, version=ssl.TLSVersion.TLSv1_3, session=None):
        """TLS 1.3 clients hear of a refusal with the first answer."""
        try:
            with self.connect(hub, name, version, session) as secure:
                return self.ask(secure).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda each: each.name)
def test_a_client_ca_that_was_removed_is_trusted_no_more(tmp_path, version):
    """Neither in a new handshake, nor by a session ticket, nor in a connection that is open."""
    mutual = Mutual(tmp_path)

    async def scenario():
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, None)
        async with Hub.serve(configured(tmp_path, **mutual.flags())) as hub:
            connections = {name: await in_thread(mutual.connect, hub, name, version) for name in ("old", "new")}
            for secure in connections.values():
                assert (await in_thread(mutual.ask, secure)).startswith(b"HTTP/1.1 200")
            session = connections["old"].session
            mutual.trust(mutual.other_ca_cert)
            reload = hub.reload(configured(tmp_path, **mutual.flags()))
            assert reload.late == ()
            for secure in connections.values():  # the hub has closed them
                with contextlib.suppress(ConnectionError):
                    assert await in_thread(secure.recv, 1) == b""
                secure.close()
            assert not await in_thread(mutual.is_let_in, hub, "old", version)
            assert not await in_thread(mutual.is_let_in, hub, "old", version, session)
            assert await in_thread(mutual.is_let_in, hub, "new", version)
            assert not await in_thread(mutual.is_let_in, hub, "nobody", version)

    run(scenario())
    (line,) = [line for line in log_lines(tmp_path / "log") if line["operation"] == "reload"]
    assert (line["applied"], line["needs_restart"], line["reconnect"]) == ("nothing changed", "nothing", "all clients")


def test_a_handshake_that_began_before_the_reload_does_not_end_in_a_connection(tmp_path):
    """TLS 1.3: the hub has sent its part, and waits for a certificate of the CA that is removed meanwhile."""
    mutual = Mutual(tmp_path)

    async def scenario():
        async with Hub.serve(configured(tmp_path, **mutual.flags())) as hub:
            reader, writer = await asyncio.open_connection(urlsplit(hub.url).hostname, urlsplit(hub.url).port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            secure = mutual.context("old", ssl.TLSVersion.TLSv1_3).wrap_bio(incoming, outgoing)
            with pytest.raises(ssl.SSLWantReadError):
                secure.do_handshake()
            writer.write(outgoing.read())
            incoming.write(await reader.read(1 << 16))
            while True:
                try:
                    secure.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    incoming.write(await reader.read(1 << 16))
            mutual.trust(mutual.other_ca_cert)
            hub.reload(configured(tmp_path, **mutual.flags()))
            secure.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            received = b""
            with contextlib.suppress(ConnectionError):
                writer.write(outgoing.read())
                while part := await reader.read(1 << 16):
                    received += part
            incoming.write(received)
            incoming.write_eof()
            with pytest.raises(ssl.SSLError):
                secure.read(1 << 16)
            assert not hub._server._connections
            writer.close()

    run(scenario())


def test_more_trust_disturbs_nobody(tmp_path):
    mutual = Mutual(tmp_path)
    mutual.trust(mutual.ca_cert)

    async def scenario():
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, None)
        async with Hub.serve(configured(tmp_path, **mutual.flags())) as hub:
            secure = await in_thread(mutual.connect, hub, "old")
            assert (await in_thread(mutual.ask, secure)).startswith(b"HTTP/1.1 200")
            assert not await in_thread(mutual.is_let_in, hub, "new")
            mutual.trust(mutual.other_ca_cert, mutual.ca_cert)
            hub.reload(configured(tmp_path, **mutual.flags()))
            assert (await in_thread(mutual.ask, secure)).startswith(b"HTTP/1.1 200")
            secure.close()
            assert await in_thread(mutual.is_let_in, hub, "new")
            (tmp_path / "cas.pem").write_text("no certificate\n")
            with pytest.raises(TlsError, match="no certificate"):
                hub.reload(configured(tmp_path, **mutual.flags()))
            assert await in_thread(mutual.is_let_in, hub, "new")

    run(scenario())


def test_the_paths_of_tls_files_count_at_once_and_switching_it_off_waits(tmp_path):
    mutual = Mutual(tmp_path)
    cert, key, _ = certificate(tmp_path, "other-hub")

    async def scenario():
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, None)
        flags = {"tls__cert": str(mutual.cert), "tls__key": str(mutual.key)}
        async with Hub.serve(configured(tmp_path, **flags)) as hub:
            assert await in_thread(mutual.is_let_in, hub, "nobody")
            reload = hub.reload(configured(tmp_path, **mutual.flags()))
            assert (reload.applied, reload.late) == (("tls.client_ca",), ())
            assert not await in_thread(mutual.is_let_in, hub, "nobody")
            assert await in_thread(mutual.is_let_in, hub, "old")
            reload = hub.reload(configured(tmp_path, **mutual.flags(tls__cert=str(cert), tls__key=str(key))))
            assert (reload.applied, reload.late) == (("tls.cert", "tls.key"), ())
            assert not await in_thread(mutual.is_let_in, hub, "old")  # which trusts the certificate before
            reload = hub.reload(configured(tmp_path))
            assert reload.late == ("tls.cert", "tls.key", "tls.client_ca")
            assert hub.config.tls.cert == cert

    run(scenario())


def test_a_connection_ends_with_the_certificate_that_opened_it(tmp_path):
    mutual = Mutual(tmp_path)

    async def scenario():
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, None)
        async with Hub.serve(configured(tmp_path, **mutual.flags())) as hub:
            secure = await in_thread(mutual.connect, hub, "old")
            assert (await in_thread(mutual.ask, secure)).startswith(b"HTTP/1.1 200")
            (connection,) = hub._server._connections
            assert 0 < connection.expires < float("inf")
            connection.expires = 0.0  # as if a day had passed
            secure.settimeout(30)
            assert await in_thread(secure.recv, 1) == b""
            secure.close()

    run(scenario())


# --- addresses and credentials -----------------------------------------------------------------------------


async def fetch(hub, path, connection=None):
    def ask():
        used = connection or http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)
        try:
            used.request("GET", path)
            answer = used.getresponse()
            return answer.status, answer.read()
        finally:
            if connection is None:
                used.close()

    return await asyncio.get_running_loop().run_in_executor(None, ask)


def test_denied_networks_count_at_once_for_open_connections_too(tmp_path):
    async def scenario():
        async with Hub.serve(configured(tmp_path)) as hub:
            first = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)
            assert (await fetch(hub, "/tooling/status", connection=first))[0] == 200
            reload = hub.reload(configured(tmp_path, listen__denied_networks="127.0.0.0/8"))
            assert (reload.applied, reload.late) == (("listen.denied_networks",), ())
            first.auto_open = 0  # it must not connect again by itself
            with pytest.raises((OSError, http.client.HTTPException)):
                await fetch(hub, "/tooling/status", connection=first)
            first.close()
            assert (await fetch(hub, "/tooling/status"))[0] == 403
            hub.reload(configured(tmp_path))
            assert (await fetch(hub, "/tooling/status"))[0] == 200

    run(scenario())


async def events(hub, token, label):
    """An open event stream: its lines."""
    reader, writer = await asyncio.open_connection(urlsplit(hub.url).hostname, urlsplit(hub.url).port)
    head = f"GET /tooling/events?label={label.hex()} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    while await reader.readline() not in (b"\r\n", b""):
        pass
    return reader, writer


async def until(reader, mark):
    data = b""
    while mark not in data:
        part = await reader.read(1 << 16)
        assert part, data
        data += part
    return data


def test_a_token_that_was_withdrawn_ends_its_event_streams(tmp_path):
    for name, token in (("old", OLD), ("new", NEW)):
        secret_file(tmp_path / name, token)
    both = {"auth__read_token_files": f"{tmp_path / 'old'},{tmp_path / 'new'}"}

    async def scenario():
        async with Hub.serve(configured(tmp_path, **both)) as hub:
            await hub.sequencer.submit(w.msg(seq=1, token=None).to_bytes())
            streams = {token: await events(hub, token, w.LABEL) for token in (OLD, NEW)}
            for reader, _ in streams.values():
                await until(reader, b"id: 1\n")
            hub.reload(configured(tmp_path, auth__read_token_files=str(tmp_path / "new")))
            data = await until(
                streams[OLD][0], b"\r\n0\r\n\r\n"
            )  # at once: the hub is quiet, and nothing else wakes it
            assert b"event: error" in data
            assert b"E.UNAUTHORIZED" in data
            await hub.sequencer.submit(w.msg(seq=2, token=None).to_bytes())
            assert b"E.UNAUTHORIZED" not in await until(streams[NEW][0], b"id: 2\n")
            for _, writer in streams.values():
                writer.close()

    run(scenario())


def test_a_stream_that_is_busy_ends_before_its_next_page(tmp_path):
    """Checked at each page, not only when it waits."""
    for name, token in (("old", OLD), ("new", NEW)):
        secret_file(tmp_path / name, token)

    async def scenario():
        async with Hub.serve(configured(tmp_path, auth__read_token_files=str(tmp_path / "old"))) as hub:
            for seq in range(1, 131):
                await hub.sequencer.submit(w.msg(seq=seq, token=None).to_bytes())
            query, principal = {"label": w.LABEL.hex()}, Principal(bearer=OLD.encode())
            stream = (await hub.api.call("events", principal=principal, query=query)).stream
            assert stream is not None
            assert await anext(stream) == b": connected\n\n"
            assert b"id: 64\n" in await anext(stream)
            hub.reload(configured(tmp_path, auth__read_token_files=str(tmp_path / "new")))
            assert b"E.UNAUTHORIZED" in await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(scenario())


def test_a_token_that_was_withdrawn_ends_its_long_polls(tmp_path):
    for name, token in (("old", OLD), ("new", NEW)):
        secret_file(tmp_path / name, token)

    async def scenario():
        async with Hub.serve(configured(tmp_path, auth__read_token_files=str(tmp_path / "old"))) as hub:
            body = TailRequest(label=w.LABEL, from_seq=1, wait_sec=30).to_bytes()
            waiting = asyncio.create_task(hub.api.call("tail", body, principal=Principal(bearer=OLD.encode())))
            await asyncio.sleep(0)
            hub.reload(configured(tmp_path, auth__read_token_files=str(tmp_path / "new")))
            assert (await asyncio.wait_for(waiting, 20)).status == 401

    run(scenario())
