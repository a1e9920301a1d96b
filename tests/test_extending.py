"""docs/extending.md: its overlay, installed as a package beside VEEN is, and the names of `veen.ext`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import veen.ext
from tests.cli.overlay_people import world
from veen.cli.shared.output import Exit

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text("utf-8")
(MODULE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def site(tmp_path):
    """A directory of packages with the module of the page and its entry point."""
    (points,) = re.findall(r'```toml\n.*?"([\w.]+)"\]\n(\w+) = "(.*?)"\n```', PAGE, re.DOTALL)
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
