"""Every command line that the specifications quote parses, in each spelling that they use.

A row whose command does not exist yet must be on the list of what comes (`tests.cli.tree.COMING`); as soon as the
command exists, its rows must parse.
"""

import shlex

import click
import pytest
from tests.cli.tree import DoesNotParse, announced, check_line, exists, parse

# Whole lines: place, line. "veen-hub" stands for "veen hub start", "veen-cli" for "veen".
LINES = [
    ("001 products §3.5", "veen send record/app/http - --schema recorder.event.v1"),
    ("001 products §3.5", "veen hub checkpoint"),
    ("001 products §3.5", "veen stream record/app/http --with-proofs"),
    ("001 products §3.5, other spelling", "veen stream record/app/http --with-proof"),
    ("001 products §3.5", "veen selftest core"),
    ("001 products §3.5", "veen selftest recorder"),
    ("001 spec-4 §4.2", "veen-hub --profile=authority --config=/etc/veen/hub.yaml --data-dir=/var/lib/veen"),
    ("001 spec-4 §5.2", "veen-hub --profile=tenant --config=/etc/veen/hub.yaml --data-dir=/var/lib/veen"),
    ("001 spec-4 §7", "veen-cli keygen --out /work/client"),
    (
        "001 spec-4 §7",
        "veen-cli cap issue --issuer /work/admin --subject /work/client --stream core/quota"
        " --ttl 600 --rate 100,100 --out /work/cap.cbor",
    ),
    ("001 spec-4 §7", "veen-cli stream --hub http://veen-hub:8080 --client /work/client --stream core/main --from 0"),
    ("001 spec-4 §8", "veen selftest core --hub http://veen-hub:8080"),
    ("001 spec-4 §8", "veen selftest authority --hub http://veen-authority:8080"),
    ("001 spec-4 §7, sending", "veen-cli send --hub http://veen-hub:8080 --client /work/client --stream s --body text"),
    ("spec §10, tooling", "veen receipt get record/app/http 3"),
    ("spec §10, tooling", "veen proof get --stream record/app/http 3"),
    ("spec §9", "veen verify-state"),
    ("spec §4.3", "veen equivocation report first.cbor second.cbor --out evidence.cbor"),
    ("spec §4.6", "veen attachment get record/app/http 3 photo.jpg --out photo.jpg"),
    ("spec §6", "veen cap renew cap.cbor --issuer /work/admin --out renewed.cbor"),
    ("001 SH1+", "veen bench submit --hub http://veen-hub:8080 --client /work/client --count 1000 --batch 64"),
    # the first five minutes, and the spellings that the specifications use for the same thing
    ("first five minutes", "veen demo"),
    ("first five minutes", "veen hub start --data-dir ./hub --dev"),
    ("first five minutes", "veen keygen --name alice"),
    ("first five minutes", "veen context add dev --hub http://127.0.0.1:37411 --pin ed25519:00"),
    ("first five minutes", "veen stream record/app/http --with-proofs --from 1 -o ndjson"),
    ("first five minutes", "veen proof show record/app/http 1 --tree"),
    ("first five minutes", "veen proof show record/app/http 1 --svg proof.svg"),
    ("first five minutes", "veen resync record/app/http"),
    ("first five minutes", "veen explain E.SEQ"),
    ("first five minutes", "veen help tour"),
    ("spec §10, tooling", "veen authorize cap.cbor"),
    ("spec §10, tooling", "veen cap authorize cap.cbor"),
    ("keygen by its noun", "veen id new --out /work/client"),
]

# Commands that are named without arguments: they must exist.
NAMES = [
    ("001 products §3.5", "send"),
    ("001 products §3.5", "label-class set"),
    ("001 products §3.5", "label-class list"),
    ("001 products §3.5", "label-class show"),
    ("001 products §3.5", "hub anchor"),
    ("001 products §4.9", "bridge export"),
    ("001 products §4.9", "bridge import"),
    ("001 products §4.9", "hub start"),
    ("001 products §4.9", "hub stop"),
    ("001 products §4.9", "hub status"),
    ("001 spec-4 §12", "revoke publish"),
]


def words_of(line):
    program, *words = shlex.split(line)
    return [*{"veen": [], "veen-cli": [], "veen-hub": ["hub", "start"]}[program], *words]


@pytest.mark.parametrize(("place", "line"), LINES, ids=[line for _, line in LINES])
def test_a_quoted_command_line_parses(place, line):
    check_line(words_of(line))


@pytest.mark.parametrize(("place", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_named_command_exists_or_is_announced(place, name):
    assert exists(name) or announced(name.split())


def test_the_parser_of_this_test_is_strict():
    """Without this the rows above would prove nothing."""
    assert isinstance(parse(["keygen", "--name", "x"]), click.Command)
    for line in (["keygen", "--nmae", "x"], ["hub", "stop", "x", "y"], ["version", "extra"], ["context", "add", "x"]):
        with pytest.raises(DoesNotParse):
            parse(line)
