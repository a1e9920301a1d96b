"""A hub put together: it starts from what is there, refuses what it must, and comes back to what it promised."""

import asyncio
import contextlib
import http.client
import json
import random
import shutil
import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.damage import flipped
from tests.hub import builders as w
from tests.waiting import DEADLINE_SEC, eventually

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import label_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import KeyRotate, LimitsSet
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import BirthCertificate
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.hub.api.rotation import check_rotations, rotate_at_rest
from veen.hub.process.config import ConfigError, load
from veen.hub.process.runtime import Hub
from veen.hub.process.startup import open_identity
from veen.hub.sequencer.sequencer import NotDurable, Overloaded
from veen.io.errors import CorruptError, LockedError
from veen.io.local import OsFs
from veen.io.notify import Notifier
from veen.io.tls import TlsError
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.anchors import AnchorError
from veen.storage.control_state import control_records
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import (
    BlankLogError,
    KeyDirFs,
    KeyExposedError,
    MissingIdentityError,
    MissingKeyError,
    write_birth,
    write_private_key,
)
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

OPEN = {"admission.capability_gating": "false", "admission.stream_scope": "open"}


def configured(tmp_path, **flags):
    defaults = {
        "data_dir": str(tmp_path / "hub"),
        "listen.port": "0",
        "engine.workers": str(w.WORKERS),
        "log.file": str(tmp_path / "log"),
        **OPEN,
    }
    return load(None, {}, {**defaults, **{name.replace("__", "."): value for name, value in flags.items()}})


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, DEADLINE_SEC))


@contextlib.asynccontextmanager
async def running(tmp_path, *, clock=None, **flags):
    options = {} if clock is None else {"clock": clock}
    async with Hub.serve(configured(tmp_path, **flags), **options) as hub:
        yield hub


async def get(hub, path):
    def fetch():
        parts = urlsplit(hub.url)
        with contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}

    return await asyncio.get_running_loop().run_in_executor(None, fetch)


async def submit(hub, count, first=1, **options):
    """The receipts of `count` messages of one writer."""
    messages = [w.msg(seq=seq, token=None, **options).to_bytes() for seq in range(first, first + count)]
    return [await hub.sequencer.submit(message) for message in messages]


def fs_of(tmp_path):
    return OsFs(tmp_path / "hub")


def assert_whole(tmp_path):
    report = verify_data(fs_of(tmp_path))
    assert report.ok, [str(finding) for finding in report.findings]
    return report


# --- identity --------------------------------------------------------------------------------------------


@pytest.mark.req("OPS-06")
def test_a_restart_changes_neither_identity_nor_routing_key_nor_log(tmp_path):
    async def once(first):
        async with running(tmp_path) as hub:
            receipts = await submit(hub, 3, first)
            return hub.identity.hub_id, hub.identity.routing_key, hub.identity.current_pk, receipts

    single, two = run(once(1)), run(once(4))
    assert single[:3] == two[:3]
    assert [Receipt.from_bytes(data).stream_seq for data in single[3] + two[3]] == [1, 2, 3, 4, 5, 6]
    assert next(iter(assert_whole(tmp_path).labels.values())).size == 6


def test_a_second_start_names_the_holder(tmp_path):
    async def scenario():
        async with running(tmp_path) as hub:
            with pytest.raises(LockedError) as caught:
                await Hub(configured(tmp_path)).start()
            assert hub.url in caught.value.holder
            assert caught.value.holder.startswith("pid ")
            assert len(await submit(hub, 1)) == 1  # the first is not disturbed

    run(scenario())


def test_a_missing_private_key_refuses_to_start(tmp_path):
    """D-42: a hub never invents an identity."""

    async def start():
        async with running(tmp_path) as hub:
            return hub.identity.current_pk

    run(start())
    (key,) = (tmp_path / "hub" / "keys").iterdir()
    seed = key.read_bytes()
    key.unlink()
    with pytest.raises(MissingKeyError):
        run(start())
    key.write_bytes(seed.upper() if seed.upper() != seed else seed[:-2] + b"\n")
    key.chmod(0o600)
    with pytest.raises(Exception, match="not the private key"):
        run(start())


@pytest.mark.parametrize("place", ["data", "keys_dir"])
def test_a_private_key_that_others_may_read_refuses_to_start(tmp_path, place):
    """As ssh does; what belongs to another owner, such as a mounted Secret, is not ours to judge."""
    keys = tmp_path / "secret" if place == "keys_dir" else tmp_path / "hub" / "keys"
    options = {"keys_dir": str(keys)} if place == "keys_dir" else {}
    if options:
        write_private_key(keys, w.HUB)
        write_birth(keys, w.HUB, 2**40)

    async def start():
        async with running(tmp_path, **options):
            pass

    run(start())
    (path,) = keys.glob("*.key")
    for mode in (0o644, 0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(KeyExposedError, match=f"mode {mode:04o}") as caught:
            run(start())
        assert "chmod 600" in caught.value.hint
        report = verify_data(fs_of(tmp_path) if not options else KeyDirFs(tmp_path / "hub", keys))
        assert report.ok  # the log is good all the same
        assert any(f"mode {mode:04o}" in str(finding) for finding in report.findings)
    path.chmod(0o600)
    run(start())


def test_a_hub_whose_disk_is_full_during_a_retirement_refuses_by_name_and_comes_back(tmp_path, monkeypatch):
    async def scenario():
        async with running(tmp_path, engine__min_free_bytes="0", engine__retire_seconds="0") as hub:
            receipts = await submit(hub, 600)
            database, cramped = hub.fs.database, [True]

            def without_room(path):
                connection = database(path)
                if cramped[0]:
                    (pages,) = connection.execute("PRAGMA page_count").fetchone()
                    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
                return connection

            monkeypatch.setattr(hub.fs, "database", without_room)
            assert hub.sequencer.retire_idle()
            await eventually(lambda: hub.not_admitting)
            assert "full" in hub.not_admitting
            status, body, _ = await get(hub, "/readyz")
            assert status == 503
            assert b"disk is full" in body
            with pytest.raises(Overloaded, match="disk is full"):
                hub.sequencer.submit(w.msg(seq=601, token=None).to_bytes())
            cramped[0] = False  # the watcher finds the room by itself
            await eventually(lambda: hub.not_admitting is None)
            assert wal.segments(hub.fs) == [2]
            receipts += await submit(hub, 1, 601)
            assert not hub.failure.done()
            return receipts

    assert len(run(scenario())) == 601
    assert assert_whole(tmp_path).labels[w.LABEL].size == 601


def test_a_log_without_identity_refuses_to_start(tmp_path):
    async def start():
        async with running(tmp_path) as hub:
            await submit(hub, 1)

    run(start())
    (tmp_path / "hub" / "hub-identity.json").unlink()
    with pytest.raises(MissingIdentityError, match="log is not empty"):
        run(start())


def test_a_first_start_that_was_cut_off_begins_again_with_its_key(tmp_path):
    key = SigningKey(b"\x05" * 32)
    write_private_key(tmp_path / "hub" / "keys", key)
    birth = write_birth(tmp_path / "hub" / "keys", key, int(time.time()) + 60)

    async def start():
        async with running(tmp_path) as hub:
            return hub.identity.current_pk

    assert run(start()) == key.public
    assert not birth.exists()  # a copy of the keys alone must not begin a second log


def test_a_first_start_may_be_cut_off_at_any_write():
    whole = MemFs()
    config = load(None, {}, {"data_dir": "memory"})
    open_identity(whole, config, w.NOW, draw=lambda size: bytes([5]) * size)
    assert not whole.exists(layout.BIRTH)
    for at in range(1, whole.operations + 1):
        for kind in ("lost", "torn", "done"):
            fs = MemFs(fault=Fault(at, kind))
            with pytest.raises(Crash):
                open_identity(fs, config, w.NOW, draw=lambda size: bytes([5]) * size)
            fs = fs.after_crash(random.Random(at))
            keys = open_identity(fs, config, w.NOW + 1, draw=lambda size: bytes([6]) * size)
            assert not fs.exists(layout.BIRTH), (at, kind)
            assert list(keys.private) == [keys.identity.current.hub_pk]
            assert identities.load(fs) == keys


BIRTH_CASES = {
    "no certificate": (None, "no birth certificate"),
    "expired": (lambda key: BirthCertificate.issue(key, w.NOW - 1), "was valid until"),
    "of another key": (lambda key: BirthCertificate.issue(SigningKey(bytes(32)), w.NOW + 60), "is for key"),
    "altered": (lambda key: replace(BirthCertificate.issue(key, w.NOW), not_after=w.NOW + 60), "cannot be used"),
}


@pytest.mark.parametrize(("make", "words"), BIRTH_CASES.values(), ids=BIRTH_CASES)
@pytest.mark.parametrize("mounted", [True, False])
def test_a_known_key_over_a_blank_directory_refuses_to_start(tmp_path, make, words, mounted):
    """D-121: it would sign position 1 again and prove itself dishonest."""
    keys = tmp_path / "secret" if mounted else tmp_path / "hub" / "keys"
    key = SigningKey(b"\x06" * 32)
    write_private_key(keys, key)
    if make is not None:
        (keys / "birth.json").write_bytes(make(key).to_bytes())

    async def start():
        async with running(tmp_path, clock=lambda: w.NOW, **({"keys_dir": str(keys)} if mounted else {})) as hub:
            return hub.identity.current_pk

    with pytest.raises(BlankLogError, match=words) as caught:
        run(start())
    assert caught.value.code == "E.STORAGE.BLANK_LOG"
    assert not (tmp_path / "hub" / "hub-identity.json").exists()
    write_birth(keys, key, w.NOW)
    assert run(start()) == key.public


def test_a_lost_volume_under_a_mounted_key_is_not_begun_anew(tmp_path):
    """The same key never signs position 1 twice: the certificate has run out by the time the volume is lost."""
    keys, now = tmp_path / "secret", [w.NOW]
    key = SigningKey(b"\x06" * 32)
    write_private_key(keys, key)
    write_birth(keys, key, w.NOW + 10)

    async def start():
        async with running(tmp_path, clock=lambda: now[0], keys_dir=str(keys)) as hub:
            return await submit(hub, 1)

    run(start())
    now[0] += 11
    shutil.rmtree(tmp_path / "hub")
    with pytest.raises(BlankLogError):
        run(start())


@pytest.mark.req("HID-09", "HID-13")
def test_an_ephemeral_hub_is_another_hub_at_each_blank_start_and_its_root_vouches_for_it(tmp_path):
    """D-121 (b): the mounted key is the root; fresh key, hub_id and label space at every blank start."""
    root = SigningKey(b"\x07" * 32)
    keys, token = tmp_path / "secret", tmp_path / "token"
    token.write_text("an-administrator\n")
    token.chmod(0o600)
    write_private_key(keys, root)
    flags = {"identity": "ephemeral", "keys_dir": str(keys), "auth__admin_token_files": str(token)}

    async def start(seq=0, *, rotate=False):
        async with running(tmp_path, **flags) as hub:
            if seq:
                await submit(hub, 1, seq)
            if rotate:
                await hub.rotate_key(60)
            return hub.identity.hub_id, hub.identity.current_pk

    def signed():
        """The identity, if the root signed it."""
        return identities.read_identity(fs_of(tmp_path), root.public)

    hub_id, hub_pk = run(start(1))
    assert root.public != hub_pk
    assert signed().hub_id == hub_id
    assert run(start(rotate=True))[0] == hub_id  # the directory is there: the same hub goes on
    assert (signed().hub_id, len(signed().keys)) == (hub_id, 2)
    assert run(start(2))[0] == hub_id
    assert verify_data(fs_of(tmp_path)).ok
    assert verify_data(fs_of(tmp_path), root_pk=root.public).ok
    assert not verify_data(fs_of(tmp_path), root_pk=hub_pk).ok
    shutil.rmtree(tmp_path / "hub")
    assert run(start(1))[0] != hub_id
    assert signed().hub_id != hub_id
    other = SigningKey(b"\x08" * 32)
    for path in keys.iterdir():
        path.unlink()
    write_private_key(keys, other)
    with pytest.raises(CorruptError, match="not by the configured root key"):
        run(start())


def test_an_ephemeral_hub_needs_its_root_and_never_takes_over_a_log(tmp_path):
    with pytest.raises(ConfigError, match="needs the root key"):
        run(_start_once(tmp_path, identity="ephemeral"))
    run(_start_once(tmp_path))
    write_private_key(tmp_path / "secret", SigningKey(b"\x07" * 32))
    with pytest.raises(CorruptError, match="not by the configured root key"):
        run(_start_once(tmp_path, identity="ephemeral", keys_dir=str(tmp_path / "secret")))
    (tmp_path / "hub" / "hub-identity.json").unlink()
    with pytest.raises(MissingIdentityError, match="is not empty"):
        run(_start_once(tmp_path, identity="ephemeral", keys_dir=str(tmp_path / "secret")))


async def _start_once(tmp_path, **flags):
    async with running(tmp_path, **flags) as hub:
        return hub.identity.hub_id


@pytest.mark.req("K8S-06")
def test_an_authority_uses_the_keys_it_is_given_and_makes_none(tmp_path):
    async def start(**flags):
        async with running(tmp_path, role="authority", **flags) as hub:
            return hub.identity.current_pk

    with pytest.raises(MissingIdentityError, match="does not create"):
        run(start())
    keys = tmp_path / "secret"
    keys.mkdir()
    with pytest.raises(ConfigError, match="holds no private key"):
        run(start(keys_dir=str(keys)))
    key = SigningKey(b"\x06" * 32)
    path = write_private_key(keys, key)
    write_birth(keys, key, int(time.time()) + 60)
    keys.chmod(0o500)
    assert run(start(keys_dir=str(keys))) == key.public
    assert run(start(keys_dir=str(keys))) == key.public
    assert not list((tmp_path / "hub").glob("keys/*"))
    keys.chmod(0o700)
    path.unlink()
    with pytest.raises(MissingKeyError):
        run(start(keys_dir=str(keys)))


@pytest.mark.req("HID-05", "HID-07")
def test_after_a_rotation_old_and_new_receipts_verify(tmp_path):
    now = [w.NOW]

    async def send(first):
        async with running(tmp_path, clock=lambda: now[0], limits__max_checkpoint_interval="2") as hub:
            return [Receipt.from_bytes(data) for data in await submit(hub, 3, first)]

    before = run(send(1))
    rotated = rotate_at_rest(fs_of(tmp_path), w.NOW + 10, overlap_seconds=5)
    now[0] = w.NOW + 12  # both keys are valid
    during = run(send(4))
    now[0] = w.NOW + 100
    after = run(send(7))
    old, new = (key.hub_pk for key in rotated.keys)
    assert [rotated.verify_receipt(receipt).hub_pk for receipt in before + during + after] == [old] * 3 + [new] * 6
    assert len(check_rotations(fs_of(tmp_path))) == 3
    assert_whole(tmp_path)
    label = w.LABEL.hex()
    checkpoints = [
        Checkpoint.from_bytes(path.read_bytes()) for path in (tmp_path / "hub" / "log").glob(f"checkpoint-{label}-*")
    ]
    witnessed = {point.upto_seq: point.witness_sigs for point in checkpoints}
    assert witnessed[2] is None
    assert len(witnessed[4] or ()) == 2  # D-37: old and new, while both are valid


class CutBeforeTheIdentity(OsFs):
    """The power goes when the identity files are about to be replaced."""

    def replace(self, path, data, *, private=False):
        if path == layout.KEY_MAP:
            raise OSError("cut")
        super().replace(path, data, private=private)


def test_a_rotation_cut_off_after_its_record_is_finished_at_the_next_start(tmp_path):
    async def start():
        async with running(tmp_path) as hub:
            return hub.identity.current_pk

    run(start())
    with pytest.raises(OSError, match="cut"):
        rotate_at_rest(CutBeforeTheIdentity(tmp_path / "hub"), 2**31, overlap_seconds=0, accept_clock=True)
    assert len(identities.read_identity(fs_of(tmp_path)).keys) == 1
    run(start())
    identity = identities.read_identity(fs_of(tmp_path))
    bodies = [record.body for _, record in control_records(fs_of(tmp_path))]
    (rotation,) = [body for body in bodies if isinstance(body, KeyRotate)]
    assert identity.keys[1].hub_pk == rotation.hub_pk


# --- limits ----------------------------------------------------------------------------------------------


def limits_in(tmp_path):
    return [
        record.body.limits["max_msg_bytes"]
        for _, record in control_records(fs_of(tmp_path))
        if isinstance(record.body, LimitsSet)
    ]


@pytest.mark.req("LIM-05", "GEN-28")
def test_limits_are_written_journaled_and_fixed_while_the_hub_runs(tmp_path):
    """D-75 and spec §14.1."""

    async def start(**flags):
        async with running(tmp_path, **flags) as hub:
            assert hub.reload(configured(tmp_path, limits__max_msg_bytes="1000")).late == ("limits.max_msg_bytes",)
            return hub.sequencer.store.state.limits

    assert run(start()) == DEFAULT_LIMITS
    assert run(start(limits__max_msg_bytes="4096")).max_msg_bytes == 4096
    assert run(start()).max_msg_bytes == 4096  # limits.json remembers
    assert limits_in(tmp_path) == [1_048_576, 4096]
    assert json.loads((tmp_path / "hub" / "limits.json").read_text())["max_msg_bytes"] == 4096
    assert_whole(tmp_path)


@pytest.mark.req("LIM-07")
def test_a_registry_above_the_protocols_refuses_to_start(tmp_path):
    async def start():
        async with running(tmp_path):
            pass

    run(start())
    path = tmp_path / "hub" / "limits.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_msg_bytes": 1_048_577}))
    with pytest.raises(ConfigError, match="above the maximum"):
        run(start())


# --- checkpoints -----------------------------------------------------------------------------------------


def test_checkpoints_link_the_epochs_of_a_stream(tmp_path):
    """D-38: where labels rotate, label_prev is always the label of the epoch before."""
    stream = stream_id_of("orders")
    flags = {
        "admission__profiles": "ref",
        "admission__stream_scope": "enforced",
        "admission__streams": "orders",
        "limits__max_checkpoint_interval": "2",
    }
    epoch = w.NOW // 60

    async def scenario():
        async with running(tmp_path, clock=lambda: w.NOW, **flags) as hub:
            label = label_of(hub.identity.routing_key, stream, epoch)
            receipts = await submit(hub, 2, label=label, profile=PRESETS["ref"])
            assert all(isinstance(receipt, bytes) for receipt in receipts)
            return label, hub.identity.routing_key, hub.identity.current_pk

    label, routing_key, hub_pk = run(scenario())
    (path,) = (tmp_path / "hub" / "log").glob(f"checkpoint-{label.hex()}-*.cbor")
    checkpoint = Checkpoint.from_bytes(path.read_bytes())
    checkpoint.verify(hub_pk)
    checkpoint.check_labels(routing_key, stream)
    assert checkpoint.label_prev == label_of(routing_key, stream, epoch - 1)
    assert_whole(tmp_path)


# --- running ---------------------------------------------------------------------------------------------


def test_low_disk_refuses_submits_but_answers_reads(tmp_path):
    async def scenario():
        async with running(tmp_path, engine__min_free_bytes="8000000GiB") as hub:
            status, body, _ = await get(hub, "/readyz")
            assert status == 503
            assert b"free space" in body
            assert (await get(hub, "/healthz"))[0] == 200
            reply = await hub.api.call("submit", b"\xa2\x01\x01\x02" + w.msg(token=None).to_bytes())
            assert reply.status == 503
            hub.config = replace(hub.config, engine=replace(hub.config.engine, min_free_bytes=0))
            hub._watch_disk()
            assert (await get(hub, "/readyz"))[0] == 200
            reply = await hub.api.call("submit", b"\xa2\x01\x01\x02" + w.msg(token=None).to_bytes())
            assert reply.status == 200

    run(scenario())


def test_a_quiet_hub_leaves_little_in_its_journal(tmp_path):
    async def scenario():
        async with running(tmp_path, engine__retire_seconds="1") as hub:
            await submit(hub, 20)
            assert hub.gauges()["veen_journal_bytes"] > 5_000
            journal = tmp_path / "hub" / "journal"
            await eventually(lambda: hub.gauges()["veen_journal_bytes"] < 200 and len(list(journal.iterdir())) == 1)
            await submit(hub, 2, 21)

    run(scenario())
    assert next(iter(assert_whole(tmp_path).labels.values())).size == 22


def test_a_failing_disk_stops_the_hub(tmp_path):
    """DESIGN §3: after an fsync error the page cache may lie, so nothing goes on."""

    async def scenario():
        async with running(tmp_path) as hub:
            await submit(hub, 1)

            def fail(payload):
                raise OSError(5, "Input/output error")

            hub.sequencer.store.journal.write = fail
            with pytest.raises(NotDurable):
                await submit(hub, 1, 2)
            error = await asyncio.wait_for(hub.failure, DEADLINE_SEC)
            assert "Input/output" in str(error)
            assert (await get(hub, "/readyz"))[0] == 503

    run(scenario())
    assert any(line["operation"] == "fail" for line in log_lines(tmp_path))
    assert next(iter(assert_whole(tmp_path).labels.values())).size == 1


def log_lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_a_reload_takes_over_trust_and_names_what_needs_a_restart(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o600)

    async def scenario():
        async with running(tmp_path) as hub:
            assert not hub.policy.trusted_issuers
            reload = hub.reload(
                configured(
                    tmp_path,
                    admission__trusted_issuers=w.ISSUER.public.hex(),
                    admission__profiles="ref",
                    admission__stream_scope="enforced",
                    auth__admin_token_files=str(tmp_path / "token"),
                    log__level="error",
                    listen__port="1",
                )
            )
            assert reload.late == ("listen.port", "admission.profiles", "admission.stream_scope")
            assert hub.sequencer.policy is hub.policy
            assert set(hub.policy.trusted_issuers) == {w.ISSUER.public}
            assert hub.policy.profiles == configured(tmp_path).policy().profiles
            assert hub.access.admins
            await submit(hub, 1)  # not logged any more

    run(scenario())
    assert not [line for line in log_lines(tmp_path) if line["operation"] == "submit"]


def certificate(directory, name):
    """A self-signed certificate and its key, in the files that a configuration names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(begin).not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
    signed = builder.sign(key, hashes.SHA256())
    (directory / "cert.pem").write_bytes(signed.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "key.pem").touch(mode=0o600)
    (directory / "key.pem").write_bytes(private)
    return signed.public_bytes(Encoding.DER)


def test_a_reload_serves_the_new_certificate(tmp_path):
    flags = {"tls__cert": str(tmp_path / "cert.pem"), "tls__key": str(tmp_path / "key.pem")}

    def seen(hub):
        parts = urlsplit(hub.url)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # we only look at what is shown
        plain = socket.create_connection((parts.hostname, parts.port), timeout=10)
        with plain, context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True)

    async def scenario():
        old = certificate(tmp_path, "old")
        loop = asyncio.get_running_loop()
        async with running(tmp_path, **flags) as hub:
            assert hub.url.startswith("https://")
            assert await loop.run_in_executor(None, seen, hub) == old
            new = certificate(tmp_path, "new")
            assert hub.reload(configured(tmp_path, **flags)).late == ()
            assert await loop.run_in_executor(None, seen, hub) == new
            (tmp_path / "cert.pem").write_text("nonsense")
            with pytest.raises(TlsError):
                hub.reload(configured(tmp_path, **flags))
            assert await loop.run_in_executor(None, seen, hub) == new

    run(scenario())


@pytest.mark.req("OBS-01", "OBS-02", "OBS-03")
def test_what_happens_in_the_hub_reaches_metrics_and_log(tmp_path):
    async def scenario():
        async with running(tmp_path, limits__max_checkpoint_interval="2") as hub:
            await submit(hub, 3)
            await submit(hub, 1)  # a duplicate
            await hub.sequencer.submit(b"\x80")
            hub.sequencer.retire_idle()
            await hub.sequencer.drain()
            status, body, headers = await get(hub, "/metrics")
            assert status == 200
            assert headers["content-type"].startswith("text/plain; version=0.0.4")
            return body.decode().splitlines()

    lines = run(scenario())
    for line in (
        "veen_submit_ok_total 3",
        'veen_submit_err_total{code="E.SEQ"} 1',
        'veen_submit_err_total{code="E.FORMAT"} 1',
        "veen_verify_latency_ms_count 4",
        "veen_commit_latency_ms_count 3",
        "veen_end_to_end_latency_ms_count 5",
        "veen_checkpoint_interval_count 1",
        "veen_checkpoint_interval_sum 2.0",
        "veen_queue_depth 0",
        "veen_entries 3",
    ):
        assert line in lines
    submits = [line for line in log_lines(tmp_path) if line["operation"] == "submit"]
    assert [line.get("stream_seq") for line in submits] == [1, 2, 3, None, None]
    assert [line.get("code") for line in submits] == [None, None, None, "E.SEQ", "E.FORMAT"]
    assert submits[0]["client_id_prefix"] == w.ALICE.public.hex()[:8]
    assert submits[0]["leaf_hash_prefix"] == w.msg(token=None).leaf_hash().hex()[:8]


def test_reported_evidence_is_kept_once_and_in_bounded_space(tmp_path):
    def receipt(leaf):
        return Receipt.issue(w.HUB, label=w.LABEL, stream_seq=1, leaf_hash=leaf, mmr_root=leaf, hub_ts=1)

    async def scenario():
        async with running(tmp_path) as hub:
            for number in range(70):
                other = receipt(bytes([number + 1]) * 32)
                hub.keep_evidence(Equivocation.of(receipt(bytes(32)), other, one_pk=w.HUB.public))
                hub.keep_evidence(Equivocation.of(receipt(bytes(32)), other, one_pk=w.HUB.public))

    run(scenario())
    assert len(list((tmp_path / "hub" / "evidence").iterdir())) == 64


@pytest.mark.req("AUTH-06")
def test_proof_of_equivocation_is_told_loudly_and_anchored(tmp_path):
    """001 spec-2 §3.4: high severity, and somebody outside the log remembers it; a backend that fails stops nothing."""
    log = tmp_path / "log"

    def evidence(leaf):
        first, two = (
            Receipt.issue(w.HUB, label=w.LABEL, stream_seq=1, leaf_hash=each, mmr_root=each, hub_ts=1)
            for each in (bytes(32), leaf)
        )
        return Equivocation.of(first, two, one_pk=w.HUB.public)

    class Full:
        name = "full"

        def publish(self, root, epoch, ts, nonce):
            raise AnchorError("no room")

    async def scenario():
        flags = {"log.file": str(log), "log.format": "json", "log.level": "info"}
        async with running(tmp_path, **flags) as hub:
            stored = evidence(b"x" * 32)
            hub.keep_evidence(stored)
            hub.keep_evidence(stored)  # known already
            entries = list((tmp_path / "hub" / "evidence").iterdir())
            anchored = (tmp_path / "hub" / layout.ANCHORS).read_bytes()
            hub.anchors = Full()
            hub.keep_evidence(evidence(b"y" * 32))
            return H(stored.to_bytes()), entries, anchored

    root, entries, anchored = run(scenario())
    assert len(entries) == 1
    assert anchored.count(root) == 1
    assert_whole(tmp_path)
    said = [json.loads(line) for line in log.read_text().splitlines()]
    loud = [line["level"] for line in said if line["operation"] == "equivocation"]
    assert loud == ["error"] * 4
    assert len(list((tmp_path / "hub" / "evidence").iterdir())) == 2


def test_a_port_in_use_and_a_directory_that_cannot_be_made(tmp_path):
    async def start(**flags):
        async with running(tmp_path, **flags):
            pass

    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        with pytest.raises(ConfigError, match="cannot listen on"):
            run(start(listen__port=str(occupied.getsockname()[1])))
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot be made"):
        run(start(data_dir=str(tmp_path / "file" / "hub")))
    run(start())  # the failed starts left nothing locked


def test_a_tenant_is_ready_once_its_authority_answers(tmp_path):
    """spec-4 §10.1."""

    async def scenario():
        async with (
            running(tmp_path / "authority") as authority,
            running(tmp_path, authority_url=authority.url) as hub,
        ):
            while (await get(hub, "/readyz"))[0] != 200:  # noqa: ASYNC110 - it is asked; `run` has a deadline
                await asyncio.sleep(0.05)
        async with running(tmp_path, authority_url=authority.url) as hub:
            status, body, _ = await get(hub, "/readyz")
            assert status == 503
            assert b"authority" in body

    (tmp_path / "authority").mkdir()
    run(scenario())


# --- housekeeping ----------------------------------------------------------------------------------------


@pytest.mark.req("COMP-01")
def test_old_payloads_go_and_receipts_and_proofs_stay(tmp_path):
    now = [w.NOW]
    request = {"ver": 1, "label": w.LABEL.hex()}

    async def scenario():
        flags = {"limits__max_checkpoint_interval": "2", "retention__payloads": "30d", "engine__max_clock_step": "0"}
        async with running(tmp_path, clock=lambda: now[0], **flags) as hub:
            receipts = await submit(hub, 5)
            hub.sequencer.retire_idle()
            await hub.sequencer.drain()
            await hub.sequencer._retired.wait()
            assert await hub.house.erase(hub.config.retention) == 0
            now[0] += 31 * 86_400
            assert await hub.house.erase(hub.config.retention) == 2
        async with running(tmp_path, clock=lambda: now[0], **flags) as hub:
            reply = await hub.api.call("stream", json.dumps({**request, "from_seq": 1}).encode(), form="json")
            assert reply.status == 404
            assert json.loads(reply.body)["detail"]["reason"] == "pruned"
            reply = await hub.api.call("receipt", json.dumps({**request, "stream_seq": 3}).encode(), form="json")
            assert Receipt.from_json(json.loads(reply.body)["receipt"]).to_bytes() == receipts[2]
            reply = await hub.api.call("proof", json.dumps({**request, "stream_seq": 3}).encode(), form="json")
            assert reply.status == 200
            assert await hub.house.erase(hub.config.retention) == 0

    run(scenario())
    assert not list((tmp_path / "hub" / "log").glob("chunk-*.log"))
    assert len(list((tmp_path / "hub" / "log").glob("checkpoint-*-0*.cbor"))) == 2
    assert_whole(tmp_path)


def test_sealed_chunks_are_compressed_where_the_limits_say_so(tmp_path):
    flags = {"limits__max_checkpoint_interval": "2", "limits__compression": "zlib"}

    async def scenario():
        async with running(tmp_path, **flags) as hub:
            receipts = await submit(hub, 5)
            hub.sequencer.retire_idle()
            await hub.sequencer.drain()
            await hub.sequencer._retired.wait()
            assert await hub.house.compress() == 2
            assert await hub.house.compress() == 0
            body = json.dumps({"ver": 1, "label": w.LABEL.hex(), "from_seq": 1, "with_receipts": True}).encode()
            reply = await hub.api.call("stream", body, form="json")
            items = json.loads(reply.body)["items"]
            assert [Receipt.from_json(item["receipt"]).to_bytes() for item in items] == receipts

    run(scenario())
    assert_whole(tmp_path)


def test_the_scrubber_finds_damage_and_says_so(tmp_path):
    flags = {"limits__max_checkpoint_interval": "2", "scrub__bytes_per_second": "1MiB"}

    async def fill():
        async with running(tmp_path, **flags) as hub:
            await submit(hub, 4)

    run(fill())
    chunk = sorted((tmp_path / "hub" / "log").glob("chunk-*.log"))[0]
    whole = chunk.read_bytes()
    chunk.write_bytes(flipped(whole, 200))

    async def look():
        async with running(tmp_path, **flags) as hub:
            await eventually(lambda: hub.observer.scrub_findings)
            assert b"veen_scrub_findings_total 1" in hub.metrics_text()

    run(look())
    (line,) = [line for line in log_lines(tmp_path) if line["operation"] == "scrub"]
    assert line["path"] == f"log/{chunk.name}"


# --- systemd ---------------------------------------------------------------------------------------------


def test_the_service_manager_is_told(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(path)
        channel.settimeout(5)
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000"})
        assert notifier.watchdog_seconds == 1.5
        notifier.send_ready("listening")
        notifier.send_reloading()
        notifier.send_alive()
        notifier.send_stopping("draining")
        said = [channel.recv(4096).decode() for _ in range(4)]
    assert said[0] == "READY=1\nSTATUS=listening"
    assert said[1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert said[2] == "WATCHDOG=1"
    assert said[3].startswith("STOPPING=1")


def test_without_a_service_manager_nothing_is_said(tmp_path):
    notifier = Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"})
    assert notifier.watchdog_seconds == 0
    notifier.send_ready("listening")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send_alive()
