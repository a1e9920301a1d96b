"""`veen verify` and `veen inspect` on files: any object, both encodings, every verdict and exit code."""

import json

import pytest
from click.testing import CliRunner
from tests.cli import objects as world
from tests.examples import spread

from veen.cli.app import cli
from veen.cli.shared.output import Exit


@pytest.fixture
def run(tmp_path):
    def invoke(command, obj, *options, form="cbor", related=()):
        paths = []
        for number, item in enumerate([obj, *related]):
            path = tmp_path / f"object-{number}"
            path.write_bytes(world.encoded(item, form))
            paths.append(str(path))
        extra = [word for path in paths[1:] for word in ("--with", path)]
        return CliRunner().invoke(cli, [command, paths[0], *extra, *options])

    return invoke


HUB = ("--hub-pk", world.HUB.public.hex())


@pytest.mark.parametrize("form", spread(["cbor", "json", "hex"], 13))
@pytest.mark.parametrize("name", world.OBJECTS)
def test_inspect_shows_every_object_in_every_encoding(run, name, form):
    result = run("inspect", world.OBJECTS[name], "--json", form=form)
    assert result.exit_code == Exit.OK, result.output
    shown = json.loads(result.stdout)
    assert shown["kind"] == world.OBJECTS[name].KIND
    assert shown["object"] == world.OBJECTS[name].to_json()
    assert shown["encoding"] == ("json" if form == "json" else "cbor")


def test_inspect_computes_what_needs_no_key(run):
    shown = json.loads(run("inspect", world.MSG, "--json").stdout)
    assert shown["derived"]["msg_id"] == world.MSG.leaf_hash().hex()
    assert shown["derived"]["self_check"] == "ct_hash and sig hold"
    plain = run("inspect", world.MSG).stdout
    assert f"msg_id\t{world.MSG.leaf_hash().hex()}" in plain
    assert "header 52, body 21, padding" in plain


def test_inspect_tells_of_a_bad_message_instead_of_refusing(run):
    shown = json.loads(run("inspect", world.flipped(world.MSG, 300), "--json").stdout)
    assert shown["derived"]["self_check"].startswith("FAILED")


def test_what_is_no_object_is_a_usage_error_for_inspect_and_bad_evidence_for_verify(run):
    assert run("inspect", b"\x82\x01\x02").exit_code == Exit.USAGE
    assert run("verify", b"\x82\x01\x02").exit_code == Exit.BAD_EVIDENCE
    assert "not one of the known objects" in run("inspect", b"\x82\x01\x02").stderr
    assert run("inspect", b"").exit_code == Exit.USAGE
    assert run("inspect", b'{"ver": 1.5}').exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("name", "options", "related"),
    [
        ("msg", (), ()),
        ("msg", HUB, (world.RECEIPTS[0],)),
        ("receipt", HUB, ()),
        ("receipt", HUB, (world.MSG,)),
        ("checkpoint", HUB, ()),
        ("checkpoint", (*HUB, "--witness", world.WITNESS.public.hex()), ()),
        ("proof", HUB, (world.CHECKPOINT, world.MSG)),
        ("proof", ("--root", world.CHECKPOINT.mmr_root.hex(), "--size", "5", "--seq", "1"), ()),
        ("consistency", HUB, (world.RECEIPTS[1], world.CHECKPOINT)),
        ("range", HUB, (*world.RECEIPTS[1:3], world.CHECKPOINT)),
        ("token", (), ()),
        ("control", HUB, ()),
        ("equivocation", (), ()),
        ("equivocation", HUB, ()),
        ("page", HUB, ()),
        ("submit", (), ()),
        ("submitted", HUB, ()),
        ("profile", (), ()),
    ],
)
def test_a_good_object_verifies_and_the_checks_are_named(run, name, options, related):
    options = (*options, "--seq", "1") if name == "proof" and related else options
    result = run("verify", world.OBJECTS[name], *options, "--json", related=related)
    assert result.exit_code == Exit.OK, result.stderr
    verdict = json.loads(result.stdout)
    assert verdict["ok"] is True
    assert verdict["checks"]
    assert "verified" in run("verify", world.OBJECTS[name], *options, related=related).stdout


@pytest.mark.parametrize("name", ["msg", "receipt", "checkpoint", "token", "control", "equivocation"])
def test_a_flipped_bit_is_bad_evidence(run, name):
    data = world.OBJECTS[name].to_bytes()
    options = (*HUB, "--witness", world.WITNESS.public.hex()) if name == "checkpoint" else HUB
    for position in (len(data) // 2, len(data) - 1):
        result = run("verify", world.flipped(world.OBJECTS[name], position), *options)
        assert result.exit_code == Exit.BAD_EVIDENCE
        assert result.stderr.startswith("error: ")
        assert "\nhint:  " in result.stderr


def test_a_witness_nobody_can_check_is_not_claimed(run):
    assert "not checked: 1 witness signature" in run("verify", world.CHECKPOINT, *HUB).stdout


def test_a_missing_input_is_not_a_pass(run):
    for name, needed in (("receipt", "public key"), ("proof", "RECEIPT"), ("consistency", "two statements")):
        result = run("verify", world.OBJECTS[name])
        assert result.exit_code == Exit.USAGE
        assert needed in result.stderr
    assert run("verify", world.OBJECTS["range"], *HUB).exit_code == Exit.USAGE
    assert run("verify", world.OBJECTS["proof"], "--root", "00" * 32).exit_code == Exit.USAGE


def test_the_wrong_companion_is_bad_evidence(run):
    cases = [
        ("receipt", HUB, (world.OTHER_MSG,)),
        ("msg", HUB, (world.RECEIPTS[1],)),
        ("receipt", ("--hub-pk", world.WITNESS.public.hex()), ()),
        ("checkpoint", (*HUB, "--witness", world.HUB.public.hex(), "--witness", world.ALICE.public.hex()), ()),
        ("proof", (*HUB, "--seq", "2"), (world.CHECKPOINT,)),
        ("proof", (*HUB, "--seq", "1"), (world.CHECKPOINT, world.OTHER_MSG)),
        ("consistency", HUB, (world.RECEIPTS[2], world.CHECKPOINT)),
        ("equivocation", ("--hub-pk", world.ALICE.public.hex()), ()),
        ("control", HUB, (world.OBJECTS["control"],)),
    ]
    for name, options, related in cases:
        assert run("verify", world.OBJECTS[name], *options, related=related).exit_code == Exit.BAD_EVIDENCE, name


def test_a_page_whose_parts_do_not_fit_is_bad_evidence(run):
    for page in world.bad_pages():
        assert run("verify", page, *HUB).exit_code == Exit.BAD_EVIDENCE
    assert run("verify", world.page(with_receipts=False, with_proof=True), *HUB).exit_code == Exit.USAGE
    assert run("verify", world.page(with_receipts=False, with_proof=False), *HUB).exit_code == Exit.OK


def test_keys_are_checked_when_given(run):
    result = run("verify", world.OBJECTS["receipt"], "--hub-pk", "1234", "--json")
    assert result.exit_code == Exit.USAGE


def test_standard_input_serves_as_a_file():
    result = CliRunner().invoke(cli, ["verify", "-"], input=world.MSG.to_bytes())
    assert result.exit_code == Exit.OK, result.stderr
