"""The console in Debian's Chromium: one browser, and one hub with something of everything, for the whole module."""

import base64
import contextlib
import json
import os
from importlib.resources import files
from pathlib import Path

import pytest
from tests.browser import Browser
from tests.products.console.consoles import HOSTILE, HOSTILE_TEXT, ORDERS, SHOP, filled, served
from tests.waiting import until

from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt
from veen.products.console.guard import BrowserAdmission
from veen.products.console.passwords import PasswordFile, hash_password
from veen.testing.hostile import Forges

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests" / "vectors"
ID = ORDERS.stream_id.hex()
PATHS = {
    "overview": "/overview",
    "streams": "/streams",
    "stream": f"/stream/{ID}",
    "message": f"/stream/{ID}/3",
    "proof": f"/stream/{ID}/3/proof",
    "ladder": f"/stream/{ID}/3/proof?size=40&step=2",
    "hostile": f"/stream/{HOSTILE.stream_id.hex()}",
    "checkpoints": "/checkpoints",
    "anchors": "/anchors",
    "recorder": "/recorder",
    "bridge": "/bridge",
    "query": f"/query?scope={SHOP}&evidence=full",
    "identity": "/identity",
    "wallet": "/wallet",
    "capabilities": "/capabilities",
    "operations": "/operations",
    "discovery": "/discovery",
    "audit": "/audit",
    "equivocation": "/equivocation",
    "verify": "/verify",
    "settings": "/settings",
    "help": "/help",
}
STATE = "document.getElementById('browser-verdict').dataset.state"
FILE_STATE = "document.getElementById('file-verdict').dataset.state"
MAX_PAGE_BYTES = 150_000
FOCUS = """(() => {
  const node = document.activeElement;
  window.steps ??= new Map();
  if (!window.steps.has(node)) window.steps.set(node, window.steps.size);
  return [window.steps.get(node), node.className, getComputedStyle(node).outlineStyle];
})()"""


@pytest.fixture(scope="module")
def browser():
    with Browser.started("--host-resolver-rules=MAP attacker.example 127.0.0.1") as started:
        yield started


@pytest.fixture(scope="module")
def site(tmp_path_factory, browser):
    """The URL of a console whose token this browser has shown, as `veen console open` does it, and its world."""
    tmp_path = tmp_path_factory.mktemp("console")
    with served(tmp_path, world_of=filled, orders=40, writes=True) as (url, world):
        entrance = tmp_path / "console.html"
        entrance.write_text(f'<meta http-equiv="refresh" content="0; url={url}/?token={world.token}">')
        first = browser.open(entrance.as_uri())
        until(lambda: arrived(first, "/overview"))
        assert world.token not in first.evaluate("location.href")
        assert first.evaluate("document.cookie") == ""
        yield url, world


def arrived(page, path, condition="true"):
    """Whether a tab that goes from page to page is there."""
    try:
        return page.evaluate(f"document.readyState === 'complete' && {condition} && location.pathname") == path
    except AssertionError:  # it is on its way
        return False


AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def axe_findings(page, options):
    return page.evaluate(
        f"axe.run(document, {json.dumps(options)}).then((result) => result.violations.map((violation) =>"
        " [violation.id, violation.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]))"
    )


def test_every_page_in_light_and_dark_without_a_complaint_and_nothing_against_it_by_axe(browser, site, tmp_path):
    """No refused content, no error, no dialog, no request to elsewhere; WCAG 2.1 A and AA in both themes.

    Pictures of all pages are kept in VEEN_SCREENSHOTS, if it is set.
    """
    url, _ = site
    folder = Path(os.environ.get("VEEN_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    program = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    findings = []
    for name, path in PATHS.items():
        page = browser.open(url + path)
        assert page.text("h1"), name
        assert all(request.startswith(f"{url}/") for request in page.requests()), name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page.complaints() == [], name
        page.screenshot(folder / f"{name}-light.png")
        page.evaluate(program + "; undefined")
        findings += [(name, "light", violation) for violation in axe_findings(page, AXE)]
        page.scheme(dark=True)
        page.screenshot(folder / f"{name}-dark.png")
        pictures = [(folder / f"{name}-{theme}.png").read_bytes() for theme in ("light", "dark")]
        assert all(picture.startswith(b"\x89PNG") for picture in pictures), name
        assert pictures[0] != pictures[1], name
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper, name
        findings += [(name, "dark", violation) for violation in axe_findings(page, {"runOnly": ["cat.color"]})]
        assert page.events("Page.javascriptDialogOpening") == [], name
        page.close()
    assert findings == []
    page = browser.open(url + "/help")  # and axe does find things
    page.evaluate(program + "; document.querySelector('main').append(document.createElement('img')); undefined")
    assert "image-alt" in [violation[0] for violation in axe_findings(page, AXE)]
    page.close()


def test_every_page_is_complete_without_scripts_and_narrow(browser, site):
    url, _ = site
    for name, path in PATHS.items():
        page = browser.open(url + path, scripts=False, width=400)
        assert page.text("h1"), name
        assert page.text("footer"), name
        assert page.evaluate(
            "[...document.querySelectorAll('button')].every((button) => button.hidden || button.form)"
        ), name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page.close()


def test_the_keyboard_reaches_everything_in_order(browser, site):
    url, _ = site
    for name in ("fold", "verify", "wallet"):
        page = browser.open(url + PATHS.get(name, f"/stream/{ID}/3/proof?step=1"))
        count = page.evaluate(
            "[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex=\"0\"]')]"
            ".filter((node) => node.checkVisibility() && !node.hidden && node.type !== 'hidden').length"
        )
        reached = []
        for _ in range(count):
            page.press("Tab")
            reached.append(page.evaluate(FOCUS))
        assert reached[0][1] == "skip", name
        assert len({number for number, _, _ in reached}) == count, name
        assert all(outline != "none" for _, _, outline in reached), name
        page.close()


def test_names_and_bodies_of_others_are_inert(browser, site):
    url, _ = site
    for path in (PATHS["hostile"], "/streams", "/checkpoints", "/audit", "/anchors", f"/query?scope={SHOP}"):
        page = browser.open(url + path)
        assert page.events("Page.javascriptDialogOpening") == []
        text = page.evaluate("document.documentElement.innerHTML")
        assert "\u202e" not in text
        assert page.evaluate("document.querySelectorAll('main script, main img, [onerror], [onmouseover]').length") == 0
        page.close()
    assert HOSTILE_TEXT  # of the recorder: an event type


def test_the_browser_verifies_proofs_by_itself(browser, site):
    url, _ = site
    for name in ("proof", "ladder"):
        page = browser.open(url + PATHS[name])
        page.evaluate("document.getElementById('browser-verify').click()")
        page.wait(f"['good', 'bad', 'unknown'].includes({STATE})")
        assert page.evaluate(STATE) == "good"
        assert "Verified by this browser: entry 3 stands under the root" in page.text("#browser-verdict")
        for name_of, value in (("keys", "07" * 32), ("seq", "4"), ("proof", None)):
            change = f"document.getElementById('browser').dataset.{name_of}"
            old = page.evaluate(change)
            new = value or old[:-2] + ("00" if old[-2:] != "00" else "01")
            page.evaluate(f"{change} = {json.dumps(new)}; document.getElementById('browser-verify').click()")
            page.wait(f"{STATE} === 'bad'")
            page.evaluate(f"{change} = {json.dumps(old)}; {STATE} = 'asked'")
        assert page.complaints() == []
        page.close()


def dropped(page, *contents):
    """Drop files on the page that verifies, and wait for the verdict."""
    data = json.dumps([base64.b64encode(content).decode() for content in contents])
    page.evaluate(
        f"(() => {{ const transfer = new DataTransfer();"
        f" {data}.forEach((text, index) => transfer.items.add("
        f" new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], `file${{index}}`)));"
        f" {FILE_STATE} = 'asked'; const options = {{ dataTransfer: transfer, bubbles: true, cancelable: true }};"
        f" document.getElementById('drop').dispatchEvent(new DragEvent('drop', options)); }})()"
    )
    page.wait(f"['good', 'bad', 'unknown'].includes({FILE_STATE})")
    return page.evaluate(FILE_STATE), page.text("#file-verdict")


@pytest.mark.req("RCPT-07")
def test_any_file_that_is_dropped_is_verified_by_the_browser(browser, site):
    url, world = site
    client = world.client
    proven = world.do(client.proof("orders", 3, tree_size=40))
    later = world.do(client.receipt("orders", 40))
    checkpoint = world.do(client.checkpoint("orders"))
    growth = world.do(client.consistency("orders", 3, checkpoint.upto_seq))  # another test may have written more
    evidence = world.do(client.evidence("orders")).to_file()
    liar = SigningKey(b"\x07" * 32)
    stories = [
        Receipt.issue(
            liar, label=bytes(32), stream_seq=1, leaf_hash=bytes([n]) * 32, mmr_root=bytes([n]) * 32, hub_ts=n
        )
        for n in (1, 2)
    ]
    report = Equivocation.of(*stories, one_pk=liar.public)
    receipt, proof = proven.receipt.to_bytes(), proven.proof.to_bytes()
    good = {
        "RECEIPT": (receipt,),
        "CHECKPOINT": (checkpoint.to_bytes(),),
        "mmr_proof": (proof, receipt, later.to_bytes()),
        "consistency_proof": (growth.to_bytes(), receipt, checkpoint.to_bytes()),
        "equivocation": (report.to_bytes(),),
        "evidence file": (evidence,),
        "MSG": (world.do(first_message(client)),),
    }
    page = browser.open(url + "/verify")
    for kind, contents in good.items():
        state, words = dropped(page, *contents)
        assert state == "good", (kind, words)
        assert words.startswith(f"✓ Verified by this browser: {kind}"), words
        for position in (3, len(contents[0]) // 2, len(contents[0]) - 1):
            damaged = bytearray(contents[0])
            damaged[position] ^= 0x10
            state, words = dropped(page, bytes(damaged), *contents[1:])
            assert state in ("bad", "unknown"), (kind, position, words)
            assert "Verified by this browser" not in words
    assert dropped(page, receipt.hex().encode())[0] == "good"  # as text
    assert dropped(page, proof) == dropped(page, proof, later.to_bytes())
    assert dropped(page, proof)[0] == "unknown"  # it needs the receipt: no verdict
    assert dropped(page, growth.to_bytes(), receipt)[0] == "unknown"
    for odd in (b"", b"\x00", b"\x9f\xff", bytes(100), b"\x1b" + bytes(8), b"hello"):
        assert dropped(page, odd)[0] == "bad", odd
    page.evaluate(f"document.getElementById('verify-key').value = {json.dumps('07' * 32)}")
    assert dropped(page, receipt)[0] == "bad"  # by another key
    assert page.complaints() == []
    page.close()


async def first_message(client):
    (entry,) = [entry async for entry in client.read("orders", from_seq=1, to_seq=1)]
    return entry.msg.to_bytes()


def published_signatures():
    """(name, key, message, signature) of ed25519-speccheck and Wycheproof."""
    for case in json.loads((VECTORS / "ed25519-speccheck.json").read_text())["cases"]:
        yield f"speccheck {case['index']}", case["pub_key"], case["message"], case["signature"]
    for group in json.loads((VECTORS / "wycheproof-ed25519.json").read_text())["testGroups"]:
        for test in group["tests"]:
            yield f"wycheproof {test['tcId']}", group["publicKey"]["pk"], test["msg"], test["sig"]


def test_hostile_signatures_are_judged_by_our_rule_and_differences_of_webcrypto_are_documented(browser, site):
    check_published_signatures(browser, site, "Chromium")


def check_published_signatures(browser, site, name_of_browser):
    url, _ = site
    cases = list(published_signatures())
    page = browser.open(url + "/verify")
    raw, ours = page.evaluate(
        "import('/static/veen-verify.js').then(async (veen) => { const raw = [], ours = [];"
        f" for (const [, ...parts] of {json.dumps(cases)}) {{ const [key, message, signature] = parts.map(veen.unhex);"
        "   ours.push(await veen.ed25519Verify(key, message, signature));"
        "   raw.push(await crypto.subtle.importKey('raw', key, 'Ed25519', false, ['verify'])"
        "     .then((web) => crypto.subtle.verify('Ed25519', web, signature, message)).catch(() => false)); }"
        " return [raw, ours]; })"
    )
    expected = [verify(*map(bytes.fromhex, case[1:])) if len(case[3]) == 128 else False for case in cases]
    assert ours == expected
    differences = [name for (name, *_), web, rule in zip(cases, raw, expected, strict=True) if web != rule]
    documented = [
        line.split("|")[1].strip()
        for line in (ROOT / "docs" / "console.md").read_text("utf-8").splitlines()
        if line.startswith(("| speccheck", "| wycheproof")) and name_of_browser in line
    ]
    assert differences == documented, f"docs/console.md lists what WebCrypto of {name_of_browser} judges otherwise"
    page.close()


def test_a_message_is_sent_from_the_page_and_a_reload_sends_no_second_one(browser, site):
    check_sending(browser, site)
    check_sending(browser, site, scripts=False)


def check_sending(browser, site, **options):
    """The browser says by itself where the form comes from: Origin, with the referrer policy of the console."""
    url, world = site
    path = PATHS["stream"]
    before = world.do(world.client.checkpoint("orders")).upto_seq
    page = browser.open(url + path, **options)
    page.evaluate(
        "document.querySelector('textarea[name=body]').value = 'from a page \\u202e<b>'; "
        "document.querySelector('form[action$=\"/send\"] button').click()"
    )
    until(lambda: arrived(page, f"{path}/{before + 1}"))
    assert f"Sent: the message is entry {before + 1} of orders." in page.text("#outcome")
    assert "Verified by this console: the receipt names this message" in page.text("#outcome")
    page.evaluate("document.body.dataset.before = 'yes'; location.reload(); undefined")
    until(lambda: arrived(page, f"{path}/{before + 1}", "document.body.dataset.before === undefined"))
    assert "Sent: the message is entry" in page.text("#outcome")
    assert world.do(world.client.checkpoint("orders")).upto_seq == before + 1
    page.close()


def logging_in(browser, url, password):
    """A tab without scripts that has sent the form."""
    page = browser.open(url + "/login", scripts=False)
    page.evaluate(
        f"document.querySelector('[name=name]').value = 'alice'; "
        f"document.querySelector('[name=password]').value = {json.dumps(password)}; "
        "document.querySelector('form button').click()"
    )
    return page


def test_people_log_in_and_out_without_scripts_and_the_form_has_nothing_against_it_by_axe(browser, tmp_path):
    word = "correct horse battery"
    passwords = PasswordFile({"alice": hash_password(word, memory_bytes=8192, passes=1)})
    program = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    with served(tmp_path, admission=BrowserAdmission(passwords=passwords), count=1) as (url, _):
        for dark in (False, True):
            page = browser.open(url + "/overview", dark=dark)
            assert "E.CONSOLE.LOGIN" in page.text("#fault")
            page.evaluate(program + "; undefined")
            assert axe_findings(page, AXE) == []
            page.close()
        page = logging_in(browser, url, "wrong")
        until(lambda: arrived(page, "/login", "document.getElementById('fault') !== null"))
        page.close()
        page = logging_in(browser, url, word)
        until(lambda: arrived(page, "/overview"))
        assert "Log out alice" in page.text("header")
        assert page.evaluate("document.cookie") == ""
        page.evaluate("document.querySelector('form.logout button').click()")
        until(lambda: arrived(page, "/logout"))
        assert "Logged out" in page.text("main")
        page.close()
        page = browser.open(url + "/overview")
        assert "E.CONSOLE.LOGIN" in page.text("#fault")
        page.close()


def test_new_entries_appear_and_a_lie_ends_the_tail_in_red(browser, site):
    url, world = site
    page = browser.open(url + PATHS["stream"])
    rows = "document.getElementById('entry-rows').rows.length"
    before = page.evaluate(rows)
    page.evaluate("document.getElementById('tail').click()")
    page.wait("document.getElementById('tail-state').textContent.startsWith('Following')")
    world.do(world.client.send("orders", "late \u202e<b>".encode()))
    page.wait(f"{rows} === {before + 1}")
    assert "late \\u202e<b>" in page.text("#entry-rows tr:last-child")
    assert page.evaluate("document.getElementById('tail').textContent") == "Pause"
    page.evaluate("document.getElementById('tail').click()")
    page.wait("document.getElementById('tail-state').textContent === 'Paused.'")
    sent = world.do(world.client.send("orders", b"x"))
    with lying(world, sent.seq):
        page.evaluate("document.getElementById('tail').click()")
        page.wait("document.getElementById('tail-state').className === 'who bad'")
    assert page.complaints() == ["Failed to load resource: the server responded with a status of 502 (Bad Gateway)"]
    page.close()


@contextlib.contextmanager
def lying(world, seq):
    """A hub that forges an entry for a while; afterwards the console begins anew."""
    world.wire.lies.append(Forges(seq))
    try:
        yield
    finally:
        world.wire.lies.clear()
        world.console.failures.clear()


def test_a_hub_that_lies_turns_the_page_red(browser, site):
    url, world = site
    with lying(world, 3):
        page = browser.open(url + PATHS["stream"])
        assert "E.DIVERGED" in page.text("#fault")
        assert "order" not in page.text("main").replace("orders", "")
        help_page = browser.open(url + "/help")
        assert "Verification FAILED since this console was started" in help_page.text("main")
        red = help_page.evaluate("getComputedStyle(document.querySelector('body > header')).borderBottomColor")
        plain = help_page.evaluate("getComputedStyle(document.querySelector('.card')).borderTopColor")
        assert red != plain


def test_another_name_of_this_machine_gets_nothing(browser, site):
    """DNS rebinding: the name leads here, and the Host header gives it away."""
    url, _ = site
    page = browser.open(url.replace("127.0.0.1", "attacker.example") + "/overview")
    assert "E.CONSOLE.HOST" in page.text("main")
    assert ID not in page.evaluate("document.documentElement.innerHTML")


def test_a_page_without_data_is_small(browser, site):
    """All that a first visit transfers, but for the data of the page."""
    url, _ = site
    page = browser.open(url + "/help")
    sizes = [event["encodedDataLength"] for event in page.events("Network.loadingFinished")]
    assert 0 < sum(sizes) <= MAX_PAGE_BYTES, sizes
