"""The console in Debian's Firefox: the same verdicts as in Chromium, and every page in light and dark."""

import secrets

import pytest
from tests.client.test_evidence_page import DECIDED, STATE, WORLD, html_of
from tests.firefox import Firefox
from tests.products.console import test_browser as chromium
from tests.products.console.consoles import filled, served
from tests.waiting import until

from veen.core.evidence_check import check_evidence
from veen.core.evidence_file import EvidenceFile

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def browser():
    with Firefox.started() as started:
        yield started


@pytest.fixture(scope="module")
def site(tmp_path_factory, browser):
    """The URL of a console whose token this browser has shown, and its world."""
    with served(tmp_path_factory.mktemp("console"), world_of=filled, orders=40, writes=True) as (url, world):
        first = browser.open(f"{url}/?token={world.token}")
        until(lambda: chromium.arrived(first, "/overview"))
        first.close()
        yield url, world


def test_every_page_in_light_and_dark_without_a_complaint(browser, site):
    """No refused content, no error, no dialog, no request to elsewhere."""
    url, world = site
    papers = {}
    for name, path in chromium.PATHS.items():
        page = browser.open(url + path)
        assert page.text("h1"), name
        assert page.requests(), name
        assert [request for request in page.requests() if not request.startswith(f"{url}/")] == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert page.complaints() == [], name
        assert page.dialogs() == [], name
        papers[name] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.close()
    page = browser.open(url + "/help")  # and what the policy refuses is noticed
    page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x'}))")
    page.wait("window.refusals.length > 0")
    page.close()
    world.admission.token = secrets.token_urlsafe(32)
    with Firefox.started(dark=True) as night:
        first = night.open(f"{url}/?token={world.admission.token}")
        until(lambda: chromium.arrived(first, "/overview"))
        for name, path in chromium.PATHS.items():
            page = night.open(url + path)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") != papers[name], name
            assert page.complaints() == [], name
            page.close()


def test_the_browser_verifies_proofs_by_itself(browser, site):
    chromium.test_the_browser_verifies_proofs_by_itself(browser, site)


def test_any_file_that_is_dropped_is_verified_by_the_browser(browser, site):
    chromium.test_any_file_that_is_dropped_is_verified_by_the_browser(browser, site)


def test_hostile_signatures_are_judged_by_our_rule_and_differences_of_webcrypto_are_documented(browser, site):
    chromium.check_published_signatures(browser, site, "Firefox")


def test_a_message_is_sent_from_the_page_and_a_reload_sends_no_second_one(browser, site):
    chromium.check_sending(browser, site)


def test_an_evidence_page_verifies_and_a_tampered_one_does_not(browser, tmp_path):
    """From a file, without a server."""
    good = WORLD.evidence().to_file()
    report = check_evidence(EvidenceFile.from_file(good), None)
    for number, position in enumerate([None, len(good) // 3, len(good) // 2, len(good) - 40]):
        data = bytearray(good)
        if position is not None:
            data[position] ^= 0x04
        path = tmp_path / f"evidence{number}.html"
        path.write_bytes(html_of(bytes(data), report))
        page = browser.open(path.as_uri())
        page.wait(DECIDED)
        assert (page.evaluate(STATE) in ("good", "partly")) == (position is None), position
        assert all(request.startswith(("file:", "data:", "blob:")) for request in page.requests())
        page.close()
