"""The console in Debian's Chromium: every page in light and dark, no complaint, and verification by the browser."""

import json

import pytest
from tests.browser import Browser
from tests.console.consoles import HOSTILE, HOSTILE_BODIES, ORDERS, served
from tests.waiting import until

from veen.testing.hostile import Forges

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ID = ORDERS.stream_id.hex()
PATHS = {
    "overview": "/overview",
    "streams": "/streams",
    "stream": f"/stream/{ID}",
    "message": f"/stream/{ID}/3",
    "proof": f"/stream/{ID}/3/proof",
    "ladder": f"/stream/{ID}/3/proof?size=40",
    "hostile": f"/stream/{HOSTILE.stream_id.hex()}",
    "checkpoints": "/checkpoints",
    "verify": "/verify",
    "help": "/help",
}
STATE = "document.getElementById('browser-verdict').dataset.state"


async def hostile_bodies(world):
    for body in HOSTILE_BODIES:
        await world.client.send(HOSTILE, body)


def arrived(page, path):
    """Whether a tab that goes from page to page is there."""
    try:
        return page.evaluate("document.readyState === 'complete' && location.pathname") == path
    except AssertionError:  # it is on its way
        return False


def test_every_page_in_light_and_dark_without_a_complaint_and_verified_by_the_browser(tmp_path):
    with served(tmp_path, hostile_bodies, count=40) as (url, world), Browser.started() as browser:
        # As `veen console open` does it: from a file of the user to the address with the token.
        entrance = tmp_path / "console.html"
        entrance.write_text(f'<meta http-equiv="refresh" content="0; url={url}/?token={world.token}">')
        first = browser.open(entrance.as_uri())
        until(lambda: arrived(first, "/overview"))
        assert world.token not in first.evaluate("location.href")
        assert first.evaluate("document.cookie") == ""
        for dark in (False, True):
            for name, path in PATHS.items():
                page = browser.open(url + path, dark=dark)
                page.screenshot(tmp_path / f"{name}-{'dark' if dark else 'light'}.png")
                assert page.complaints() == [], name
                assert all(request.startswith(f"{url}/") for request in page.requests()), name
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        narrow = browser.open(url + PATHS["stream"], width=400)
        assert narrow.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert narrow.complaints() == []
        plain = browser.open(url + PATHS["proof"], scripts=False)
        assert plain.evaluate("getComputedStyle(document.querySelector('svg.veen')).display") != "none"

        for name in ("proof", "ladder"):
            page = browser.open(url + PATHS[name])
            page.evaluate("document.getElementById('browser-verify').click()")
            page.wait(f"['good', 'bad', 'unknown'].includes({STATE})")
            assert page.evaluate(STATE) == "good"
            assert "Verified by this browser: entry 3 stands under the root" in page.text("#browser-verdict")
            page.screenshot(tmp_path / f"{name}-verified.png")
            for name_of, value in (("keys", "07" * 32), ("seq", "4"), ("proof", None)):
                change = f"document.getElementById('browser').dataset.{name_of}"
                old = page.evaluate(change)
                new = value or old[:-2] + ("00" if old[-2:] != "00" else "01")
                page.evaluate(f"{change} = {json.dumps(new)}; document.getElementById('browser-verify').click()")
                page.wait(f"{STATE} === 'bad'")
                page.evaluate(f"{change} = {json.dumps(old)}; {STATE} = 'asked'")
            assert page.complaints() == []

        world.wire.lies.append(Forges(3))
        page = browser.open(url + PATHS["stream"])
        page.screenshot(tmp_path / "lie.png")
        assert "E.DIVERGED" in page.text("#fault")
        assert "order" not in page.text("main").replace("orders", "")
