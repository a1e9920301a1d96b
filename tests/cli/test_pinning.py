"""Whose log is it? `audit`, `verify-data` and `verify` against a pin: by option, by context, or by none."""

import json

import pytest
from tests.cli.homes import OTHER, PIN, Cli
from tests.lake.audit_builders import dump, log, run
from tests.lake.test_audit_equivocation import branches
from tests.storage.driver import HUB

from veen.cli.shared.output import Exit
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import HubIdentity, canonical_json
from veen.core.objects.trusted_root import TrustedKeys
from veen.io.local import OsFs
from veen.storage import control_state as controlfold
from veen.storage import layout
from veen.verify.audit import AuditOptions, Previous, audit
from veen.verify.audit.previous import PreviousError
from veen.verify.audit.report import document, lines, write
from veen.verify.directory import verify_data

OWN = f"ed25519:{HUB.public.hex()}"
AUDIT = ("audit", "run", "--engine", "python")


@pytest.fixture
def hub(tmp_path):
    path = tmp_path / "hub"
    path.mkdir()
    return dump(log(20), path)


@pytest.fixture
def cli(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Cli(tmp_path / "home")


def hub_id(hub):
    return json.loads((hub / "hub-identity.json").read_text())["hub_id"]


def first_line(done):
    return done.stdout.splitlines()[0]


def test_without_a_pin_the_first_line_says_so(cli, hub, tmp_path):
    for words in ((*AUDIT, hub, "--out", tmp_path / "out"), ("audit", "summary", tmp_path / "out")):
        done = cli.run(*words)
        assert first_line(done).startswith("keys not pinned"), done.stdout
        assert (report := cli.json(*words))["keys"] == "not pinned"
        assert next(iter(report)) in ("keys", "counts")  # the summary shows a file with sorted names
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("keys not pinned") < page.index("<h1")
    done = cli.invoke("hub", "verify-data", hub)
    assert first_line(done).startswith("keys not pinned")
    assert cli.invoke("verify", hub).stdout.startswith("keys not pinned")
    assert cli.run("audit", "diff", hub, hub).stdout.startswith("keys not pinned")


@pytest.mark.parametrize("with_hub_id", [False, True])
def test_the_right_pin_is_told(cli, hub, tmp_path, with_hub_id):
    pin = f"{OWN}:{hub_id(hub)}" if with_hub_id else OWN
    done = cli.run(*AUDIT, hub, "--pin", pin, "--out", tmp_path / "out")
    assert first_line(done) == f"keys pinned: {pin}"
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert (report["keys"], report["pin"]) == ("pinned", pin)
    assert f"keys pinned: {pin}" in (tmp_path / "out" / "report.html").read_text()
    assert first_line(cli.invoke("hub", "verify-data", hub, "--pin", pin)) == f"keys pinned: {pin} (--pin)"
    assert cli.json("audit", "diff", hub, hub, "--pin", pin)["pin"] == pin


def test_another_hubs_log_is_bad_evidence_with_a_code_of_its_own(cli, hub):
    """Every signature in it is good: it is simply not the log of the pinned hub."""
    for words in (AUDIT, ("hub", "verify-data")):
        for pin in (OTHER, f"{OWN}:{'c' * 64}"):
            done = cli.invoke(*words, str(hub), "--pin", pin, "--json")
            assert done.exit_code == Exit.BAD_EVIDENCE, done.output
            assert json.loads(done.stderr)["code"] == "E.VERIFY.PIN"
            assert '"pin"' in done.stdout
    done = cli.invoke("verify", str(hub), "--hub-pk", OTHER, "--json")
    assert json.loads(done.stderr)["code"] == "E.VERIFY.PIN"
    done = cli.invoke("audit", "diff", str(hub), str(hub), "--pin", OTHER, "--json")
    assert (done.exit_code, json.loads(done.stderr)["code"]) == (Exit.BAD_EVIDENCE, "E.VERIFY.PIN")


def test_the_pin_of_the_context_counts_by_default(cli, hub):
    """A log of another hub than that of the current context is not accused; one that was asked for is (walk A7)."""
    cli.run("context", "add", "acme", "--hub", "http://acme.example", "--pin", OTHER)
    cli.run("context", "add", "own", "--hub", "http://own.example", "--pin", OWN)
    for words in (AUDIT, ("hub", "verify-data"), ("verify",)):
        done = cli.invoke(*words, str(hub), "--json")
        assert (done.exit_code, json.loads(done.stderr)["code"]) == (Exit.POLICY, "E.INCOMPLETE"), done.output
        assert "[context.acme]" in json.loads(done.stderr)["cause"]
        done = cli.invoke(*words, str(hub), "--json", "--context", "acme")
        assert (done.exit_code, json.loads(done.stderr)["code"]) == (Exit.BAD_EVIDENCE, "E.VERIFY.PIN"), done.output
        report = cli.invoke(*words, str(hub), "--json", "--context", "own")
        assert json.loads(report.stdout)["keys"] == "pinned"
        assert "E.VERIFY.PIN" not in report.stderr
        report = cli.invoke(*words, str(hub), "--json", "--no-pin")
        assert json.loads(report.stdout)["keys"] == "not pinned"
        assert "E.VERIFY.PIN" not in report.stderr
    assert json.loads(cli.invoke("hub", "verify-data", str(hub), "--json", VEEN_PIN=OWN).stdout)["pin"] == OWN


def test_pins_that_are_none_and_contradictions_are_usage_errors(cli, hub):
    for words in (AUDIT, ("hub", "verify-data"), ("audit", "diff", hub)):
        cli.run(*words, hub, "--pin", "nonsense", code=Exit.USAGE)
        cli.run(*words, hub, "--pin", PIN, "--no-pin", code=Exit.USAGE)
    cli.run("verify", hub, "--hub-pk", PIN, "--no-pin", code=Exit.USAGE)


def test_an_audit_with_a_pin_does_not_go_on_from_one_without(hub, tmp_path):
    """What is not read again was judged by keys that nobody had pinned."""
    write(run(hub), tmp_path / "unpinned")
    pin = TrustedKeys.parse(OWN)
    with pytest.raises(PreviousError, match="a whole audit is needed"):
        audit(str(hub), AuditOptions(pin=pin), since=Previous.read(tmp_path / "unpinned"))
    write(run(hub, pin=pin), tmp_path / "pinned")
    assert audit(str(hub), AuditOptions(pin=pin), since=Previous.read(tmp_path / "pinned")).ok
    with pytest.raises(PreviousError, match="a whole audit is needed"):  # all inputs are compared as one value
        audit(str(hub), AuditOptions(), since=Previous.read(tmp_path / "pinned"))


# --- a forger who knows the pinned key, which is public ----------------------------------------------------------


@pytest.fixture
def forged(hub):
    """The identity of the pinned hub with a key of the forger behind it, which signs for itself."""
    evil = SigningKey(b"\x66" * 32)
    honest = HubIdentity.from_bytes((hub / "hub-identity.json").read_bytes())
    fs = OsFs(hub)
    *_, (_, last) = controlfold.control_records(fs)
    begins = 2_000_000_000  # after all entries
    identity = honest.with_rotation(evil.public, valid_from=begins, overlap_until=begins + 1000)
    record = ControlRecord.issue(evil, last, identity.rotations()[-1], hub_ts=begins)
    with (hub / layout.CONTROL).open("ab") as file:
        file.write(record.to_bytes())
    (hub / "hub-identity.json").write_bytes(identity.to_bytes())
    (hub / "hub-identity.sig").write_bytes(identity.sign(evil))
    (hub / "hub-key-map.json").write_bytes(canonical_json(identity.key_map()))
    return hub, TrustedKeys.parse(OWN), honest


def test_a_key_that_no_pinned_one_introduced_is_found(forged):
    hub, pin, honest = forged
    assert {finding.code for finding in run(hub).findings} == {"hub_sig"}  # the record does not say whose log it is
    assert "pin" in {finding.code for finding in run(hub, pin=pin).findings}
    assert "pin" in {finding.code for finding in run(hub, identity=honest).findings}
    assert "pin" in {finding.code for finding in verify_data(OsFs(hub), pin=pin).errors}
    assert "pin" in {finding.code for finding in verify_data(OsFs(hub), identity=honest).errors}


# --- the root of an ephemeral hub --------------------------------------------------------------------------------

ROOT = SigningKey(b"\x07" * 32)
ROOT_PIN = f"root:ed25519:{ROOT.public.hex()}"


@pytest.fixture
def ephemeral(hub):
    """The log of a hub whose identity a root signed."""
    identity = HubIdentity.from_bytes((hub / "hub-identity.json").read_bytes())
    (hub / "hub-identity.sig").write_bytes(identity.sign(ROOT))
    (hub / "hub-root.pk").write_text(f"{ROOT.public.hex()}\n")
    return hub


def test_a_pinned_root_vouches_for_the_identity_that_it_signed(cli, ephemeral):
    cli.run("context", "add", "disposable", "--hub", "http://own.example", "--pin", ROOT_PIN)
    for words in (AUDIT, ("audit", "diff", ephemeral)):
        assert cli.json(*words, ephemeral)["pin"] == ROOT_PIN
        assert cli.json(*words, ephemeral, "--pin", f"{ROOT_PIN}:{hub_id(ephemeral)}")["keys"] == "pinned"
    for pin in (f"root:{OTHER}", f"root:{OWN}", f"{ROOT_PIN}:{'c' * 64}", f"ed25519:{ROOT.public.hex()}"):
        for command in (AUDIT, ("audit", "diff", str(ephemeral)), ("hub", "verify-data")):
            done = cli.invoke(*command, ephemeral, "--pin", pin, "--json")
            assert (done.exit_code, json.loads(done.stderr)["code"]) == (Exit.BAD_EVIDENCE, "E.VERIFY.PIN"), pin
    for pin in ("root:", "root", f"{ROOT_PIN}:", f"{ROOT_PIN}:00", f"{ROOT_PIN}:{'c' * 64}:{'c' * 64}"):
        assert "expected ed25519:HUB_PK" in cli.run(*AUDIT, ephemeral, "--pin", pin, code=Exit.USAGE).stderr


def test_what_a_directory_says_of_its_root_vouches_for_nothing(ephemeral):
    """A forger names the pinned root in hub-root.pk, which is public, and signs with his own key."""
    pin = TrustedKeys.parse(ROOT_PIN)
    identity = HubIdentity.from_bytes((ephemeral / "hub-identity.json").read_bytes())
    evil = SigningKey(b"\x66" * 32)
    for signature in (identity.sign(evil), identity.sign(HUB), bytes(64), b""):
        (ephemeral / "hub-identity.sig").write_bytes(signature)
        for named in (ROOT.public, evil.public, None):
            (ephemeral / "hub-root.pk").unlink(missing_ok=True)
            if named is not None:
                (ephemeral / "hub-root.pk").write_text(f"{named.hex()}\n")
            assert "pin" in {finding.code for finding in run(ephemeral, pin=pin).findings}
            assert "pin" in {finding.code for finding in verify_data(OsFs(ephemeral), pin=pin).errors}


def test_a_report_on_a_given_identity_says_so(hub):
    identity = HubIdentity.from_bytes((hub / "hub-identity.json").read_bytes())
    result = run(hub, identity=identity)
    assert document(result)["keys"] == "given"
    assert next(lines(document(result))).startswith("keys given")


def test_two_directories_of_the_pinned_hub_are_compared(tmp_path, cli):
    left, right = branches(tmp_path)
    done = cli.invoke("audit", "diff", left, right, "--pin", OWN, "--json")
    assert json.loads(done.stderr)["code"] == "E.VERIFY"
    assert json.loads(done.stdout)["equivocations"]
