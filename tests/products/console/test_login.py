"""The login of a console: the file of passwords, sessions, attempts, and where the form comes from."""

import asyncio
import contextlib
import re
import stat

import pytest
from nacl.pwhash import argon2id
from tests.products.console.consoles import ORDERS, world_at

from veen.client.errors import OpenPermissions
from veen.products.console.errors import LoginRefused, PasswordFileInvalid, TooManyAttempts
from veen.products.console.guard import HEADERS, AttemptLimit, BrowserAdmission
from veen.products.console.passwords import PasswordFile, hash_password

SECRETS = ("orders", ORDERS.stream_id.hex(), "hub.example", "alice@")
PASSWORD = "correct horse battery \u00e4"
HASH = hash_password(PASSWORD, memory_bytes=8192, passes=1)
PASSWORDS = PasswordFile({"alice": HASH, "bob": hash_password("another one", memory_bytes=8192, passes=1)})
BASE = "https://console.example:8448"
ORIGIN = {"Origin": BASE}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def run(tmp_path, work):
    clock = Clock()
    admission = BrowserAdmission(["console.example"], secure=True, passwords=PASSWORDS, clock=clock)

    async def main():
        async with (
            world_at(tmp_path, count=1, entered=False, admission=admission) as world,
            world.visitor(BASE) as browser,
        ):
            await work(world, browser, clock)

    asyncio.run(main())


async def log_in(browser, name="alice", password=PASSWORD, headers=ORIGIN):
    return await browser.post("/login", data={"name": name, "password": password}, headers=headers)


# --- the file ----------------------------------------------------------------------------------------------------


def test_a_password_opens_only_with_its_name(tmp_path):
    path = tmp_path / "console.passwords"
    PASSWORDS.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert PASSWORD not in path.read_text()
    file = PasswordFile.read(path)
    assert file.names == ("alice", "bob")
    file.check("alice", PASSWORD)
    file.check("alice", "correct horse battery a\u0308")  # composed otherwise
    for name, word in (("bob", PASSWORD), ("carol", PASSWORD), ("alice", ""), ("alice", "x" * 5000), ("", "")):
        with pytest.raises(LoginRefused):
            file.check(name, word)


def test_a_name_is_added_changed_and_taken_out():
    changed = PASSWORDS.with_password("alice", hash_password("new one", memory_bytes=8192, passes=1))
    changed.check("alice", "new one")
    with pytest.raises(LoginRefused):
        changed.check("alice", PASSWORD)
    with pytest.raises(LoginRefused):
        changed.without("alice").check("alice", "new one")
    with pytest.raises(PasswordFileInvalid):
        changed.with_password("two words", HASH)


def test_a_file_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "console.passwords"
    PASSWORDS.write(path)
    path.chmod(0o644)
    with pytest.raises(OpenPermissions):
        PasswordFile.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody\n",
        "alice\n",
        "alice:secret\n",
        f"alice:{HASH}\nalice:{HASH}\n",
        f"al ice:{HASH}\n",
        f":{HASH}\n",
        f"alice:{HASH.replace('argon2id', 'argon2i')}\n",
        f"alice:{HASH.replace('m=8,', 'm=9999999,')}\n",
        f"alice:{HASH.replace('t=1,', 't=999,')}\n",
        f"alice:{HASH.replace('t=1,', 't=0,')}\n",
        f"alice:{HASH}x\n",
        "\n".join(f"n{number}:{HASH}" for number in range(101)),
    ],
    ids=range(13),  # a hash has a random salt, and a test has the same name in every process
)
def test_a_file_that_is_none_is_refused_before_anything_is_computed(text):
    with pytest.raises(PasswordFileInvalid):
        PasswordFile.parse(text)


def test_a_file_that_is_missing_too_large_or_binary_is_refused(tmp_path):
    path = tmp_path / "passwords"
    with pytest.raises(PasswordFileInvalid):
        PasswordFile.read(path)
    for content in (b"\xff\xfe", b"#" * 70_000):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(PasswordFileInvalid):
            PasswordFile.read(path)


def test_a_hash_has_the_cost_that_the_page_states():
    assert re.match(r"\$argon2id\$v=19\$m=65536,t=3,p=1\$", hash_password("x"))


# --- the page ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/overview", "/overview.json", "/verify", "/nothing", "/?token=guess"])
def test_without_a_login_there_is_a_form_and_nothing_else(tmp_path, path):
    async def work(world, browser, clock):
        answer = await browser.get(path)
        assert answer.status_code == 401
        assert "E.CONSOLE.LOGIN" in answer.text
        assert ('name="password"' in answer.text) == (not path.endswith(".json"))
        assert not any(words in answer.text for words in SECRETS)
        assert "set-cookie" not in answer.headers
        assert all(answer.headers[name] == value for name, value in HEADERS.items())
        assert (await browser.get("/login")).status_code == 200
        assert (await browser.get("/static/console.css")).status_code == 200
        assert world.admission.token is None

    run(tmp_path, work)


def test_a_login_is_a_session_until_the_logout(tmp_path):
    async def work(world, browser, clock):
        answer = await log_in(browser)
        assert (answer.status_code, answer.headers["location"]) == (303, "/overview")
        cookie = answer.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("secure", "httponly", "samesite=strict", "path=/", "max-age=43200"))
        page = await browser.get("/overview")
        assert page.status_code == 200
        assert "Log out alice" in page.text
        assert (await browser.get("/login")).status_code == 303
        secret = browser.cookies[world.admission.cookie]
        assert secret not in page.text
        (form,) = re.findall(r'action="/logout".*?value="([^"]+)"', page.text)
        assert (await browser.post("/logout", data={"form": "1.x"}, headers=ORIGIN)).status_code == 403
        assert (await browser.post("/logout", data={"form": form})).status_code == 403  # no Origin
        assert (await browser.get("/logout")).status_code == 405
        gone = await browser.post("/logout", data={"form": form}, headers=ORIGIN)
        assert gone.status_code == 200
        assert "Logged out" in gone.text
        browser.cookies.set(world.admission.cookie, secret, domain="console.example")  # somebody kept it
        assert (await browser.get("/overview")).status_code == 401

    run(tmp_path, work)


def test_sessions_are_apart_and_end_by_themselves(tmp_path):
    async def work(world, browser, clock):
        async with world.visitor(BASE) as other:
            await log_in(browser)
            await log_in(other, "bob", "another one")
            (form,) = re.findall(r'action="/logout".*?value="([^"]+)"', (await other.get("/help")).text)
            stolen = await browser.post("/logout", data={"form": form}, headers=ORIGIN)
            assert stolen.status_code == 403
            assert (await other.get("/help")).status_code == 200
            clock.now += 12 * 3600 + 1
            assert (await other.get("/help")).status_code == 401
            assert (await browser.get("/help")).status_code == 401

    run(tmp_path, work)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "https://attacker.example"},
        {"Origin": BASE.replace("https", "http")},
        {"Origin": BASE + "0"},
        {**ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {**ORIGIN, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_site_logs_nobody_in(tmp_path, headers):
    async def work(world, browser, clock):
        answer = await log_in(browser, headers=headers)
        assert answer.status_code == 403
        assert "E.CONSOLE.ORIGIN" in answer.text
        assert "set-cookie" not in answer.headers

    run(tmp_path, work)


def test_attempts_are_limited_by_address_and_the_right_password_does_not_help_then(tmp_path):
    async def work(world, browser, clock):
        for _ in range(5):
            answer = await log_in(browser, password="wrong")
            assert answer.status_code == 401
            assert "wrong" not in answer.text
            assert "set-cookie" not in answer.headers
        answer = await log_in(browser)
        assert answer.status_code == 429
        assert "E.CONSOLE.ATTEMPTS" in answer.text
        assert int(answer.headers["retry-after"]) == 300
        async with world.visitor(BASE, address="192.0.2.7") as other:
            assert (await log_in(other)).status_code == 303
        clock.now += 301
        assert (await log_in(browser)).status_code == 303

    run(tmp_path, work)


def test_attempts_at_once_count_too_and_successes_do_not(tmp_path):
    async def work(world, browser, clock):
        for _ in range(7):
            assert (await log_in(browser)).status_code == 303
            browser.cookies.clear()
        answers = await asyncio.gather(*(log_in(browser, password=f"guess {number}") for number in range(12)))
        assert sorted(answer.status_code for answer in answers) == [401] * 5 + [429] * 7

    run(tmp_path, work)


def test_all_addresses_together_are_limited_and_an_ipv6_network_is_one():
    clock = Clock()
    limit = AttemptLimit(clock, each=2, total=5)
    for address in ("2001:db8::1", "2001:db8::2"):
        limit.begin(address)
    with pytest.raises(TooManyAttempts):
        limit.begin("2001:db8::3")
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        limit.begin(address)
    with pytest.raises(TooManyAttempts) as caught:
        limit.begin("192.0.2.4")
    assert 0 < caught.value.seconds <= 300
    clock.now += 300
    limit.begin("192.0.2.4")


@pytest.mark.parametrize("body", [b"", b"name=%ff", b"name", b"a=1&a=2", b"x" * 9000, b"&".join([b"a=1"] * 40)])
def test_a_form_that_is_none_is_refused(tmp_path, body):
    async def work(world, browser, clock):
        for kind in ("application/x-www-form-urlencoded", "text/plain"):
            answer = await browser.post("/login", content=body, headers={**ORIGIN, "Content-Type": kind})
            assert answer.status_code in (400, 401)
            assert "set-cookie" not in answer.headers

    run(tmp_path, work)


def test_a_console_without_passwords_has_no_login(tmp_path):
    async def main():
        async with world_at(tmp_path, count=1) as world:
            assert (await world.browser.get("/login")).headers["location"] == "/overview"
            async with world.visitor() as other:
                headers = {"Origin": "http://127.0.0.1:8448"}
                answer = await other.post("/login", data={"name": "alice", "password": PASSWORD}, headers=headers)
                assert answer.status_code == 401
                assert "E.CONSOLE.TOKEN" in answer.text

    asyncio.run(main())


def test_a_name_that_there_is_not_costs_a_hash_as_well(monkeypatch):
    """Otherwise the time of an answer would tell which names there are."""
    asked = []

    def verified(digest, _):
        asked.append(digest)
        return True

    monkeypatch.setattr(argon2id, "verify", verified)
    for name in ("alice", "nobody"):
        with contextlib.suppress(LoginRefused):
            PASSWORDS.check(name, "x")
    assert asked == [HASH.encode(), HASH.encode()]
    with pytest.raises(LoginRefused):
        PASSWORDS.check("nobody", "x")  # even if the hash of somebody else fits
