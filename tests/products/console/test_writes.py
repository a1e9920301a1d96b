"""What a console may write, and what it refuses: read-only by default, forms of this session only, each once."""

import asyncio
import re

import pytest
from tests.client.hubs import ISSUER, OPEN, bodies, token_for
from tests.products.console.consoles import EMPTY, ORDERS, ClientWriter, world_at

from veen.client.errors import NetworkError
from veen.client.home import Home
from veen.client.send.captokens import TokenStore
from veen.client.transport.http import HttpTransport
from veen.products.console.errors import CrossSiteRequest, FormInvalid
from veen.products.console.guard import BrowserAdmission
from veen.products.console.views import LocalFiles
from veen.products.console.writes import WriteLog, WriteOutcome

ID = ORDERS.stream_id.hex()
SEND = f"/stream/{ID}/send"
ORIGIN = {"Origin": "http://127.0.0.1:8448"}
ROUTES = (SEND, "/anchors/publish", "/capabilities/revoke")


def run(tmp_path, work, **options):
    async def main():
        async with world_at(tmp_path, **{"count": 2, "writes": True, **options}) as world:
            await work(world)

    asyncio.run(main())


async def form_of(world, action=SEND, page=f"/stream/{ID}", browser=None):
    text = (await (browser or world.browser).get(page)).text
    (token,) = re.findall(rf'action="{action}"[^>]*>\s*<input type="hidden" name="form" value="([^"]+)"', text)
    return token


async def sends(world, token, body="hello", headers=ORIGIN, path=SEND, browser=None):
    data = {"form": token, "body": body}
    return await (browser or world.browser).post(path, data=data, headers=headers)


def test_without_allow_write_every_write_is_refused_and_no_page_has_a_form_for_it(tmp_path):
    async def work(world):
        for path in ROUTES:
            for headers in (ORIGIN, {}):
                answer = await world.browser.post(path, data={"form": "1.x", "body": "hello"}, headers=headers)
                assert answer.status_code == 403
                assert "E.CONSOLE.READ_ONLY" in answer.text
                assert "--allow-write" in answer.text
        assert await bodies(world.client) == [b'{"order":0}', b'{"order":1}']
        for page in (f"/stream/{ID}", "/anchors", "/capabilities", "/overview"):
            text = await world.page(page)
            assert 'method="post"' not in text
            assert "read-only" in text
        assert (await world.twin("/settings.json"))["settings"]["write"] is False

    run(tmp_path, work, writes=False)


def test_a_message_is_sent_and_the_next_page_shows_its_verified_receipt(tmp_path):
    async def work(world):
        page = await world.page(f"/stream/{ID}")
        assert "may write" in page
        assert "Same in CLI: <code>veen send orders TEXT</code>" in page
        answer = await sends(world, await form_of(world), "first line\r\nsecond \u202e<script>alert(1)</script>")
        assert answer.status_code == 303
        where = answer.headers["location"]
        assert where.startswith(f"/stream/{ID}/3?epoch=0&done=")
        page = await world.page(where)
        assert "Sent: the message is entry 3 of orders." in page
        assert "Verified by this console: the receipt names this message" in page
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert (await bodies(world.client))[2] == "first line\nsecond \u202e<script>alert(1)</script>".encode()
        # The banner belongs to this entry, and to a write that was done.
        for other in (
            where.replace("/3?", "/2?"),
            f"/stream/{ID}/3?done=9999",
            f"/stream/{ID}/3?done=x",
            f"/stream/{ID}/3",
        ):
            assert "Sent:" not in await world.page(other)

    run(tmp_path, work)


def test_the_first_message_of_an_empty_stream_can_be_sent(tmp_path):
    async def work(world):
        stream = EMPTY.stream_id.hex()
        token = await form_of(world, f"/stream/{stream}/send", f"/stream/{stream}")
        answer = await sends(world, token, path=f"/stream/{stream}/send")
        assert "Sent: the message is entry 1 of empty." in await world.page(answer.headers["location"])

    run(tmp_path, work)


def test_a_form_that_is_sent_twice_is_one_message(tmp_path):
    """A reload, a double click, two requests at once: all get the same answer."""

    async def work(world):
        token = await form_of(world)
        answers = await asyncio.gather(*(sends(world, token) for _ in range(4)))
        answers.append(await sends(world, token))
        assert {answer.headers["location"] for answer in answers} == {answers[0].headers["location"]}
        assert (await bodies(world.client))[2:] == [b"hello"]
        other = await sends(world, token, "something else")  # the browser went back to the page
        assert other.status_code == 400
        assert "E.CONSOLE.FORM" in other.text
        assert (await bodies(world.client))[2:] == [b"hello"]
        await sends(world, await form_of(world))  # the same words in a new form are a new message
        assert (await bodies(world.client))[2:] == [b"hello", b"hello"]

    run(tmp_path, work)


def test_a_write_that_failed_can_be_tried_again_with_the_same_form(tmp_path):
    class Failing(ClientWriter):
        failures = 1

        async def send(self, keys, body):
            if self.failures:
                self.failures -= 1
                raise NetworkError("the connection broke")
            return await super().send(keys, body)

    async def work(world):
        world.console.writer = Failing(world.client)
        token = await form_of(world)
        failed = await sends(world, token)
        assert failed.status_code == 503
        answer = await sends(world, token)
        assert answer.status_code == 303
        assert (await bodies(world.client))[2:] == [b"hello"]

    run(tmp_path, work)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://attacker.example"},
        {"Origin": "http://127.0.0.1:8449"},
        {**ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {**ORIGIN, "Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_form_of_another_site_writes_nothing(tmp_path, headers):
    async def work(world):
        answer = await sends(world, await form_of(world), headers=headers)
        assert answer.status_code == 403
        assert "E.CONSOLE.ORIGIN" in answer.text
        assert len(await bodies(world.client)) == 2

    run(tmp_path, work)


def test_a_form_without_its_token_or_with_that_of_another_form_or_session_writes_nothing(tmp_path):
    async def work(world):
        token = await form_of(world)
        other = await form_of(world, "/anchors/publish", "/anchors")
        serial, _, mac = token.partition(".")
        wrong = ["", ".", "1.", "0." + mac, f"{int(serial) + 1}.{mac}", f"-{serial}.{mac}", other, "\u0661." + mac]
        for text in (*wrong, "9" * 400, token[:-1], token.upper()):
            answer = await sends(world, text)
            assert answer.status_code == 403, text
            assert "E.CONSOLE.ORIGIN" in answer.text
        admission = BrowserAdmission()
        theirs = admission.form_token(next(iter(world.admission._sessions.values())), SEND)  # of another console
        assert (await sends(world, theirs)).status_code == 403
        async with world.visitor() as stranger:
            assert (await sends(world, token, browser=stranger)).status_code == 401
        assert len(await bodies(world.client)) == 2
        assert (await sends(world, token)).status_code == 303

    run(tmp_path, work)


def test_forms_that_cannot_be_sent_are_refused(tmp_path):
    async def work(world):
        token = await form_of(world)
        for body in ("", "x" * 1_100_000):
            answer = await sends(world, token, body)
            assert answer.status_code == 400
            assert "E.CONSOLE.FORM" in answer.text
        unknown = f"/stream/{'00' * 32}/send"
        session = next(iter(world.admission._sessions.values()))
        answer = await sends(world, world.admission.form_token(session, unknown), path=unknown)
        assert answer.status_code == 404
        for method in ("GET", "PUT", "DELETE"):
            assert (await world.browser.request(method, SEND)).status_code in (400, 404, 405)
        assert len(await bodies(world.client)) == 2

    run(tmp_path, work)


def administered(tmp_path, work):
    """A console whose client has the right to administer the hub, and a token of its own."""
    secret = tmp_path / "admin.token"
    secret.write_text("an-administrator\n")
    secret.chmod(0o600)
    settings = {
        **OPEN,
        "admission.trusted_issuers": ISSUER.public.hex(),
        "admission.kex1_plus": "true",
        "auth.admin_token_files": str(secret),
    }

    async def main():
        tokens = TokenStore(Home.at(tmp_path / "home").tokens_fs("alice"))
        local = LocalFiles(tokens=tokens)
        async with world_at(tmp_path, count=2, writes=True, settings=settings, local=local) as world:
            transport = HttpTransport(world.hub.url, token_file=secret)
            world.client.session.calls.transport = transport
            token = token_for(world.client.client_id)
            await world.client.authorize(token)
            tokens.put(token)
            await work(world, token.auth_ref().hex())
            await transport.aclose()

    asyncio.run(main())


def test_the_hub_anchors_a_root_when_the_page_asks_for_it(tmp_path):
    async def work(world, _):
        data = {"form": await form_of(world, "/anchors/publish", "/anchors"), "stream_id": ID}
        answer = await world.browser.post("/anchors/publish", data=data, headers=ORIGIN)
        assert answer.status_code == 303, answer.text
        page = await world.page(answer.headers["location"])
        assert "Anchored: the root of orders up to entry 2" in page
        assert "the same root" in page
        again = await world.browser.post("/anchors/publish", data=data, headers=ORIGIN)
        assert again.headers["location"] == answer.headers["location"]
        (log,) = [log for log in (await world.twin("/anchors.json"))["logs"] if log["stream"] == "orders"]
        assert len(log["anchors"]) == 1

    administered(tmp_path, work)


def test_a_token_is_revoked_and_the_page_says_so(tmp_path):
    async def work(world, auth_ref):
        async def asked(value):
            data = {"form": await form_of(world, "/capabilities/revoke", "/capabilities"), "auth_ref": value}
            return await world.browser.post("/capabilities/revoke", data=data, headers=ORIGIN)

        async def state():
            (row,) = (await world.twin("/capabilities.json"))["tokens"]
            return row["state"]

        assert await state() == "valid"
        for wrong in ("", "xy", "00", auth_ref[:-2]):
            assert (await asked(wrong)).status_code == 400
        assert await state() == "valid"
        answer = await asked(auth_ref)
        assert answer.status_code == 303, answer.text
        page = await world.page(answer.headers["location"])
        assert "Revoked: the hub refuses the token" in page
        assert "signed by the pinned hub" in page
        assert await state() == "revoked"

    administered(tmp_path, work)


def test_without_the_right_to_administer_the_hub_refuses_and_nothing_is_claimed(tmp_path):
    async def work(world):
        data = {"form": await form_of(world, "/anchors/publish", "/anchors"), "stream_id": ID}
        answer = await world.browser.post("/anchors/publish", data=data, headers=ORIGIN)
        assert answer.status_code == 503
        assert "Anchored:" not in answer.text

    run(tmp_path, work)


def test_outcomes_that_are_forgotten_cannot_be_repeated():
    """Only so many are remembered; a form that is older than those counts no more."""

    async def work():
        log, count = WriteLog(most=2), []

        async def write():
            count.append(1)
            return WriteOutcome(path="/x", what="", verified="")

        for serial in (5, 6, 7, 8):
            await log.once(serial, b"", write)
        for serial in (4, 5, 6):
            with pytest.raises(CrossSiteRequest):
                await log.once(serial, b"", write)
        await log.once(8, b"", write)
        with pytest.raises(FormInvalid):
            await log.once(8, b"other", write)
        assert len(count) == 4
        assert log.outcome(8) is not None
        assert log.outcome(5) is None

    asyncio.run(work())


def test_a_browser_that_goes_away_does_not_stop_a_write():
    async def work():
        log, done, go_on = WriteLog(), [], asyncio.Event()

        async def write():
            await go_on.wait()
            done.append(1)
            return WriteOutcome(path="/x", what="", verified="")

        first = asyncio.create_task(log.once(1, b"", write))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go_on.set()
        assert (await log.once(1, b"", write)).path == "/x"
        assert done == [1]

    asyncio.run(work())
