"""The pictures of README.md and docs/architecture.md: drawn from what they say, and what they name exists."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import veen

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_pictures  # noqa: E402 - a tool, not a package


@pytest.mark.parametrize("name", sorted(set(make_pictures.names())))
def test_every_name_in_a_picture_exists(name):
    module, _, attribute = f"veen.{name}".rpartition(".")
    try:
        import_module(f"veen.{name}")
    except ModuleNotFoundError:
        assert hasattr(import_module(module), attribute)


def test_the_pictures_are_those_that_would_be_drawn():
    assert make_pictures.main(["--check"]) == 0


def test_every_room_is_in_the_picture_and_in_the_table():
    packages = {path.parent.name for path in Path(veen.__file__).parent.glob("*/__init__.py")} - {"contrib", "testing"}
    assert {room for row in make_pictures.ROOMS for room in row} == packages
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert packages <= set(re.findall(r"^\| `veen\.(\w+)`", page, re.MULTILINE))


def test_a_picture_that_was_changed_by_hand_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_pictures, "FOLDER", tmp_path)
    assert make_pictures.main([]) == 0
    assert make_pictures.main(["--check"]) == 0
    (tmp_path / "row.svg").write_text("<svg/>")
    assert make_pictures.main(["--check"]) == 1
    assert "row.svg is stale" in capsys.readouterr().err
