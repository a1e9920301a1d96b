"""evidence.html in a real browser: what it verifies, what it says, and that nothing it carries becomes markup.

The module of the page is also run over the published vectors and over altered files, and must agree with the verifier
in Python on each of them.
"""

import base64
import json
from itertools import product
from pathlib import Path

import pytest
from tests.browser import Browser
from tests.core import strict_cbor
from tests.core.test_evidence_file import SMALL, fault
from tests.evidence_builders import HOSTILE, NEW, OLD, STRANGER, World, alterations, body_bounds, pinned, resealed

from veen.client import evidence_page
from veen.client.evidence_page import page
from veen.core.evidence_check import check_evidence
from veen.core.evidence_file import MAGIC, EvidenceFile

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

VECTORS = Path(__file__).parents[1] / "vectors"
WORLD = World([b'{"n":1}', "Grüße".encode(), b"\x00\xff", b"", b"x" * 5000, b"6", b"7"])
PIN = f"ed25519:{OLD.public.hex()}"
STATE = "document.body.dataset.state"
DECIDED = f'["good", "partly", "bad", "unknown"].includes({STATE})'


def html_of(data, report=None):
    return page(data, report or check_evidence(EvidenceFile.from_file(data), None), exporter_pin=PIN)


@pytest.fixture(scope="module")
def browser():
    with Browser.started() as started:
        yield started


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page with this evidence and waits for its verdict."""

    def opened(data, report=None, *, wait=True, **options):
        path = tmp_path / "evidence.html"
        path.write_bytes(html_of(data, report))
        tab = browser.open(path.as_uri(), **options)
        if wait:
            tab.wait(DECIDED)
        return tab

    return opened


@pytest.fixture(scope="module")
def module(browser, tmp_path_factory):
    """A tab that has the verifier as `veen`, and `veen.code(base64, pin)`, which gives the code of a refusal."""
    path = tmp_path_factory.mktemp("module") / "empty.html"
    path.write_text("<!doctype html><title>empty</title>")
    tab = browser.open(path.as_uri())
    source = Path(evidence_page.__file__).with_name("veen-verify.js").read_text("utf-8")
    code, _, names = source.rpartition("export {")
    tab.evaluate(
        f"""(() => {{ {code} globalThis.veen = {{ {names.strip().removesuffix("};")} }}; }})();
        veen.bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
        veen.code = async (base64, pin) => {{
          try {{ await veen.verifyEvidence(veen.bytes(base64), pin && veen.parsePin(pin)); return null; }}
          catch (error) {{ return error instanceof veen.Fault ? error.code : String(error.stack); }}
        }};
        veen.refused = async (work) => {{ try {{ await work(); return false; }} catch (error) {{
          if (error instanceof veen.Fault) return true; throw error; }} }};"""
    )
    return tab


def codes(module, files, pin=PIN):
    """The codes with which the module refuses these files; None for those that it accepts."""
    verdicts = []
    for start in range(0, len(files), 200):
        batch = [base64.b64encode(data).decode() for data in files[start : start + 200]]
        work = f"(async () => {{ const found = []; for (const file of {json.dumps(batch)})"
        verdicts += module.evaluate(f"{work} found.push(await veen.code(file, {json.dumps(pin)})); return found; }})()")
    return verdicts


# --- the page -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contents", ["sealed", "openings", "plaintext"])
def test_good_evidence_is_verified_and_the_page_says_by_whom_and_with_whose_key(show, contents):
    tab = show(WORLD.evidence((2, 6), contents=contents, head=7).to_file())
    assert tab.evaluate(STATE) == "partly"
    assert "Verified by this browser, with the exporter's key" in tab.text("#mark")
    assert tab.text("#pin-note").startswith("Given by the exporter")
    assert tab.evaluate("document.querySelectorAll('#entries tr').length") == 5
    assert tab.evaluate("document.querySelectorAll('#entries .check').length") == 5
    words = {"sealed": "sealed, ", "openings": "opened: decrypted", "plaintext": "stated by the exporter, not proven"}
    assert words[contents] in tab.text("#entries")
    assert ("Grüße" in tab.text("#entries")) == (contents != "sealed")
    assert "2 to 6 of the first 6 entries" in tab.text("#proves")
    assert ("marked as stated" in tab.text("#who")) == (contents == "plaintext")
    tab.evaluate("document.getElementById('pin-mine').click()")
    tab.wait(f"{STATE} === 'good'")
    assert "against the key that you gave" in tab.text("#mark")
    assert len(tab.requests()) == 1
    assert tab.complaints() == []


def test_a_typed_key_decides(show):
    tab = show(WORLD.evidence().to_file())

    def typed(key):
        tab.evaluate(f"document.getElementById('pin').value = {json.dumps(key)}; document.body.dataset.state = 'asked'")
        tab.evaluate("document.querySelector('#pin-form button').click()")

    typed(STRANGER.public.hex())
    tab.wait(f"{STATE} === 'bad'")
    assert "another hub" in tab.text("#mark")
    assert "E.EVIDENCE.HUB" in tab.text("#mark")
    assert tab.evaluate("document.querySelectorAll('#entries tr').length") == 0
    typed(f"ed25519:{NEW.public.hex()}:{WORLD.identity.hub_id.hex()}")
    tab.wait(f"{STATE} === 'good'")
    typed("not a key")
    assert "64 hex digits" in tab.text("#pin-note")
    typed(NEW.public.hex())  # the first entries are signed by the key before it
    tab.wait(f"{STATE} === 'bad'")


def test_tampered_evidence_turns_the_page_red_and_nothing_of_it_is_shown(show):
    report = check_evidence(WORLD.evidence((1, 5), contents="openings"), None)
    for name, (altered, code) in alterations(WORLD).items():
        if code == "FORM" and "id" in name:
            continue  # cannot be written: the format has no place for it
        tab = show(altered.to_file(), report)
        assert tab.evaluate(STATE) == "bad", name
        assert f"(E.EVIDENCE.{code})" in tab.text("#mark"), name
        assert tab.evaluate("document.querySelectorAll('#entries tr, #proves li').length") == 0
        assert "orders" not in tab.text("main")
        tab.call("Page.close")


def test_what_the_exporter_wrote_into_the_page_is_replaced_by_what_was_verified(show):
    """The HTML says something else than the evidence that the page carries."""
    other = check_evidence(World([b"invented"] * 3, stream="invented").evidence(contents="openings"), None)
    data = WORLD.evidence((2, 3), contents="openings").to_file()
    assert "invented" in show(data, other, scripts=False, wait=False).text("main")
    tab = show(data, other)
    assert tab.evaluate(STATE) == "partly"
    assert "invented" not in tab.text("main")


def test_hostile_names_and_bodies_are_inert(show):
    hostile = [
        HOSTILE,
        "</script><script>document.title='owned'</script>",
        "\u2028\u0007\u200f]]>",
        "<svg onload=alert(1)>",
    ]
    for contents in ("openings", "plaintext"):
        data = World([body.encode() for body in hostile], stream=HOSTILE).evidence(contents=contents).to_file()
        tab = show(data)
        assert tab.evaluate("document.title") == "VEEN evidence"
        assert tab.evaluate("document.querySelectorAll('img, svg, iframe, object, link').length") == 0
        assert tab.evaluate("document.scripts.length") == 2
        assert "\u202e" not in tab.text("main")
        assert "⟨U+202E⟩gnp.exe" in tab.text("#title")
        assert len(tab.requests()) == 1
        assert tab.complaints() == []
        static = show(data, scripts=False, wait=False)
        assert "<script>" in static.text("#entries")
        assert "\u202e" not in static.text("main")


def test_without_javascript_the_page_is_readable_and_claims_nothing(show):
    tab = show(WORLD.evidence(contents="openings").to_file(), scripts=False, wait=False)
    assert tab.text("#mark-title") == "Not verified by anybody yet"
    assert "was not verified" in tab.text("#who")
    assert "Grüße" in tab.text("#entries")
    assert tab.evaluate("document.querySelectorAll('.check').length") == 0


def test_a_browser_without_ed25519_says_so_and_claims_nothing(browser, tmp_path):
    path = tmp_path / "evidence.html"
    path.write_bytes(html_of(WORLD.evidence().to_file()))
    for lack in ("SubtleCrypto.prototype.importKey = () => Promise.reject(new Error('unsupported'))",
                 "SubtleCrypto.prototype.verify = () => Promise.resolve(true)"):  # fmt: skip
        tab = browser.open("about:blank")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=lack)
        tab.call("Page.navigate", url=path.as_uri())
        tab.wait(f"document.body && {DECIDED}")
        assert tab.evaluate(STATE) == "unknown"
        assert tab.text("#mark-title").startswith("Not verified")
        assert tab.evaluate("document.querySelectorAll('.check').length") == 0


def test_a_page_whose_evidence_is_damaged_turns_red(browser, tmp_path):
    html = html_of(WORLD.evidence().to_file())
    marker = b'type="text/plain">'
    for damage in (b"!!!!", b"AAAA"):
        path = tmp_path / "evidence.html"
        path.write_bytes(html.replace(marker, marker + damage))
        tab = browser.open(path.as_uri())
        tab.wait(DECIDED)
        assert tab.evaluate(STATE) == "bad"


def test_a_script_that_was_added_to_the_page_does_not_run(browser, tmp_path):
    """The policy names the two scripts by their hashes."""
    html = html_of(WORLD.evidence().to_file())
    path = tmp_path / "evidence.html"
    path.write_bytes(html.replace(b"</main>", b"</main><script>document.title='owned'</script><img src=x.png>"))
    tab = browser.open(path.as_uri())
    tab.wait(DECIDED)
    assert tab.evaluate("document.title") == "VEEN evidence"
    assert tab.complaints() != []


def test_many_entries_are_all_verified_and_shown_on_request(show):
    world = World([b"%d" % number for number in range(1250)], rotated=False)
    tab = show(world.evidence(contents="openings").to_file())
    assert tab.evaluate("document.querySelectorAll('#entries tr').length") == 200
    assert "all of them were verified" in tab.text("#entries-note")
    for shown in (1200, 1250):
        tab.evaluate("document.querySelector('#entries-note button').click()")
        assert tab.evaluate("document.querySelectorAll('#entries tr').length") == shown
    assert tab.text("#entries-note") == ""


def test_the_saved_file_is_the_evidence(show, browser, tmp_path):
    data = WORLD.evidence().to_file()
    tab = show(data)
    saved = tmp_path / "saved"
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(saved), eventsEnabled=True)
    tab.evaluate("document.getElementById('save').click()")
    while not [
        event
        for event in browser.events
        if event["method"] == "Browser.downloadProgress" and event["params"]["state"] == "completed"
    ]:
        browser.events.append(browser.next_message())
    assert (saved / "evidence.veen-evidence").read_bytes() == data


def test_light_dark_and_print_differ_and_nothing_is_wider_than_the_window(show, tmp_path):
    data = World([HOSTILE.encode(), b"x" * 3000], stream="o" * 300).evidence(contents="openings").to_file()
    background = "getComputedStyle(document.body).backgroundColor"
    colours = set()
    for dark, width in product((False, True), (360, 1100)):
        tab = show(data, dark=dark, width=width)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.screenshot(tmp_path / f"{dark}-{width}.png")
        colours.add(tab.evaluate(background))
    assert len(colours) == 2
    tab = show(data)
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate("getComputedStyle(document.getElementById('pin-form')).display") == "none"
    assert tab.evaluate(background) == "rgb(255, 255, 255)"


# --- the module -----------------------------------------------------------------------------------------------------


def test_the_module_gives_every_altered_file_the_code_that_the_verifier_in_python_gives(module):
    cases = alterations(WORLD)
    expected = {name: code for name, (_, code) in cases.items() if name != "a name without an id"}
    files = [cases[name][0].to_file() for name in expected]
    assert dict(zip(expected, codes(module, files), strict=True)) == expected
    data = WORLD.evidence().to_file()
    odd = [b"", MAGIC, data[:-1], data + b"\0", MAGIC + b"\x02\x40" + bytes(34), b"\x89PNG\r\n", bytes(100)]
    assert codes(module, odd) == [fault(file) for file in odd]
    assert codes(module, [data], None) == [None]
    assert codes(module, [data], NEW.public.hex()) == [fault(data, pinned(NEW))] == ["HUB"]


@pytest.mark.parametrize("contents", ["openings", "plaintext"])
def test_both_verifiers_agree_on_every_byte(module, contents):
    data = SMALL.evidence((2, 2), contents=contents, head=3).to_file()
    start, end = body_bounds(data)
    damaged = [data[:pos] + bytes([data[pos] ^ 1 << pos % 8]) + data[pos + 1 :] for pos in range(len(data))]
    altered = [resealed(file) for file in damaged[start:end]]
    for files in (damaged, altered):
        verdicts = codes(module, files)
        expected = [fault(file) for file in files]
        pairs = enumerate(zip(verdicts, expected, strict=True))
        assert [(pos, browser, python) for pos, (browser, python) in pairs if browser != python] == []


def test_the_signatures_of_the_published_cases_are_judged_by_our_rule(module):
    """ed25519-speccheck and Wycheproof: what a browser leaves open is decided by the module."""
    cases = []
    speccheck = json.loads((VECTORS / "ed25519-speccheck.json").read_text())
    for number, case in enumerate(speccheck["cases"]):
        accepted = number in speccheck["expect_libsodium_accept"]
        cases.append((case["pub_key"], case["message"], case["signature"], accepted))
    for group in json.loads((VECTORS / "wycheproof-ed25519.json").read_text())["testGroups"]:
        for test in group["tests"]:
            cases.append((group["publicKey"]["pk"], test["msg"], test["sig"], test["result"] == "valid"))
    for case in json.loads((VECTORS / "ed25519-rfc8032.json").read_text())["vectors"]:
        cases.append((case["pk"], case["msg"], case["sig"], True))
    verdicts = module.evaluate(
        f"Promise.all({json.dumps(cases)}.map(([key, message, signature]) =>"
        " veen.ed25519Verify(veen.unhex(key), veen.unhex(message), veen.unhex(signature))))"
    )
    assert verdicts == [accepted for *_, accepted in cases]
    assert len(cases) > 160


def test_the_ciphers_follow_the_published_cases(module):
    cases = []
    for name in ("wycheproof-chacha20_poly1305", "wycheproof-xchacha20_poly1305"):
        for group in json.loads((VECTORS / f"{name}.json").read_text())["testGroups"]:
            for test in group["tests"]:
                if len(test["iv"]) in (24, 48):
                    expected = test["msg"] if test["result"] == "valid" else None
                    cases.append((test["key"], test["iv"], test["aad"], test["ct"] + test["tag"], expected))
    verdicts = module.evaluate(
        f"{json.dumps(cases)}.map((parts) => veen.aeadOpen(...parts.slice(0, 4).map(veen.unhex)))"
        ".map((plain) => plain && veen.hex(plain))"
    )
    assert verdicts == [expected for *_, expected in cases]
    assert len(cases) > 500
    for case in json.loads((VECTORS / "hpke-rfc9180-base-x25519-chacha20poly1305.json").read_text())["vectors"]:
        verdicts = module.evaluate(
            f"veen.hpkeContext(veen.unhex('{case['shared_secret']}'), veen.unhex('{case['info']}'))"
            ".then((context) => [veen.hex(context.key), veen.hex(context.nonce)])"
        )
        assert verdicts == [case["key"], case["base_nonce"]]


def test_cbor_has_one_encoding(module):
    vectors = json.loads((VECTORS / "cbor-rfc8949.json").read_text())
    good = [case["hex"] for kind in vectors if kind != "source" for case in vectors[kind]]
    verdicts = module.evaluate(
        f"{json.dumps(good)}.map((digits) => {{ try {{"
        " return veen.hex(veen.encodeCbor(veen.decodeCbor(veen.unhex(digits)))) === digits; }"
        " catch (error) { return error.code; } })"
    )

    def accepted(digits):
        try:
            strict_cbor.decode(bytes.fromhex(digits))
        except strict_cbor.RefusedError:
            return "FORM"
        return True

    assert verdicts == [accepted(digits) for digits in good]


def test_sizes_are_judged_before_anything_is_allocated(module):
    """Heads that announce far more than there is, and a body of many tiny items."""
    for head in ("9bffffffffffffffff", "bbffffffffffffffff", "5bffffffffffffffff", "9a04000000", "81" * 40):
        assert module.evaluate(f"veen.refused(() => veen.decodeCbor(veen.unhex('{head}')))"), head
    many = "Uint8Array.from([0x9a, 0, 0x09, 0x27, 0xc0, ...new Array(600000).fill(1)])"
    assert module.evaluate(f"veen.refused(() => veen.decodeCbor({many}))")
    assert module.evaluate("veen.code(btoa('x'.repeat(65 * 1024 * 1024)), null)") == "SIZE"


def test_the_vectors_of_the_specification_are_verified(module):
    vectors = json.loads((VECTORS / "veen-v0.0.1.json").read_text())
    scenario = vectors["scenarios"]["A"]
    hub_pk = vectors["keys"]["hub"]["public"]
    entries = [
        (step["expect"]["msg"] if "msg" in step["expect"] else step["msg"], step["expect"]["receipt"])
        for step in scenario["steps"]
        if step["op"] == "submit" and "receipt" in step["expect"]
    ]
    verdicts = module.evaluate(
        f"""Promise.all({json.dumps(entries)}.map(async ([msgHex, receiptHex]) => {{
          const msg = veen.readMsg(veen.unhex(msgHex)), receipt = veen.readReceipt(veen.unhex(receiptHex));
          return [veen.hex(await veen.leafHash(msg)) === veen.hex(receipt.leafHash),
            await veen.ed25519Verify(msg.clientId, await veen.msgDigest(msg), msg.sig),
            await veen.ed25519Verify(veen.unhex('{hub_pk}'), await veen.receiptDigest(receipt), receipt.hubSig)];
          }}))"""
    )
    assert verdicts == [[True] * 3] * len(entries)
    leaves = module.evaluate(
        f"{json.dumps([receipt for _, receipt in entries])}.map((digits) =>"
        " veen.hex(veen.readReceipt(veen.unhex(digits)).leafHash))"
    )
    proofs = scenario["proofs"]
    verdicts = module.evaluate(
        f"""(async () => {{ const found = [], leaves = {json.dumps(leaves)}.map(veen.unhex);
          for (const row of {json.dumps(proofs["inclusion"])}) {{
            const proof = veen.readInclusionProof(veen.unhex(row.cbor));
            const check = (root) => veen.checkInclusion(
              proof, leaves[row.stream_seq - 1], BigInt(row.stream_seq), BigInt(row.tree_size), root);
            await check(veen.unhex(row.root));
            found.push(await veen.refused(() => check(new Uint8Array(32)))); }}
          for (const row of {json.dumps(proofs["consistency"])}) {{
            const proof = veen.readConsistencyProof(veen.unhex(row.cbor));
            const check = (root) => veen.checkConsistency(
              proof, BigInt(row.from_size), veen.unhex(row.from_root), BigInt(row.to_size), root);
            await check(veen.unhex(row.to_root));
            found.push(await veen.refused(() => check(new Uint8Array(32)))); }}
          for (const row of {json.dumps(proofs["range"])}) {{
            const proof = veen.readRangeProof(veen.unhex(row.cbor));
            const some = leaves.slice(row.first_seq - 1, row.last_seq);
            await veen.checkRange(proof, some, BigInt(row.tree_size), veen.unhex(row.root));
            found.push(await veen.refused(() => veen.checkRange(
              proof, some, BigInt(row.tree_size), new Uint8Array(32)))); }}
          return found; }})()"""
    )
    assert verdicts == [True] * sum(len(proofs[kind]) for kind in ("inclusion", "consistency", "range"))
