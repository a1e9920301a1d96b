"""The pages over overlays and products: what they say follows from the log, and from the folds that commands use."""

import asyncio
import json
import re
import sys
import time
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from tests.cli.tree import check_line
from tests.client.builders import seeded
from tests.client.hubs import GATED, Clock, token_for
from tests.products.bridge.zones import SOURCE, crossed, send_numbers, zones
from tests.products.console.consoles import HOSTILE_TEXT, ORDERS, RING, SHOP, World, filled, record, world_at
from tests.test_extending import MODULE

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.lake.log.keys import keys_for_tasks
from veen.lake.query.descriptor import normalise
from veen.lake.query.recording import REQUESTS, make_submitted
from veen.lake.tables.loading import load
from veen.lake.tables.sql import run_sql
from veen.overlays.framework import registry
from veen.overlays.operations import agreement
from veen.products.console import events as console_events
from veen.products.console.app import make_app
from veen.products.console.charts import GridCell, TimeBar, beads, chain, gantt, grid, layers, ranges, steps
from veen.products.console.guard import BrowserAdmission
from veen.products.console.pages import operations as console_operations
from veen.products.console.views import Console, LocalFiles
from veen.products.demo.filling import OPERATIONS
from veen.products.queryservice.page import descriptor_of, sql_of
from veen.products.recorder.events import CHANGES_STREAM, CHECKPOINTS_STREAM
from veen.testing.hostile import Forges

REPORTS = (
    "anchors", "recorder", "bridge", "query", "identity", "wallet", "capabilities", "operations", "discovery", "audit",
    "equivocation", "settings",
)  # fmt: skip


def run(tmp_path, work):
    async def main():
        async with filled(tmp_path) as world:
            await work(world)

    asyncio.run(main())


def test_pages_over_overlays_say_what_folds_say(tmp_path):
    async def work(world):
        twins = {name: await world.twin(f"/{name}.json") for name in REPORTS}
        pages = {name: await world.page(f"/{name}") for name in REPORTS}
        for name, twin in twins.items():
            assert ("Verified by nobody" in pages[name]) == (twin["verified_by"] == "nobody"), name
            assert twin["command"] in pages[name].replace("&#39;", "'"), name
            assert "<script>" not in pages[name], name
            assert "\u202e" not in pages[name], name
            if twin["command"].startswith("veen ") and not re.search(
                r"\b(DIR|FILE|STREAM|DATA_DIR)\b", twin["command"]
            ):
                check_line(twin["command"].split()[1:])

        wallet = twins["wallet"]
        assert sorted(row["balance"] for row in wallet["wallets"].values()) == [2500, 9300]
        account = wallet["statement"]
        assert [line["balance"] for line in account["lines"]][-1] == account["closing"] == 9300
        assert {issue["code"] for issue in wallet["issues"]} == {"WAL.DAILY_LIMIT_EXCEEDED", "WAL.FROZEN"}
        assert 'class="band"' in pages["wallet"]
        for wallet_id in wallet["wallets"]:
            shown = await world.twin(f"/wallet.json?wallet={wallet_id}")
            assert shown["statement"]["wallet_id"] == wallet_id
        await world.page("/wallet?wallet=00", 400)

        names = {node["name"] for node in twins["identity"]["nodes"].values()}
        assert {"Bob", "Carol", "Water works", "Operators", "laptop", "bob"} <= names
        states = {node["name"]: node.get("status") for node in twins["identity"]["nodes"].values()}
        assert states["phone"] == "revoked"
        assert "phone (revoked)" in pages["identity"]

        tokens = twins["capabilities"]["tokens"]
        assert sorted(token["state"] for token in tokens) in (["expired", "valid", "valid"], ["valid"] * 3)
        assert all(OPERATIONS in token["streams"] for token in tokens)
        assert 'class="bar good"' in pages["capabilities"]

        agreement = twins["operations"]["agreement"]
        assert list(agreement["active"].values()) == [1]
        assert len(twins["operations"]["publication"]["versions"]) == 1
        assert twins["operations"]["access"]["issues"][0]["code"] == "GRANT.AUTHORITY"

        directory = twins["discovery"]
        assert sorted(listing["kind"] for listing in directory["listings"]) == ["hub", "overlay", "service"]
        assert [(hidden["name"], hidden["reason"]) for hidden in directory["hidden"]] == [
            ("meters", "moved to another hub")
        ]

        (log,) = (log for log in twins["anchors"]["logs"] if log["stream"] == "orders")
        assert [(anchor["upto_seq"], anchor["matches"]) for anchor in log["anchors"]] == [(1, True)]
        assert 'class="anchored"' in pages["anchors"]

        assert all(row["error"] is None for row in twins["audit"]["logs"])
        assert {row["stream"] for row in twins["audit"]["logs"]} >= {"orders", SHOP}

        (producer,) = twins["recorder"]["producers"]
        assert producer["events"] == 5
        assert twins["recorder"]["report"]["verdict"]["value"] != "bad"
        assert twins["bridge"]["verified_by"] == "nobody"
        assert twins["equivocation"]["reports"] == []
        assert twins["settings"]["settings"]["write"] is False

    run(tmp_path, work)


@pytest.mark.req("QRY-28")
def test_a_query_is_a_form_a_descriptor_and_sql_and_its_rows_are_verified(tmp_path):
    left: dict[str, Any] = {}

    async def work(world):
        empty = await world.twin("/query.json")
        assert (empty["descriptor"], empty["verified_by"]) == (None, "nobody")
        asked = f"scope={SHOP}&type=order&where=payload.n%3E%3D2&evidence=full"
        answer = await world.twin(f"/query.json?{asked}")
        assert answer["verified_by"] == "this console"
        assert [row["payload"]["n"] for row in answer["rows"]] == [2, 3, 4]
        assert answer["digest"]["row_count"] == 3
        assert answer["coverage"]["streams"][0]["labels"][0]["to_seq"] == 5
        descriptor = json.dumps({**answer["descriptor"], "query_id": "q-1"})
        again = await world.browser.get("/query.json", params={"descriptor": descriptor})
        assert again.json()["digest"]["rows_hash"] == answer["digest"]["rows_hash"]
        assert again.json()["form"]["values"]["type"] == "order"
        left.update(ring=world.client.keyring, sql=answer["sql"])
        text = await world.page(f"/query?{asked}")
        assert "✓ this console" in text
        assert "typed_sdr_event_v1" in text
        await world.page("/query?scope=record/app/none")
        for bad in (
            "scope=record/app/shop&where=%3D%3D",
            "descriptor=%7B",
            "scope=x&from=yesterdayish",
            f"scope={'a' * 2000}",
        ):
            refused = await world.twin(f"/query.json?{bad}")
            assert refused["refusal"], bad
            assert refused["rows"] == []

        question, _ = normalise(descriptor_of({**dict.fromkeys(
            ("type", "subject", "from", "to", "where", "limit", "evidence"), ""), "scope": SHOP}))  # fmt: skip
        draft = make_submitted(
            question, subject_id="bob", principal_id=world.client.client_id, received_at=1, origin="test"
        )
        await world.client.send(REQUESTS, draft.body, schema=draft.schema)
        (recorded,) = (await world.twin("/query.json"))["history"]
        assert (recorded["query_id"], recorded["state"]) == (question.query_id, "pending")
        assert question.query_id in await world.page("/query")

    run(tmp_path, work)
    with keys_for_tasks(left["ring"]) as key_file:  # the hub is at rest: all of its log is in chunks
        load(str(tmp_path / "hub"), str(tmp_path / "tables"), keys=key_file, engine="python")
    rows = [json.loads(row) for row in run_sql(str(tmp_path / "tables"), left["sql"]).rows]
    assert [row["hub_commit_seq"] for row in rows] == [3, 4, 5]


def test_sql_quotes_what_comes_from_outside():
    values = dict.fromkeys(("type", "from", "to", "limit", "evidence"), "")
    descriptor, _ = normalise(
        descriptor_of({**values, "scope": SHOP, "subject": "o'brien'; DROP TABLE x; --", "where": "payload.a=it's"})
    )
    sql = sql_of(descriptor)
    assert "'o''brien''; DROP TABLE x; --'" in sql
    assert "'it''s'" in sql
    assert sql.splitlines()[1] == "FROM typed_sdr_event_v1"


def test_the_nouns_of_an_installed_overlay_have_a_section(tmp_path, monkeypatch):
    votes = ModuleType("veen_test_votes")
    monkeypatch.setitem(sys.modules, votes.__name__, votes)
    exec(MODULE, vars(votes))  # noqa: S102 - of our own documentation
    points = [EntryPoint("votes", "veen_test_votes:OVERLAY", "veen.overlays")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.setattr(console_operations, "_nouns", console_operations._nouns.__wrapped__)

    async def work(world):
        for choice in ("soup", "salad"):  # the last vote of a client decides
            message = votes.VOTES.verb("cast").message({"question": "lunch", "choice": choice}, now=1)
            await world.client.send(OPERATIONS, message.draft.body, schema=message.draft.schema)
        twin = await world.twin("/operations.json")
        assert twin["votes"]["tallies"] == [{"question": "lunch", "choice": "salad", "votes": 1}]
        assert "Votes on questions" in await world.page("/operations")

    run(tmp_path, work)


def test_a_stream_that_is_too_long_is_left_out_and_named(tmp_path, monkeypatch):
    async def work(world):
        monkeypatch.setattr(console_events, "MAX_EVENTS", 3)
        twin = await world.twin("/operations.json")
        assert twin["agreement"]["streams_left_out"] == [OPERATIONS]
        assert (await world.twin("/recorder.json"))["too_long"] == [SHOP]

    run(tmp_path, work)


def test_a_page_reads_only_what_was_added(tmp_path):
    async def work(world):
        await world.twin("/recorder.json")
        world.wire.calls.clear()
        await record(world.client, SHOP, "order", {"n": 9})
        stream = await world.console.events.of(world.client.keyring.for_stream(SHOP))
        assert [event.stream_seq for event in stream.events] == [1, 2, 3, 4, 5, 6]

    run(tmp_path, work)


def test_a_hub_that_lies_turns_pages_red(tmp_path):
    async def work(world):
        world.wire.lies.append(Forges(1))
        for name in ("recorder", "wallet", "audit", "anchors", "identity", "operations"):
            answer = await world.browser.get(f"/{name}")
            assert answer.status_code == 502, name
            assert "Verified by nobody" in answer.text, name
        assert "data-failed" in (await world.browser.get("/help")).text

    run(tmp_path, work)


def test_losses_and_silences_of_agents_are_marked(tmp_path):
    """SDR: what an agent says it lost, and when it said nothing."""

    async def work():
        ring = RING
        for keys in (own, app, *others):
            ring = ring.with_keys(keys)
        async with world_at(tmp_path, ring=ring, count=1) as world:
            await record(world.client, str(own), "recorder.start", {"every": 1})
            await record(world.client, str(app), "login", {})
            await asyncio.sleep(5)  # time itself is the subject: three heartbeats are missing
            await record(world.client, str(own), "recorder.heartbeat", {"every": 1})
            await record(world.client, str(own), "recorder.loss", {"source": "x", "reason": "full", "count": 7})
            (producer,) = (await world.twin("/recorder.json"))["producers"]
            assert len(producer["losses"]) == 1
            assert len(producer["silences"]) == 1
            text = await world.page("/recorder")
            assert 'class="cell bad"' in text
            assert 'class="cell partly"' in text
            assert "SDR.LOSS" in text

    own = StreamKeys.create("record/infrastructure/recorder", random=seeded("own"))
    app = StreamKeys.create("record/app/x", random=seeded("app"))
    others = [StreamKeys.create(name, random=seeded(name)) for name in (CHANGES_STREAM, CHECKPOINTS_STREAM)]
    asyncio.run(work())


@pytest.mark.req("AGB-15")
def test_both_zones_of_a_bridge_are_shown_with_gaps_and_links(tmp_path):
    async def shown(client, hub, ring):
        console = Console(client, ring, url="http://hub.example", identity="auditor")
        admission = BrowserAdmission()
        world = World(hub, None, client, console, admission, make_app(console, admission))
        async with world.browser:
            await world.enter()
            return await world.twin("/bridge.json"), await world.page("/bridge")

    async def work():
        async with zones(tmp_path) as world:
            await send_numbers(world, 1, 3)
            await world.exporter().export(SOURCE)
            world.carry()
            await world.importer().run()
            await send_numbers(world, 4, 6)
            await world.exporter().export(SOURCE)
            for name in world.export_files.bundles("outgoing"):
                world.export_files.path("outgoing", name).unlink()  # the stick was lost
            await send_numbers(world, 7, 8)
            await world.exporter().export(SOURCE)
            ring = Keyring.of([world.online.keyring.for_stream("bridge/online/log")])
            twin, text = await shown(world.online, world.z1, ring)
            (log,) = twin["logs"]
            assert [run[:2] for run in log["exported"]] == [[1, 3], [4, 6], [7, 8]]
            assert log["gaps"] == []
            assert "Exported and imported ranges" in text
            assert len(await crossed(world)) == 3
            reader_ring = world.reader.keyring
            twin, text = await shown(world.reader, world.z2, reader_ring)
            (log,) = twin["logs"]
            assert log["imported"] == [[1, 3]]
            holds = {link["link"]: link["holds"] for link in twin["links"]}
            assert list(holds) == ["author", "receipt", "checkpoint", "bundle", "online log", "offline log", "import"]
            assert (holds["author"], holds["import"], holds["bundle"]) == (True, True, None)
            assert "Seven links of one event" in text

    asyncio.run(work())


def test_reports_of_equivocation_stand_side_by_side(tmp_path):
    async def work():
        async with world_at(tmp_path) as world:
            evidence = tmp_path / "evidence"
            evidence.mkdir()
            (evidence / "other.cbor").write_bytes(b"\x00")
            world.console.local = LocalFiles(evidence=evidence)
            (report,) = (await world.twin("/equivocation.json"))["reports"]
            assert (report["file"], report["verdict"]) == ("other.cbor", "failed")
            assert "proves nothing" in await world.page("/equivocation")

    asyncio.run(work())


def test_an_audit_is_shown_by_labels_and_codes(tmp_path):
    async def work():
        async with world_at(tmp_path) as world:
            directory = tmp_path / "audit"
            directory.mkdir()
            finding = {"label": "ab" * 32, "stream_seq": 3, "path": None, "offset": None, "code": "signature",
                       "message": "<b>bad</b>", "severity": "error"}  # fmt: skip
            verdict = {
                "kind": "veen.audit", "ver": 1, "ok": False, "keys": "pinned", "pin": "ed25519:00", "level": "full",
                "hub_id": "cd" * 32, "counts": {"labels": 1},
                "labels": [{"label": "ab" * 32, "epoch": 0, "stream_id": None, "size": 3, "mmr_root": None}],
                "findings": {"errors": 1, "warnings": 0, "codes": {"signature": 1}, "first": [finding]},
            }  # fmt: skip
            (directory / "verdict.json").write_text(json.dumps(verdict))
            world.console.local = LocalFiles(audits=(directory,))
            text = await world.page("/audit", 502)
            assert "the evidence is BAD" in text
            assert "&lt;b&gt;bad" in text
            (directory / "verdict.json").write_text("{")
            await world.page("/audit", 400)

    asyncio.run(work())


def test_pictures_say_nothing_of_nothing_and_escape_names():
    bad = HOSTILE_TEXT
    assert not any(
        (steps("x", []), gantt("x", [], 0), grid("x", "", {}), ranges("x", []), chain("x", []), beads("x", {}))
    )
    pictures = (
        gantt("x", [TimeBar(bad, 0, 10, "good", bad)], 5),
        grid(bad, bad, {bad: [GridCell(1, bad, mark="!")]}, (bad, bad)),
        layers("x", [(bad, [("a", bad, "")]), ("b", [("b", bad, "")])], [("a", bad, "b")]),
        steps("x", [(1, 5), (2, 0)], bands=[(0, 1)], limit=3),
    )
    for picture in pictures:
        assert "<script" not in picture
        assert "\u202e" not in picture
        assert picture.startswith("<svg")
        assert "<title>" in picture
        assert "<desc>" in picture
        assert "style" not in picture


# --- long streams --------------------------------------------------------------------------------------------------


async def visit_of_a_long_stream(tmp_path, count):
    """(seconds to the first byte, bytes of the page, calls to the hub) of a first visit of a stream."""
    async with world_at(tmp_path, count=0, bounds=None) as world:  # one key signs all of them
        for start in range(0, count, 5_000):
            await world.client.send_many("orders", [b"%d" % n for n in range(start, min(start + 5_000, count))])
        world.wire.calls.clear()
        began = time.perf_counter()
        async with world.browser.stream("GET", f"/stream/{ORDERS.stream_id.hex()}") as answer:
            seconds = time.perf_counter() - began
            assert answer.status_code == 200
            page = (await answer.aread()).decode()
        assert f">{count}</a>" in page
        assert page.count("<rect") <= 48
        return seconds, len(page), len(world.wire.calls)


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_the_page_of_a_stream_does_not_grow_with_the_stream(tmp_path, count):
    """A page has its newest entries and a strip of samples; what is asked of the hub is bounded, too."""
    seconds, size, calls = asyncio.run(visit_of_a_long_stream(tmp_path, count))
    print(f"{count} entries: first byte after {seconds:.2f} s, {size} bytes, {calls} calls to the hub")
    assert size < 60_000
    assert calls < 250


def test_a_state_over_several_epochs_links_to_entries_of_their_epoch(tmp_path):
    clock = Clock()

    async def work():
        settings = {**GATED, "admission.profiles": "rotating"}
        async with world_at(
            tmp_path, count=0, ring=Keyring().with_keys(ORDERS), settings=settings, clock=clock
        ) as world:
            await world.client.authorize(token_for(world.client.client_id))
            epochs = []
            for version in (1, 2):
                draft = agreement.define(bytes(32), version, terms_hash=bytes(32), parties=[world.client.client_id])
                await world.client.send("orders", draft.body, schema=draft.schema)
                unknown = agreement.confirm(bytes(32), 9, world.client.client_id, "accept")
                sent = await world.client.send("orders", unknown.body, schema=unknown.schema)
                epochs.append((await world.client.checkpoints("orders"))[-1].epoch)
                assert sent.seq == 2
                clock.now += 3600
            twin = await world.twin("/operations.json")
            assert len(twin["agreement"]["definitions"]) == 2
            text = await world.page("/operations")
            for epoch in epochs:
                assert f'/2?epoch={epoch}"' in text

    asyncio.run(work())
