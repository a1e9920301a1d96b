"""docs/bridge.md runs as it stands there: two hub processes, all commands (AGB-14, AGB-16)."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests import shell
from tests.cli import shapecheck
from tests.cli.hubprocess import DEV, running
from tests.cli.tree import check_line, command_lines, exists

PAGE = (Path(__file__).parents[3] / "docs" / "bridge.md").read_text("utf-8")


@pytest.fixture
def site(tmp_path):
    """Two hubs and a shell."""
    with running(tmp_path / "z1", *DEV) as z1, running(tmp_path / "z2", *DEV) as z2:
        env = shell.environment(tmp_path / "home", DATA1=str(tmp_path / "z1"), DATA2=str(tmp_path / "z2"))
        env |= {"Z1": z1.url, "PIN1": z1.about["hub_pk"], "Z2": z2.url, "PIN2": z2.about["hub_pk"]}
        yield Shell(env, tmp_path, (z1, z2))


class Shell:
    """Runs lines as a person would type them."""

    def __init__(self, env, directory, hubs):
        self._env, self._directory, self._hubs = env, directory, hubs

    def __call__(self, command, code=0, **more):
        done = shell.typed(command, self._env | more, self._directory)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, command, **more):
        """What the command of such a line says as JSON, compared with its documented shape."""
        stdout = self(f"{command} --json", **more)
        shapecheck.check([*shlex.split(command)[1:], "--json"], 0, stdout, "")
        return json.loads(stdout)

    def stop(self):
        """The directories of hubs at rest have all entries."""
        for hub in self._hubs:
            hub.stop()


def steps(number):
    block = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)[number]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.slow
@pytest.mark.req("AGB-14", "AGB-16")
def test_every_line_of_the_walk_works(site, tmp_path):
    for line in steps(0):
        site(line)
    rows = json.loads(site("veen stream import/z1/security/auth --context z2 --identity auditor --json"))["entries"]
    assert len(rows) == 2
    (row,) = json.loads(site("veen stream record/security/auth --context z1 --identity exporter --range 2..2 --json"))[
        "entries"
    ]
    importing = next(line for line in steps(0) if line.startswith("veen bridge import"))
    rounds = json.loads(site(f"veen bridge run offline --times 1 {importing.partition('import')[2]} --json"))
    assert rounds["rounds"] == [{"round": 1, "bundles": []}], rounds
    # Beside running hubs, whose journals have all of it.
    beside = site.json(steps(1)[0])
    assert (beside["ok"], beside["verdict"]["value"], beside["report"]["imported_entries"]) == (True, "good", 2)
    # A stick that comes twice (A10), then one without the bundle before the last.
    (bundle,) = (tmp_path / "in" / "imported").glob("*.veenb")
    (tmp_path / "in" / "incoming" / bundle.name).write_bytes(bundle.read_bytes())
    again = site.json(importing)
    assert ([each["result"] for each in again["bundles"]], again["ok"]) == (["already imported"], True)
    exporting = next(line for line in steps(0) if line.startswith("veen bridge export"))
    site(exporting)
    site(exporting)
    heartbeats = sorted((tmp_path / "out" / "outgoing").glob("*.veenb"))[-2:]
    heartbeats[1].rename(tmp_path / "in" / "incoming" / heartbeats[1].name)
    waits = json.loads(site(f"{importing} --json", code=6))
    assert (waits["waiting"], waits["ok"], waits["verdict"]["value"]) == (1, False, "incomplete")
    site(steps(1)[1], code=6)  # `reconcile` looks into `waiting`
    heartbeats[0].rename(tmp_path / "in" / "incoming" / heartbeats[0].name)
    site(importing)
    site.stop()
    for line in steps(1):
        site(line, MSG_ID=row["msg_id"])
    assert site.json(steps(1)[1])["report"]["clean"]
    assert site.json(steps(1)[2], MSG_ID=row["msg_id"])
    for command in ("veen bridge doctor", "veen bridge inspect"):
        assert site.json(next(line for line in steps(0) if line.startswith(command)))
    report = json.loads((tmp_path / "report.json").read_text())["report"]
    assert report["clean"]
    assert (report["streams"][0]["attachments"], report["streams"][0]["missing_attachments"]) == (1, [])
    assert {each["verdict"] for each in report["invariants"].values()} == {"ok"}


@pytest.mark.req("AGB-10", "AGB-14")
@pytest.mark.long
def test_a_damaged_bundle_ends_the_command_with_its_code_and_reconciliation_names_it(site, tmp_path):
    for line in steps(0):
        if line.startswith("veen bridge send"):
            break
        site(line)
    (bundle,) = (tmp_path / "out" / "outgoing").glob("*.veenb")
    data = bundle.read_bytes()
    incoming = tmp_path / "in" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / bundle.name).write_bytes(data[:-70] + bytes((data[-70] ^ 1,)) + data[-69:])
    importing = next(line for line in steps(0) if line.startswith("veen bridge import"))
    refused = json.loads(site(f"{importing} --json", code=1))
    assert refused["bundles"][0]["code"] in ("AGB.SIG_EXPORTER", "AGB.ID", "AGB.FORMAT")
    site.stop()
    site(steps(1)[0], code=6)
    report = json.loads((tmp_path / "report.json").read_text())["report"]
    assert report["streams"][0]["missing_bundles"] == [1]
    assert len(report["rejected"]) == 1


@pytest.mark.req("AGB-02", "AGB-19")
def test_mixed_roles_are_refused(site):
    site("veen keygen --name both --insecure-plain-keystore && veen keygen --name log --insecure-plain-keystore")
    site("veen id keyring new import/z1/a --identity both")
    out = site("veen bridge doctor --importer both --offline-log log --json", code=4)
    assert "the importer only writes" in json.loads(out)["roles"][0]["findings"][0]
    site("veen bridge doctor --exporter both --importer both", code=4)
    site(
        "veen bridge export record/a --dir out --bridge b --hub $Z1 --pin $PIN1 --identity both --log-identity both",
        code=4,
    )


def test_every_command_that_is_named_parses():
    for line in command_lines(PAGE):
        if not exists(" ".join(line)):
            check_line(line)
