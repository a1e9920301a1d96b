"""`veen.connect` and its async twin: one call, verified receipts, and keys that are kept."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

import veen
from veen.client.errors import NotPinned, SettingsError, UnknownStream
from veen.client.home import Home
from veen.client.identity.keystore import create_identity, open_identity
from veen.client.identity.passphrases import WeakPassphrase
from veen.client.identity.stream_keys import StreamInUse
from veen.client.send.writing import Sent
from veen.core.errors import OpenError, VeenError

PHRASE = "four words that nobody guesses"


@pytest.fixture(scope="module")
def hub():
    with veen.testing.hub() as running:
        yield running


@pytest.fixture
def stream(request):
    """A name of its own for each test, as they share a hub."""
    return f"test/{request.node.name}"


@pytest.fixture
def context(hub, tmp_path, monkeypatch):
    """A fresh home with the context that `veen hub start --dev` registers."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        f'current_context = "dev"\n[context.dev]\nhub = "{hub.url}"\nhub_pk = "{hub.pin}"\nmake_keys = true\n'
        'identity = "dev"\npassphrase_file = "dev.passphrase"\n'
    )
    monkeypatch.setenv("VEEN_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


def test_a_context_is_all_that_a_program_needs(context, stream, caplog):
    caplog.set_level(logging.INFO, "veen")
    with veen.connect() as hub:
        sent = hub.stream(stream).send({"event": "login"})
        (entry,) = hub.stream(stream).read()
    assert (sent.seq, entry.seq, entry.json, entry.author) == (1, 1, {"event": "login"}, "dev")
    assert entry.receipt == sent.receipt
    assert entry.time.tzinfo is UTC
    said = [record.getMessage() for record in caplog.records]
    assert any("made the identity dev" in line for line in said)
    assert any("made the keys" in line for line in said)
    assert (context / "dev.passphrase").stat().st_mode & 0o077 == 0


def test_a_second_run_finds_the_keys_of_the_first(context, stream):
    """What a program makes is kept: otherwise nobody could ever read what it sent."""
    for number in (1, 2):
        with veen.connect("dev") as hub:
            hub.stream(stream).send(f"run {number}")
            assert [entry.text for entry in hub.stream(stream).read()] == [f"run {run}" for run in range(1, number + 1)]


def test_bodies_are_json_text_or_bytes(context, stream):
    with veen.connect() as hub:
        handle = hub.stream(stream)
        for body in ({"a": [1, None]}, [1, 2], "grüße", b"\xff\x00"):
            handle.send(body)
        first, second, third, fourth = handle.read()
    assert (first.json, second.json, third.text, fourth.body) == ({"a": [1, None]}, [1, 2], "grüße", b"\xff\x00")
    schemas = [entry.entry.event and entry.entry.event.hdr.schema for entry in (first, second, third)]
    assert schemas[0] == schemas[1] != schemas[2]
    with pytest.raises(veen.Error, match="not UTF-8"):
        _ = fourth.text
    with pytest.raises(veen.Error, match="not JSON"):
        _ = third.json


@pytest.mark.parametrize("body", [3.5, None, object(), {"a": object()}, {"a": float("nan")}, {b"key": 1}])
def test_a_body_of_another_kind_is_a_named_error(context, stream, body):
    with veen.connect() as hub, pytest.raises(veen.Error):
        hub.stream(stream).send(body)


def test_many_are_sent_in_batches_with_one_outcome_each(context, stream):
    with veen.connect() as hub:
        outcomes = hub.stream(stream).send_many({"n": number} for number in range(150))
        assert [outcome.seq for outcome in outcomes if isinstance(outcome, Sent)] == list(range(1, 151))
        assert [entry.json["n"] for entry in hub.stream(stream).read(from_seq=149)] == [148, 149]


def test_the_newest_entries_are_read_by_number(context, stream):
    with veen.connect() as hub:
        handle = hub.stream(stream)
        assert list(handle.read(last=3)) == []
        handle.send_many({"n": number} for number in range(5))
        assert [entry.json["n"] for entry in handle.read(last=2)] == [3, 4]
        assert [entry.json["n"] for entry in handle.read(last=9)] == [0, 1, 2, 3, 4]
        assert [entry.json["n"] for entry in handle.read(last=2, to_seq=4)] == [2, 3]
        assert [entry.json["n"] for entry in handle.read(last=1, author="dev")] == [4]
        for bad in (0, -1):
            with pytest.raises(veen.Error):
                next(handle.read(last=bad))


def test_reading_by_time_and_author(context, stream):
    with veen.connect() as hub:
        handle = hub.stream(stream)
        handle.send("now")
        later = datetime.now(UTC) + timedelta(hours=1)
        for since in ("-1h", 0, datetime.now(UTC) - timedelta(hours=1), "1990-01-01"):
            assert len(list(handle.read(since=since))) == 1
        assert list(handle.read(since=later)) == []
        assert list(handle.read(until="-1h")) == []
        for author in ("dev", hub.client_id, hub.client_id.hex()):
            assert len(list(handle.read(author=author))) == 1
        assert list(handle.read(author="bob")) == []
        for bad in (datetime(2026, 1, 1), "yesterday", 1.5):  # noqa: DTZ001 - a time without a zone is the point
            with pytest.raises(veen.Error):
                next(handle.read(since=cast("str", bad)))


def test_follow_gives_what_is_written_later(context, stream):
    with veen.connect() as hub:
        handle = hub.stream(stream)
        handle.send("before")
        entries = handle.follow(from_seq=1)
        assert next(entries).text == "before"
        handle.send("after")
        assert next(entries).text == "after"
        entries.close()


def test_the_async_twin_has_the_same_verbs(hub, stream, tmp_path):
    async def main():
        async with hub.aconnect("async") as connection:
            handle = connection.stream(stream)
            sent = await handle.send("hello")
            await handle.send_many(["a", "b"])
            texts = [entry.text async for entry in handle.read()]
            followed = []
            async for entry in handle.follow(from_seq=2):
                followed.append(entry.text)
                if len(followed) == 2:
                    break
            bundle = await handle.evidence(1, sent.seq)
            kv = await handle.kv()
            await kv.put("colour", {"name": "blue"})
            return texts, followed, bundle.save(tmp_path / "file"), dict(kv)

    async def awaited():
        connection = await hub.aconnect("async")
        try:
            return connection.identity
        finally:
            await connection.aclose()

    texts, followed, path, values = asyncio.run(main())
    assert (texts, followed, values) == (["hello", "a", "b"], ["a", "b"], {"colour": {"name": "blue"}})
    assert veen.verify(path, hub_pk=hub.pin).ok
    assert asyncio.run(awaited()) == "async"


def test_fifty_tasks_share_one_connection(hub, stream):
    async def main():
        async with hub.aconnect("many") as connection:
            sents = await asyncio.gather(*(connection.stream(stream).send({"n": n}) for n in range(50)))
        return sorted(sent.seq for sent in sents)

    assert asyncio.run(main()) == list(range(1, 51))


def test_values_by_key(hub, stream):
    with hub.connect("kv") as connection:
        values = connection.stream(stream).kv()
        assert dict(values) == {}
        values.put("colour", "blue")
        values.put("size", {"w": 2})
        assert dict(values) == {"colour": "blue", "size": {"w": 2}}
        assert connection.stream(stream).kv()["colour"] == "blue"
        values.delete("colour")
        assert "colour" not in values
        assert list(connection.stream(stream).kv()) == ["size"]


# --- evidence ----------------------------------------------------------------------------------------------------


def test_evidence_is_checked_by_anyone_with_the_hubs_key(hub, stream, tmp_path):
    with hub.connect("evidence") as connection:
        handle = connection.stream(stream)
        handle.send_many(["one", "two", "three"])
        bundle = handle.evidence(1, 2, contents="openings")
        assert (len(bundle), connection.hub_pk) == (2, hub.pin)
    path = bundle.save(tmp_path / "orders.veen-evidence")
    assert "veen" in bundle.html(tmp_path / "orders.html").read_text()
    check = veen.verify(path, hub_pk=hub.pin)
    assert check.ok
    assert check
    assert check.proves()
    assert check.limits()
    assert check.report is not None
    assert [entry.body for entry in check.report.entries] == [b"one", b"two"]
    assert veen.verify(str(path), hub_pk=bytes.fromhex(hub.pin.removeprefix("ed25519:"))).ok


def test_evidence_that_does_not_hold_is_not_ok(hub, stream, tmp_path):
    with hub.connect("evidence") as connection:
        connection.stream(stream).send("one")
        path = connection.stream(stream).evidence().save(tmp_path / "file")
    assert not veen.verify(path, hub_pk="ed25519:" + "ab" * 32)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    check = veen.verify(path, hub_pk=hub.pin)
    assert (check.ok, check.report) == (False, None)
    assert check.error
    with pytest.raises(veen.Error, match="hub_pk"):
        veen.verify(path, hub_pk="nonsense")
    with pytest.raises(veen.Error, match="hub_pk"):
        veen.verify(path, hub_pk=[])


def test_the_package_of_that_name_can_be_called_as_well(tmp_path):
    """`veen.verify` is a package and a function: whichever was imported first, the call works."""
    import veen.verify.audit

    (tmp_path / "noise").write_bytes(b"noise")
    assert not veen.verify(tmp_path / "noise", hub_pk="ed25519:" + "ab" * 32).ok


# --- keys --------------------------------------------------------------------------------------------------------


def test_a_stream_that_others_write_to_gets_no_new_keys(hub, stream):
    """New keys would shut its readers out: a colleague without a key has to ask for it."""
    with hub.connect("owner") as owner:
        owner.stream(stream).send("mine")
    with hub.connect("stranger") as stranger:
        handle = stranger.stream(stream)
        with pytest.raises(StreamInUse) as caught:
            handle.send("theirs")
        assert "keyring add" in caught.value.hint
        with pytest.raises(StreamInUse):
            next(handle.read())


def test_a_stream_that_nobody_wrote_to_reads_as_empty_and_makes_nothing(hub, stream):
    with hub.connect("reader") as connection:
        assert list(connection.stream(stream).read()) == []
    assert not open_identity(hub.home, "reader", _phrase(hub.home, "reader")).secrets.keyring.entries


def test_keys_are_not_made_where_that_is_forbidden(hub, stream, tmp_path):
    home = Home.at(tmp_path)
    create_identity(home, "alice", None, now=1)
    options = {"pin": hub.pin, "home": home, "make_keys": False}
    with veen.connect(hub.url, **options) as connection, pytest.raises(UnknownStream):
        connection.stream(stream).send("x")


def _phrase(home, name):
    return (home.config / f"{name}.passphrase").read_text().strip()


def test_a_keystore_is_opened_by_its_passphrase_and_nobody_is_asked(hub, stream, tmp_path):
    home = Home.at(tmp_path)
    at = {"pin": hub.pin, "home": home}
    with veen.connect(hub.url, identity="alice", passphrase=PHRASE, make_keys=True, **at) as connection:
        connection.stream(stream).send("x")
    with pytest.raises(SettingsError) as caught:
        veen.connect(hub.url, **at)
    assert (caught.value.code, "veen agent start" in caught.value.hint) == ("E.LOCAL.INPUT", True)
    with pytest.raises(veen.Error) as wrong:
        veen.connect(hub.url, passphrase="not this one", **at)
    assert wrong.value.code == "E.LOCAL.PASSPHRASE"
    with veen.connect(hub.url, passphrase=PHRASE, **at) as connection:
        assert [entry.text for entry in connection.stream(stream).read()] == ["x"]
    with pytest.raises(WeakPassphrase):
        veen.connect(hub.url, identity="bob", passphrase="12345", make_keys=True, **at)


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        ({"context": "nowhere"}, SettingsError, "E.LOCAL.CONTEXT"),
        ({}, SettingsError, "E.LOCAL.CONTEXT"),
        ({"context": "http://127.0.0.1:9"}, NotPinned, "E.LOCAL.PIN"),
        ({"context": "http://127.0.0.1:9", "pin": "ed25519:" + "ab" * 32}, SettingsError, "E.LOCAL.IDENTITY"),
        ({"context": "http://127.0.0.1:9", "pin": "nonsense"}, SettingsError, "E.USAGE"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, arguments, kind, code):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("VEEN_")]:
        monkeypatch.delenv(name)
    with pytest.raises(kind) as caught:
        veen.connect(home=tmp_path / "home", **arguments)
    assert isinstance(caught.value, veen.Error)
    assert (caught.value.code, bool(caught.value.hint)) == (code, True)


def test_among_several_identities_the_error_says_how_to_choose(hub, tmp_path):
    home = Home.at(tmp_path)
    for name in ("alice", "bob"):
        create_identity(home, name, None, now=1)
    with pytest.raises(SettingsError) as caught:
        veen.connect(hub.url, pin=hub.pin, home=home)
    assert "identity='alice'" in caught.value.hint
    with veen.connect(hub.url, pin=hub.pin, home=home, identity="bob") as connection:
        assert connection.identity == "bob"


def test_a_wrong_pin_is_found_before_anything_is_sent(hub, tmp_path):
    with pytest.raises(veen.Error) as caught:
        veen.connect(hub.url, pin="ed25519:" + "ab" * 32, home=tmp_path, make_keys=True)
    assert caught.value.code.startswith("E.DIVERGED")


def test_a_client_key_of_yesterday_is_replaced(hub, stream, tmp_path):
    """A client key signs for a day: a program must not stop on the second one."""
    home = Home.at(tmp_path)
    old = create_identity(home, "alice", None, now=1).identity.client_id
    with veen.connect(hub.url, pin=hub.pin, home=home) as connection:
        connection.stream(stream).send("x")
        assert connection.client_id != old


def test_a_key_that_is_spent_in_the_middle_is_replaced_and_the_message_goes_out(hub, stream, tmp_path):
    from veen.client.identity.rotation import RotationBounds

    home = Home.at(tmp_path)
    create_identity(home, "alice", None, now=int(datetime.now(UTC).timestamp()))
    bounded = RotationBounds(max_msgs_per_client_id_per_label=2)
    for worker in (False, True):
        with veen.connect(hub.url, pin=hub.pin, home=home, worker=worker) as connection:
            connection.client._rotation._own_bounds = bounded
            first = connection.client_id
            handle = connection.stream(f"{stream}/{worker}")
            handle.send("1")
            handle.send("2")
            handle.send("3")
            assert connection.client_id != first
            assert [entry.text for entry in handle.read()] == ["1", "2", "3"]
            assert {entry.author for entry in handle.read()} == {"alice"}


# --- import ------------------------------------------------------------------------------------------------------


def test_import_veen_loads_nothing_that_costs():
    program = (
        "import sys, veen; print(sorted(m for m in sys.modules if m.split('.')[0] in ('nacl', 'veen', 'asyncio')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['veen', 'veen._moved']"


def test_every_public_name_is_there_and_typed():
    from pathlib import Path

    stub = Path(veen.__file__).with_name("__init__.pyi").read_text()
    for name in vars(veen)["__all__"]:
        assert getattr(veen, name) is not None
        assert f" as {name}\n" in stub or f"{name}: str" in stub or f"{name} = " in stub
    assert veen.Error is VeenError
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(veen, "nonsense")  # noqa: B009 - the access is the test


def test_objects_show_what_they_are(hub, stream):
    with hub.connect("repr") as connection:
        handle = connection.stream(stream)
        handle.send("x")
        (entry,) = handle.read()
        assert hub.url in repr(connection)
        assert stream in repr(handle)
        assert "seq=1" in repr(entry)
        assert "<" in entry._repr_html_()
        bundle = handle.evidence()
        assert "1 entries" in repr(bundle)
        assert "<li>" in bundle._repr_html_()
        assert hub.pin in repr(hub)
        assert json.loads(json.dumps(dict(handle.kv()))) == {}


def test_an_entry_that_our_keys_do_not_open_says_so(hub, stream, tmp_path):
    from dataclasses import replace

    from veen.client.identity.keyring import Keyring, StreamKeys

    with hub.connect("sealer") as connection:
        connection.stream(stream).send("sealed")
    home = Home.at(tmp_path)
    keystore = create_identity(home, "other", None, now=1)
    keystore.save(replace(keystore.secrets, keyring=Keyring().with_keys(StreamKeys.create(stream))))
    with veen.connect(hub.url, pin=hub.pin, home=home) as connection:
        (entry,) = connection.stream(stream).read()
    assert not entry.is_open
    assert entry.error
    with pytest.raises(OpenError):
        _ = entry.body


@pytest.fixture
def current_hub(tmp_path, monkeypatch, hub):
    """A user who has a current context with a hub of her own, and variables that name it."""
    monkeypatch.setenv("VEEN_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("VEEN_CONTEXT", "prod")
    config = Home.default().config_file
    config.parent.mkdir(parents=True)
    config.write_text(f'current_context = "prod"\n[context.prod]\nhub = "{hub.url}"\nhub_pk = "{hub.pin}"\n')
    return hub


def test_an_application_under_test_writes_to_the_hub_of_the_fixture(current_hub, veen_hub):
    """walk A8: the documented lifespan wrote to the current context of the user."""

    async def application():
        async with veen.aconnect(worker=True) as connected:
            await connected.stream("audit/web").send({"event": "login"})

    asyncio.run(application())
    with veen_hub.connect() as reader:
        assert [entry.json for entry in reader.stream("audit/web").read()] == [{"event": "login"}]
    with veen.connect() as connected:
        assert connected.stream("audit/web").send(b"again").seq == 2
