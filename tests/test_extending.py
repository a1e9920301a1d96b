"""docs/extending.md: its overlay, installed as a package beside VEEN is, and the names of `veen.ext`."""

import asyncio
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import veen.ext
from tests.cli.overlay_people import world
from tests.products.recorder.sources import Taken
from veen.cli.shared.output import Exit
from veen.products.recorder.adapters.registry import GROUP, SourceConfig, adapter_of

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text("utf-8")
MODULE, ADAPTER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

POINTS = re.findall(r'```toml\n[^`]*?"([\w.]+)"\]\n(\w+) = "(.*?)"\n```', PAGE)


@pytest.fixture
def site(tmp_path):
    """A directory of packages with the module of the page and its entry point."""
    points = POINTS[0]
    site = tmp_path / "site"
    metadata = site / "example_votes-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "example_votes.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-votes\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*points))
    return site


def test_the_overlay_of_the_page_has_its_commands_its_state_and_its_table(site, tmp_path):
    with world(tmp_path, "alice", "bob") as (_, alice, bob):
        alice.new_stream("team")
        bob.join(alice, "team")

        def veen_of(person, *words, code=0):
            path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
            env = {**os.environ, **person.env, "PYTHONPATH": path}
            done = subprocess.run([sys.executable, "-m", "veen", *words], env=env, capture_output=True, text=True)
            assert done.returncode == code, done.stderr
            return done.stdout or done.stderr

        vote = json.loads(veen_of(alice, "votes", "cast", "team", "lunch", "soup", "--comment", "cold", "--json"))
        assert (vote["stream"], vote["question"], vote["choice"], vote["counted"]) == ("team", "lunch", "soup", True)
        listed = json.loads(veen_of(bob, "votes", "list", "team", "--json"))
        assert listed["tallies"] == [{"question": "lunch", "choice": "soup", "votes": 1}]
        assert "soup" in veen_of(bob, "votes", "show", "team", "lunch")
        assert "hint:  veen votes list team " in veen_of(bob, "votes", "show", "team", "dinner", code=Exit.LOCAL)
        assert "Vote on a question." in veen_of(bob, "votes", "--help")
        assert "veen votes cast team lunch soup" in veen_of(bob, "votes", "cast", "--help")
        assert "no command 'vote'" in veen_of(bob, "vote", code=2)
        state = json.loads(veen_of(bob, "fold", "show", "team", "--overlay", "votes", "--json"))
        assert "soup" in json.dumps(state)
        (site / "example_votes.py").write_text("import nothing_of_this_name")
        assert "example_votes:OVERLAY cannot be used" in veen_of(bob, "votes", "list", "team", code=Exit.USAGE)


def test_a_product_is_found_by_the_name_of_its_command_only(site, tmp_path):
    (site / "example_votes.py").write_text(
        'from veen.ext import Product\nOVERLAY = Product(name="p", about="A.", commands={"ping": "example_votes:ping"})'
    )
    points = site / "example_votes-1.0.dist-info" / "entry_points.txt"
    points.write_text("[veen.products]\nvotes = example_votes:OVERLAY\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "veen", "votes"], env=env, capture_output=True, text=True)
    assert done.returncode == Exit.USAGE
    assert "one of ping" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_adapter_of_the_page_records_each_row_once(tmp_path):
    group, kind, value = POINTS[1]
    assert (group, value.partition(":")[0]) == (GROUP, "example_readings")
    (tmp_path / "readings.csv").write_text("sensor,value\nboiler,81\nvalve,open\n")
    (tmp_path / "example_readings.py").write_text(ADAPTER)
    config = SourceConfig("plant", kind, {"path": str(tmp_path / "readings.csv")})
    sys.path.insert(0, str(tmp_path))
    try:
        adapter = adapter_of(config, [EntryPoint(kind, value, group)])
    finally:
        sys.path.remove(str(tmp_path))
    spool = Taken()
    for _ in range(2):  # the second run begins behind the last record
        asyncio.run(adapter.run(spool.sink(adapter)))
    rows = [(subject, kind_of, payload["value"]) for subject, kind_of, _, _, payload in spool.records()]
    assert rows == [("boiler", "reading", "81"), ("valve", "reading", "open")]


def test_every_name_for_packages_is_there_and_typed():
    typed = (Path(veen.ext.__file__).with_suffix(".pyi")).read_text()
    names = set(re.findall(r"(?:import \w+ as |^class )(\w+)|^\w+(?= = )", typed, re.MULTILINE)) - {""} | {"Fold"}
    assert set(veen.ext.__all__) == names
    for name in names:
        assert getattr(veen.ext, name) is not None


def test_declaring_a_product_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import veen.ext; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("veen")}
    assert ours == {"veen", "veen._moved", "veen.ext", "veen.lazy"}
