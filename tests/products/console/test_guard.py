"""Who gets an answer of the console: the token, the cookie, the Host header."""

import asyncio
import re

import pytest
from tests.products.console.consoles import ORDERS, filled, world_at

from veen.products.console.guard import HEADERS, BrowserAdmission

SECRETS = ("orders", ORDERS.stream_id.hex(), "hub.example", "alice")


def run(tmp_path, work):
    async def main():
        async with world_at(tmp_path, count=1, entered=False) as world:
            return await work(world)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "path", ["/", "/overview", "/overview.json", "/verify", "/nothing", "/?token=", "/?token=wrong", "/?token=ä"]
)
def test_without_the_token_there_is_a_page_that_says_what_to_run_and_nothing_else(tmp_path, path):
    async def work(world):
        answer = await world.browser.get(path)
        assert answer.status_code == 401
        assert "E.CONSOLE.TOKEN" in answer.text
        assert "veen console" in answer.text
        assert not any(words in answer.text for words in SECRETS)
        assert "set-cookie" not in answer.headers
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert (await world.browser.get("/static/console.css")).status_code == 200

    run(tmp_path, work)


def test_the_token_works_once_and_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(tmp_path):
    async def work(world):
        answer = await world.browser.get(f"/?token={world.token}")
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "path=/" in cookie
        assert world.token.lower() not in cookie
        assert world.token not in answer.text
        assert (await world.browser.get("/overview")).status_code == 200
        again = await world.browser.get(f"/?token={world.token}")  # the one who has the cookie goes on
        assert again.status_code == 303
        async with world.visitor() as other:
            answer = await other.get(f"/?token={world.token}")
            assert answer.status_code == 401
            assert "used before" in answer.text
            other.cookies.set(world.admission.cookie, "guessed")
            assert (await other.get("/overview")).status_code == 401

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8448", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:8448", 200),
        ("attacker.example", 421),
        ("attacker.example:8448", 421),
        ("127.0.0.1.attacker.example:8448", 421),
        ("localhost.:8448", 421),
        ("", 421),
        ("127.0.0.1:8448@attacker.example", 421),
    ],
)
def test_only_our_own_host_names_are_answered(tmp_path, host, status):
    async def work(world):
        await world.enter()
        for path in ("/overview", "/static/console.js"):
            answer = await world.browser.get(path, headers={"Host": host})
            assert answer.status_code == status, path
            if status != 200:
                assert "E.CONSOLE.HOST" in answer.text
                assert not any(words in answer.text for words in SECRETS)

    run(tmp_path, work)


def test_a_foreign_host_does_not_use_the_token_up(tmp_path):
    async def work(world):
        answer = await world.browser.get(f"/?token={world.token}", headers={"Host": "attacker.example"})
        assert answer.status_code == 421
        await world.enter()

    run(tmp_path, work)


def test_names_can_be_allowed_and_a_cookie_over_tls_is_for_tls_only(tmp_path):
    admission = BrowserAdmission(["Console.Example"], secure=True)
    assert "console.example" in admission.names
    assert admission.token != BrowserAdmission().token
    assert admission.cookie != BrowserAdmission().cookie


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_pages_take_no_other_method(tmp_path, method):
    async def work(world):
        await world.enter()
        assert (await world.browser.request(method, "/overview")).status_code == 405

    run(tmp_path, work)


def test_behind_a_proxy_every_path_has_the_prefix(tmp_path):
    """--root-path: links, forms, files, twins and the cookie stay below it; nothing answers beside it."""

    async def work():
        async with filled(tmp_path, root_path="/ops/veen", entered=False) as world:
            visitor = world.browser
            assert (await visitor.get("/overview")).status_code == 401
            answer = await visitor.get(f"/ops/veen/?token={world.token}")
            assert answer.status_code == 200
            assert "path=/ops/veen;" in f"{answer.headers['set-cookie'].lower()};"
            assert "url=/ops/veen/overview" in answer.text
            assert (await visitor.get("/ops/veen/")).headers["location"] == "/ops/veen/overview"
            stream = f"stream/{ORDERS.stream_id.hex()}"
            for path in ("overview", "streams", "wallet", "verify", "query", "help", stream, f"{stream}/1/proof"):
                page = await visitor.get(f"/ops/veen/{path}")
                assert page.status_code == 200, path
                for link in re.findall(r'(?:href|src|action)="([^"]*)"', page.text):
                    assert link.startswith(("/ops/veen/", "?", "#")), (path, link)
                assert (await visitor.get(f"/ops/veen/{path}.json")).status_code == 200, path
            assert (await visitor.get("/ops/veen/static/console.css")).status_code == 200
            assert (await visitor.get("/static/console.css")).status_code in (401, 404)

    asyncio.run(work())
