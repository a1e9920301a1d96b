"""Every page and its twin: what it says of an honest hub, of a hub that lies, and of hostile text."""

import asyncio
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.tree import check_line
from tests.client.hubs import GATED, IMPATIENT, Clock, token_for
from tests.products.console.consoles import EMPTY, HOSTILE, HOSTILE_BODIES, HOSTILE_NAME, ORDERS, RING, fill, world_at

from veen.client.errors import Unreachable
from veen.client.identity.keyring import Keyring
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.tooling import ConsistencyResponse
from veen.overlays import kv
from veen.products.console.charts import MAX_SAMPLES, TimeColumn, sample_numbers, time_columns
from veen.products.console.guard import HEADERS
from veen.storage.layout import IDENTITY
from veen.testing.hostile import Drops, Equivocates, Forges, SignsWith, Truncates

ID = ORDERS.stream_id.hex()
PATHS = (
    "/overview",
    "/streams",
    "/checkpoints",
    "/verify",
    "/help",
    f"/stream/{ID}",
    f"/stream/{ID}/3",
    f"/stream/{ID}/3/proof",
)
STEERING = ("\u202e", "\u2066", "\x1b", "\x07", "\x00")


class Structure(HTMLParser):
    """Elements, attributes and inline code of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self._inside = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside in ("script", "style"):
            self.texts.append(data)


def run(tmp_path, work, **options):
    async def main():
        async with world_at(tmp_path, **options) as world:
            return await work(world)

    return asyncio.run(main())


def test_every_page_and_its_twin_answers_and_is_complete_without_scripts(tmp_path):
    async def work(world):
        for path in PATHS:
            text = await world.page(path)
            page = Structure(text)
            assert not any(words.strip() for words in page.texts), path
            assert "style" not in page.tags, path
            assert page.tags.count("script") == 1
            assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")], path
            assert "Same in CLI: <code>veen " in text
            assert f'href="{path}.json"' in text
            twin = await world.twin(f"{path}.json")
            assert twin["verified_by"] in ("this console", "nobody")
            check_line(shlex.split(twin["command"])[1:])
            assert twin["failures"] == []

    run(tmp_path, work)


def test_the_overview_names_hub_pin_streams_and_checkpoints(tmp_path):
    async def work(world):
        text, twin = await world.page("/overview"), await world.twin("/overview.json")
        hub = twin["hub"]
        assert hub["url"] == "http://hub.example:8443"
        assert hub["pin"] == f"ed25519:{world.hub.identity.current_pk.hex()}"
        assert hub["hub_id"] == world.client.hub_id.hex()
        assert hub["ready"] is True
        rows = {row["stream"]: row for row in twin["streams"]}
        assert set(rows) == {"orders", "empty", HOSTILE_NAME}
        assert rows["orders"]["head"] == 7
        assert rows["orders"]["root"] == (await world.client.checkpoint("orders")).mmr_root.hex()
        assert rows["empty"]["head"] == 0
        assert [row["stream"] for row in twin["newest_checkpoints"]] == ["orders"]
        for fact in (hub["url"], hub["pin"], hub["hub_id"], "nothing was written to it yet", f"/stream/{ID}"):
            assert fact in text
        assert 'role="alert"' not in text

    run(tmp_path, work)


def test_a_stream_is_shown_by_page_and_jumped_to_by_number_and_time(tmp_path):
    async def work(world):
        newest = await world.twin(f"/stream/{ID}.json")
        assert [entry["seq"] for entry in newest["entries"]] == [1, 2, 3, 4, 5, 6, 7]
        assert newest["entries"][2]["body"] == '{"order":2}'
        assert sum(column["entry_count"] for column in newest["density"]) == 7
        part = await world.twin(f"/stream/{ID}.json?from=3&count=2")
        assert [entry["seq"] for entry in part["entries"]] == [3, 4]
        assert part["command"] == "veen stream orders --from 3 --to 4"
        text = await world.page(f"/stream/{ID}?from=3&count=2")
        assert "?from=1&amp;count=2" in text.replace("&count", "&amp;count")
        assert "from=5" in text
        moment = newest["entries"][3]["hub_ts"]
        since = await world.twin(f"/stream/{ID}.json?time={moment}")
        assert all(entry["hub_ts"] >= moment for entry in since["entries"])
        assert since["entries"]
        beyond = await world.twin(f"/stream/{ID}.json?from=100")
        assert beyond["entries"] == []
        empty = await world.page(f"/stream/{EMPTY.stream_id.hex()}")
        assert "Verified by nobody" in empty

    run(tmp_path, work)


def test_a_message_shows_what_the_hub_sees_what_readers_see_and_which_checks_were_made(tmp_path):
    async def work(world):
        twin = await world.twin(f"/stream/{ID}/3.json")
        (entry,) = [entry async for entry in world.client.read("orders", from_seq=3, to_seq=3)]
        assert twin["hub_sees"]["client_id"] == entry.msg.client_id.hex()
        assert twin["hub_sees"]["ciphertext_bytes"] == len(entry.msg.ciphertext)
        assert twin["readers_see"]["body"] == '{"order":2}'
        assert twin["receipt_hex"] == entry.receipt.to_bytes().hex()
        assert any("hub_sig of the RECEIPT is by hub key" in line for line in twin["checks"])
        text = await world.page(f"/stream/{ID}/3")
        assert "What the hub sees" in text
        assert "What only readers see" in text
        assert "&#34;order&#34;:2" in text

    run(tmp_path, work)


def test_a_proof_has_a_picture_its_steps_and_what_a_browser_needs_to_verify_it(tmp_path):
    async def work(world):
        text, twin = await world.page(f"/stream/{ID}/3/proof"), await world.twin(f"/stream/{ID}/3/proof.json")
        proven = await world.client.proof("orders", 3, tree_size=7)
        assert twin["root"] == proven.root.hex()
        assert twin["proof_hex"] == proven.proof.to_bytes().hex()
        assert len(twin["steps"]) == 2
        assert twin["steps"][-1]["entries"] == "1-4"
        assert "<svg" in text
        assert "Inclusion proof of message 3" in text
        assert "<style" not in text
        smaller = await world.twin(f"/stream/{ID}/3/proof.json?size=3")
        assert smaller["tree_size"] == 3
        for bad in (2, 8):
            assert (await world.twin(f"/stream/{ID}/3/proof.json?size={bad}", 404))["error"][
                "code"
            ] == "E.LOCAL.NO_ENTRIES"

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"/stream/{'00' * 32}", 404, "E.LOCAL.STREAM"),
        ("/stream/orders", 404, "E.LOCAL.STREAM"),
        (f"/stream/{ID}/99", 404, "E.LOCAL.NO_ENTRIES"),
        (f"/stream/{ID}/99/proof", 404, "E.LOCAL.NO_ENTRIES"),
        (f"/stream/{EMPTY.stream_id.hex()}/1", 404, "E.LOCAL.NO_ENTRIES"),
        (f"/stream/{ID}/0", 400, "E.CONSOLE.ADDRESS"),
        (f"/stream/{ID}/9999999999999999999999", 400, "E.CONSOLE.ADDRESS"),
        (f"/stream/{ID}?from=x", 400, "E.CONSOLE.ADDRESS"),
        (f"/stream/{ID}?count=100000", 400, "E.CONSOLE.ADDRESS"),
        (f"/stream/{ID}?time=yesterday", 400, "E.CONSOLE.ADDRESS"),
        (f"/stream/{ID}?epoch=5", 404, "E.LOCAL.NO_ENTRIES"),
        ("/nothing", 404, "E.CONSOLE.ADDRESS"),
        ("/static/nothing", 404, "E.CONSOLE.ADDRESS"),
    ],
)
def test_what_there_is_not_is_a_page_with_a_named_error(tmp_path, path, status, code):
    async def work(world):
        text = await world.page(path, status)
        assert code in text
        assert "What to do:" in text
        if not path.startswith("/static"):
            place, _, query = path.partition("?")
            assert (await world.twin(f"{place}.json?{query}", status))["error"]["code"] == code

    run(tmp_path, work, count=1)


@pytest.mark.parametrize(
    ("lie", "path", "code"),
    [
        (Forges(3), f"/stream/{ID}", "E.DIVERGED"),
        (Drops(3), f"/stream/{ID}", "E.DIVERGED"),
        (Truncates(3), f"/stream/{ID}", "E.DIVERGED.REWOUND"),
        (SignsWith(SigningKey(b"\x07" * 32)), f"/stream/{ID}/3/proof", "E.DIVERGED.FOREIGN_KEY"),
        (SignsWith(SigningKey(b"\x07" * 32)), "/checkpoints", "E.DIVERGED.FOREIGN_KEY"),
        (SignsWith(SigningKey(b"\x07" * 32)), "/overview", "E.DIVERGED.FOREIGN_KEY"),
        (Forges(3), f"/stream/{ID}/3", "E.DIVERGED"),
    ],
    ids=["forges", "drops", "truncates", "proof", "checkpoints", "overview", "message"],
)
def test_a_hub_that_lies_turns_the_page_red_and_no_data_is_shown(tmp_path, lie, path, code):
    async def work(world):
        world.wire.lies.append(lie)
        text = await world.page(path, 502)
        assert code in text
        assert "FAILED" in text
        assert 'data-failed="yes"' in text
        assert "order&#34;:2" not in text
        twin = await world.twin(f"{path}.json", 502)
        assert code in str(twin)
        world.wire.lies.clear()
        honest = await world.page("/help")  # and every page says so from now on
        assert code in honest
        assert "Verification FAILED since this console was started" in honest

    run(tmp_path, work)


@pytest.mark.parametrize("path", [f"/stream/{ID}?from=3&count=2", f"/stream/{ID}/3", f"/stream/{ID}?time=1&count=2"])
def test_a_part_of_a_log_is_compared_with_what_was_proven_before(tmp_path, path):
    """A hub that serves entries of another history under signed roots cannot prove that both are one log."""

    def breaks_consistency(operation, body, answer):
        if "consistency" not in operation:
            return answer
        asked.append(operation)
        response = ConsistencyResponse.from_bytes(answer.body)
        proof = response.consistency_proof
        altered = replace(proof, added=tuple(bytes(32) for _ in proof.added))
        return replace(answer, body=replace(response, consistency_proof=altered).to_bytes())

    async def work(world):
        await world.page(path)
        world.wire.lies.append(breaks_consistency)
        text = await world.page(path, 502)
        assert "E.DIVERGED" in text
        assert asked

    asked = []
    run(tmp_path, work)


def test_a_hub_that_signs_two_histories_is_told_apart(tmp_path):
    async def work(world):
        await world.page(f"/stream/{ID}")
        key = world.hub.identity.held.private[world.hub.identity.current_pk]
        world.wire.lies.append(Equivocates(key, 7))
        assert "E.DIVERGED.EQUIVOCATION" in await world.page(f"/stream/{ID}/7", 502)

    run(tmp_path, work)


def test_a_hub_that_does_not_answer_is_an_error_that_is_not_red(tmp_path):
    def away(operation, body, answer):
        raise Unreachable("the connection broke")

    async def work(world):
        world.wire.lies.append(away)
        text = await world.page(f"/stream/{ID}", 503)
        assert "E.NET.UNREACHABLE" in text
        assert "data-failed" not in text
        overview = await world.twin("/overview.json")
        assert overview["hub"]["ready"] is False
        assert overview["hub"]["error"]["code"] == "E.NET.UNREACHABLE"

    run(tmp_path, work, retry=IMPATIENT)


def test_hostile_names_and_bodies_are_inert(tmp_path):
    async def work(world):
        for body in HOSTILE_BODIES:
            await world.client.send(HOSTILE, body)
        base = f"/stream/{HOSTILE.stream_id.hex()}"
        paths = ["/overview", "/streams", "/checkpoints", base, f"{base}/1/proof"]
        paths += [f"{base}/{seq}" for seq in range(1, len(HOSTILE_BODIES) + 1)]
        for path in paths:
            text = await world.page(path)
            page = Structure(text)
            assert "img" not in page.tags
            assert page.tags.count("script") == 1
            assert not any(words.strip() for words in page.texts)
            assert not [name for name, _ in page.attributes if name.startswith("on")]
            assert not any(character in text for character in STEERING), path
            assert "7*7" in text or "49" not in Structure(text).texts
            twin = await world.browser.get(f"{path}.json")
            assert not any(character in twin.text for character in STEERING), path
        twin = await world.twin(f"{base}.json")
        assert twin["stream"] == HOSTILE_NAME
        assert [entry["body"] for entry in twin["entries"][:4]] == [body.decode() for body in HOSTILE_BODIES[:4]]
        assert twin["entries"][4]["body_hex"] == HOSTILE_BODIES[4].hex()[:300]
        assert twin["command"].startswith(f"veen stream hex:{HOSTILE.stream_id.hex()} ")
        assert "\\u202e" in await world.page(base)

    run(tmp_path, work, count=0)


def test_a_long_body_is_cut_with_a_note_of_its_size(tmp_path):
    async def work(world):
        await world.client.send("orders", b"x" * 50_000)
        row = (await world.twin(f"/stream/{ID}.json"))["entries"][-1]
        assert (len(row["body"]), row["body_cut"], row["body_bytes"]) == (300, True, 50_000)
        assert "the body has 50000 bytes" in await world.page(f"/stream/{ID}")
        assert "All 50000 bytes" in await world.page(f"/stream/{ID}/1")

    run(tmp_path, work, count=0)


def test_a_stream_without_a_read_key_is_verified_and_stays_sealed(tmp_path):
    async def work(world):
        text = await world.page(f"/stream/{ID}")
        assert "sealed: no read key" in text
        assert "Verified by this console" in text
        assert "this keyring has no key that reads this stream" in await world.page(f"/stream/{ID}/1")
        assert "write key only" in await world.page("/streams")

    run(tmp_path, work, count=2, ring=Keyring().with_keys(ORDERS.for_writers()))


def test_a_stream_of_several_epochs_is_shown_epoch_by_epoch(tmp_path):
    clock = Clock()

    async def work(world):
        await world.client.authorize(token_for(world.client.client_id))
        await fill(world.client, 2)
        clock.now += 3600
        await world.client.send("orders", b"later")
        twin = await world.twin(f"/stream/{ID}.json")
        older, newer = twin["epochs"]
        assert (twin["epoch"], twin["head"], twin["entries"][0]["body"]) == (newer, 1, "later")
        for epoch, head in ((older, 2), (newer, 1)):
            part = await world.twin(f"/stream/{ID}.json?epoch={epoch}")
            assert [entry["epoch"] for entry in part["entries"]] == [epoch] * head
            assert part["command"].endswith(f" --epoch {epoch}")
            assert f'/stream/{ID}/1?epoch={epoch}"' in await world.page(f"/stream/{ID}?epoch={epoch}")
            await world.page(f"/stream/{ID}/1?epoch={epoch}")
            await world.page(f"/stream/{ID}/1/proof?epoch={epoch}")
        checkpoints = await world.twin("/checkpoints.json")
        assert [row["epoch"] for row in checkpoints["checkpoints"]] == [older, newer]

    settings = {**GATED, "admission.profiles": "rotating"}
    run(tmp_path, work, count=0, ring=Keyring().with_keys(ORDERS), settings=settings, clock=clock)


def test_pages_weigh_less_than_150_kilobytes_without_data(tmp_path):
    async def work(world):
        assets = ("console.css", "console.js", "veen-verify.js", "icon.svg")
        weight = sum([len((await world.browser.get(f"/static/{name}")).content) for name in assets])
        for path in PATHS:
            assert weight + len(await world.page(path)) < 150_000, path

    run(tmp_path, work)


def test_every_answer_carries_the_headers(tmp_path):
    async def work(world):
        paths = [*PATHS, *(f"{path}.json" for path in PATHS), "/", "/nothing", "/static/console.css", "/static/none"]
        for path in paths:
            answer = await world.browser.get(path)
            for name, value in HEADERS.items():
                assert answer.headers.get_list(name) == [value], (path, name)
        policy = HEADERS["Content-Security-Policy"]
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
        )
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy

    run(tmp_path, work)


def test_nothing_is_written_to_the_hub(tmp_path):
    async def work(world):
        world.wire.calls.clear()
        for path in PATHS:
            await world.page(path)
        operations = {operation for operation, _ in world.wire.calls}
        assert operations
        assert not [operation for operation in operations if "submit" in operation or "authorize" in operation]

    run(tmp_path, work)


def test_every_time_is_counted_once_in_the_columns():
    assert time_columns([]) == ()
    assert time_columns([(1, 5)]) == (TimeColumn(5, 5, 1),)
    columns = time_columns([(1, 0), (2, 0), (3, 10), (4, 99), (5, 100)], 10)
    assert sum(column.entry_count for column in columns) == 5
    assert [column.entry_count for column in columns if column.entry_count] == [3, 2]
    assert columns[0].start == 0
    assert columns[-1].end == 100
    assert len(columns) <= 10
    assert all(left.end + 1 == right.start for left, right in pairwise(columns))


@given(st.integers(1, 2**40), st.lists(st.integers(0, 1000), min_size=80, max_size=80))
def test_samples_are_bounded_stable_and_count_every_entry_once(head, pauses):
    """Whatever the length of a stream and whatever its clock did."""
    numbers = sample_numbers(head)
    assert len(numbers) <= MAX_SAMPLES
    assert (numbers[0], numbers[-1]) == (1, head)
    assert len(set(numbers[1:-1]) - set(sample_numbers(head + 1))) <= len(numbers) // 2 + 1
    times = [pause * (-1 if pause % 7 == 0 else 1) + 10_000 for pause in pauses[: len(numbers)]]
    columns = time_columns(list(zip(numbers, times, strict=True)))
    assert sum(column.entry_count for column in columns) == head
    assert all(column.entry_count >= 0 for column in columns)


def test_a_known_schema_is_read_for_people(tmp_path):
    async def work(world):
        draft = kv.put("valve", "open")
        await world.client.send("orders", draft.body, schema=draft.schema)
        twin = await world.twin(f"/stream/{ID}.json")
        entry = twin["entries"][-1]
        assert entry["schema_name"] == "veen.kv.v1"
        assert "valve" in entry["decoded"]
        assert "valve" in await world.page(f"/stream/{ID}/{entry['seq']}")

    run(tmp_path, work)


def test_the_tail_asks_for_what_comes_after_the_last_row(tmp_path):
    async def work(world):
        before = await world.twin(f"/stream/{ID}.json")
        assert before["tail_from"] == 8
        text = await world.page(f"/stream/{ID}")
        assert 'data-from="8"' in text
        assert "Newest entries" in text  # without JavaScript
        await world.client.send("orders", b"new")
        after = await world.twin(f"/stream/{ID}.json?from=8&count=200")
        assert [(entry["seq"], entry["body"]) for entry in after["entries"]] == [(8, "new")]

    run(tmp_path, work)


def test_a_proof_folds_step_by_step_without_scripts(tmp_path):
    async def work(world):
        whole = await world.twin(f"/stream/{ID}/3/proof.json")
        last = whole["last_step"]
        assert (whole["step"], last) == (None, len(whole["steps"]) + 1)
        for step in range(last + 1):
            text = await world.page(f"/stream/{ID}/3/proof?step={step}")
            assert f"Step {step} of {last}" in text
            assert ("Next" in text) == (step < last)
            for later in whole["steps"][step:] if step < last else ():
                assert later["hash"] in text  # the table has all of them
        middle = await world.page(f"/stream/{ID}/3/proof?step=1")
        assert 'class="sibling now"' in middle
        assert 'class="root later"' in middle
        assert 'later"' not in await world.page(f"/stream/{ID}/3/proof?step={last}")
        await world.page(f"/stream/{ID}/3/proof?step={last + 1}", 400)

    run(tmp_path, work)


def test_a_hub_that_is_not_ready_is_shown_as_such(tmp_path):
    """Ready is what /readyz says, not that something answers."""

    async def work(world):
        (tmp_path / "hub" / IDENTITY).rename(tmp_path / "identity")  # it answers, and is not ready
        hub = (await world.twin("/overview.json"))["hub"]
        assert hub["ready"] is False
        assert hub["error"] is None
        assert "Not ready" in await world.page("/overview")
        (tmp_path / "identity").rename(tmp_path / "hub" / IDENTITY)

    run(tmp_path, work)


def test_the_keyring_decides_which_streams_there_are():
    assert {str(keys) for keys in RING.entries} == {"orders", "empty", HOSTILE_NAME}
