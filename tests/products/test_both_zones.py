"""Recorder and bridge as one product: a recorder in each zone, and imported events beside local ones (AGB-20)."""

import time

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.client.hubs import client_at, person, pin_of, run
from tests.lake.query_builders import descriptor
from tests.products.bridge.zones import SOURCE, TARGET, crossed, zones
from tests.products.queryservice.services import RING, table

from veen.client.identity.keyring import Keyring
from veen.client.transport.inprocess import InProcess
from veen.core import canonical
from veen.lake.query.recording import REQUESTS
from veen.lake.query.store import ResultStore
from veen.overlays.airgap.bodies import WithheldEvent
from veen.overlays.recorder import events as sdr
from veen.products.bridge.exporting import OUTGOING
from veen.products.bridge.verifier import verify_here
from veen.products.queryservice.principals import Principals
from veen.products.queryservice.service import QueryService, ServiceSettings
from veen.products.recorder.replay import check_edges, replay_window
from veen.storage.pinned import pin


async def emit(client, stream, count, subject):
    for number in range(count):
        draft = sdr.event(
            subject_id=subject,
            principal_id=client.client_id,
            event_type="login" if number % 2 else "secret",
            event_time=1_700_000_000 + number,
            origin="sshd",
            payload={"n": number},
        )
        await client.send(stream, draft.body, schema=draft.schema)


@pytest.mark.req("AGB-20", "SDR-08")
def test_imported_events_are_replayed_beside_local_ones_with_both_receipts(tmp_path):
    async def story():
        async with zones(tmp_path) as world:
            await emit(world.producer, SOURCE, 4, "z1-user")
            await world.producer.send(SOURCE, b"no recorder event")
            await world.exporter(withhold=lambda entry, opened: "private" if entry.seq == 3 else None).export(SOURCE)
            world.carry()
            await world.importer(verify=verify_here).run()
            rows = []
            async for part, coverage in replay_window(world.reader, world.target_keys, 0, int(time.time()) + 60):
                check_edges(coverage, 0, int(time.time()) + 60)
                rows += [row async for row in part]
            assert [row.event and row.event.subject_id for row in rows] == ["z1-user", "z1-user", None, "z1-user", None]
            assert [row.error for row in rows] == [
                None, None, "withheld in the sending zone: private", None, "SDR.FOREIGN_SCHEMA: not a recorder event",
            ]  # fmt: skip
            for number, row in enumerate(rows, start=1):
                world.reader.pin.check_receipt(row.receipt)  # of this zone
                assert row.crossed is not None
                world.exporter_client.pin.check_receipt(row.crossed.receipt)  # of the other
                assert row.crossed.receipt.stream_seq == number
                shown = row.to_json()["imported"]["origin_receipt"]
                assert shown == row.crossed.receipt.to_json()
            assert isinstance(rows[2].crossed, WithheldEvent)
            assert rows[0].event is not None
            assert rows[0].event.principal_id == world.producer.client_id  # I3 holds across the gap

    run(story())


@pytest.mark.req("AGB-20")
def test_a_recorder_in_each_zone_verifies_and_one_replay_shows_both(tmp_path):
    """By commands: SDR0 in Z1 and Z2, AGB0 between them, `veen recorder replay` in Z2 over record/* and import/*."""
    cli = Cli(tmp_path / "home")
    with running(tmp_path / "z1") as z1, running(tmp_path / "z2") as z2:
        at1 = ("--hub", z1.url, "--pin", z1.about["hub_pk"])
        at2 = ("--hub", z2.url, "--pin", z2.about["hub_pk"])
        plain = "--insecure-plain-keystore"
        cli.json("recorder", "init", "--producer", "web=record/app/web", "--admin", "admin1",
                 "--disclosure", "privacy1", plain, *at1)  # fmt: skip
        cli.json("recorder", "init", "--producer", "local=record/app/local", "--admin", "admin2",
                 "--disclosure", "privacy2", plain, *at2)  # fmt: skip
        for name in ("exporter", "online-log", "importer", "offline-log"):
            cli.json("keygen", "--name", name, plain)
        share(cli, "record/app/web", "admin1", "exporter", read=True)
        for stream, owner, writer in (
            ("bridge/online/log", "admin1", "online-log"),
            ("bridge/offline/log", "admin2", "offline-log"),
            ("import/z1/app/web", "admin2", "importer"),
        ):
            cli.json("id", "keyring", "new", stream, "--identity", owner)
            share(cli, stream, owner, writer)
        for n in range(3):
            cli.json("recorder", "emit", "record/app/web", "--identity", "web", "--type", "far", "--subject", f"u{n}",
                     "{}", *at1)  # fmt: skip
        cli.json("recorder", "emit", "record/app/local", "--identity", "local", "--type", "near", "--subject", "me",
                 "{}", *at2)  # fmt: skip
        cli.json("bridge", "export", "record/app/web", "--dir", tmp_path / "out", "--bridge", "b", "--with-openings",
                 "--identity", "exporter", "--log-identity", "online-log", *at1)  # fmt: skip
        exporter = cli.json("id", "show", "exporter")["id_sign_pk"]
        trust = tmp_path / "trust.toml"
        trust.write_text(
            f'[[source]]\nzone = "z1"\nbridge = "b"\nhub = "{z1.about["hub_pk"]}"\nexporters = ["{exporter}"]\n'
        )
        cli.json("bridge", "send", "--dir", tmp_path / "out", "--to", medium(tmp_path))
        cli.json("bridge", "receive", "--dir", tmp_path / "in", "--from", medium(tmp_path))
        cli.json("bridge", "import", "--dir", tmp_path / "in", "--trust", trust, "--identity", "importer",
                 "--log-identity", "offline-log", *at2)  # fmt: skip
        rows = cli.json("recorder", "replay", "--since", "0", "--identity", "admin2", *at2)["rows"][:-1]
        shown = [(row["stream"], row["event_type"], row["subject_id"]) for row in rows]
        assert shown == [
            ("record/app/local", "near", "me"),
            *(("import/z1/app/web", "far", f"u{n}") for n in range(3)),
        ]
        for admin, at in (("admin1", at1), ("admin2", at2)):
            cli.json("recorder", "checkpoint", "--identity", admin, *at)
            assert cli.json("recorder", "verify", "--identity", admin, *at)["ok"]


def files_below(*roots):
    """Every file with its contents and when it was changed."""
    files = [path for root in roots for path in sorted(root.rglob("*")) if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.req("QRY-29")
def test_nothing_of_a_query_service_behind_the_bridge_crosses_it_backwards(tmp_path, monkeypatch):
    """Queries are asked in the offline zone, of imported events: the online zone is asked nothing and learns nothing.

    Its log ends where it did and its half of the bridge stays as it is, byte for byte; what the importer leaves has no
    way out; and when the online zone exports again, no event is in the bundle.
    """

    async def story():
        async with zones(tmp_path) as world:
            await emit(world.producer, SOURCE, 4, "z1-user")
            await world.exporter().export(SOURCE)
            world.carry()
            await world.importer(verify=verify_here).run()
            asked_there = []
            call = world.z1.api.call

            def watched(*request, **more):
                asked_there.append(request)
                return call(*request, **more)

            monkeypatch.setattr(world.z1.api, "call", watched)
            online = [tmp_path / name for name in ("bridge-z1", "producer", "exporter", "online-log")]
            before, heads = files_below(*online), pin(str(tmp_path / "z1")).heads
            who = person("query-service")
            opened = client_at(InProcess(world.z2.api), pin_of(world.z2), who, tmp_path / "service", ring=RING)
            async with opened as client:
                settings = ServiceSettings(data_dir=str(tmp_path / "z2"), keys=Keyring.of([world.target_keys]))
                principals = Principals.of({"principal": {"alice": table("alice", scopes=["import/*"])}})
                service = await QueryService.open(client, ResultStore(tmp_path / "store"), principals, settings)
                (alice,) = principals.members
                for number in range(3):
                    question = descriptor(query_id=f"q-{number}", scope=[TARGET], evidence={"mode": "full"})
                    submission = await service.submit(alice, canonical.encode(question))
                    assert submission.digest is not None
                    assert submission.digest.hub_id == world.z2.identity.hub_id.hex()
                await service.aclose()
                records = [entry async for entry in client.read(REQUESTS)]
            assert len(records) == 3  # in the log of this zone
            assert files_below(*online) == before
            assert pin(str(tmp_path / "z1")).heads == heads
            assert asked_there == []
            assert [path for path in (tmp_path / "bridge-z2").rglob("*") if path.parent.name == OUTGOING] == []
            await world.exporter().export(SOURCE)
            world.carry()
            await world.importer(verify=verify_here).run()
            assert len(await crossed(world)) == 4
            assert asked_there  # the watch works: the exporter has asked its own hub

    run(story())


def medium(tmp_path):
    folder = tmp_path / "stick"
    folder.mkdir(exist_ok=True)
    return folder


def share(cli, stream, owner, other, *, read=False):
    """Hand the keys of a stream over, as people do."""
    file = cli.root.parent / f"{owner}-{other}.key"
    cli.json("id", "keyring", "share", stream, "--identity", owner, "--out", file, *(["--read"] if read else []))
    cli.json("id", "keyring", "add", f"@{file}", "--identity", other)
