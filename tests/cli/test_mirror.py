"""`veen mirror` between two hubs: what was attested and copied, what is not covered, and gaps."""

import json

import pytest
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV

from veen.cli.shared.output import Exit


@pytest.fixture
def hubs(tmp_path):
    with running(tmp_path / "a", *DEV) as source, running(tmp_path / "b", *DEV) as target:
        yield source, target


def test_entries_are_attested_copied_and_compared_and_what_is_new_is_not_covered(hubs, tmp_path):
    source, target = hubs
    alice = Person(tmp_path / "alice", source, "alice")
    alice.say(alice.new_stream("orders"), "one", "two")
    mirror = Person(tmp_path / "mirror", target, "mirror")
    at = ("--source-hub", source.url, "--source-pin", source.about["hub_pk"])
    attest = ("mirror", "attest", "orders", mirror.new_stream("mirrors/a"), *at)
    first = mirror.json(*attest)
    assert (first["sent"], first["existed"], first["gaps"]) == (2, 0, [])
    assert first["source_hub_identifier"] == f"hub:{source.about['hub_id']}"
    again = mirror.json(*attest)
    assert (again["sent"], again["existed"]) == (0, 2)
    verify = ("mirror", "verify", "orders", "mirrors/a", *at)
    whole = mirror.json(*verify)
    assert (whole["ok"], whole["compared"], whole["erased_at_the_source"], whole["not_covered"]) == (True, 2, 0, [])
    (row,) = whole["verdict"]["compared"]
    assert (row["read"], row["head"], row["stated_by"]) == (2, 2, "the running hub")
    alice.say("orders", "three")
    grown = json.loads(mirror.run(*verify, "--json", code=Exit.POLICY).stdout)
    (missing,) = grown["not_covered"]
    assert (missing["first_seq"], missing["last_seq"]) == (3, 3)
    assert (grown["ok"], grown["verdict"]["value"], grown["verdict"]["compared"][0]["behind"]) == (
        False,
        "incomplete",
        1,
    )
    assert "not_covered" in mirror.run(*verify, code=Exit.POLICY).stdout
    stranger = json.loads(mirror.run(*verify, "--by", "ab" * 32, "--json", code=Exit.POLICY).stdout)
    assert (stranger["compared"], stranger["ok"]) == (0, False)  # only who is named may state


def test_an_entry_that_no_key_here_opens_becomes_a_record_of_a_gap(hubs, tmp_path):
    source, target = hubs
    alice = Person(tmp_path / "alice", source, "alice")
    alice.say(alice.new_stream("orders"), "one", "two")
    mirror = Person(tmp_path / "mirror", target, "mirror")
    mirror.new_stream("orders")  # keys of her own: they open nothing of Alice's
    copy = ("mirror", "copy", "orders", mirror.new_stream("copies/a"))
    at = ("--source-hub", source.url, "--source-pin", source.about["hub_pk"])
    copied = mirror.json(*copy, *at)
    assert [(gap["first_seq"], gap["last_seq"]) for gap in copied["gaps"]] == [(1, 2)]
    assert copied["sent"] == 1  # the record of the gap
    wrong = ("--source-hub", source.url, "--source-pin", target.about["hub_pk"])
    assert mirror.json(*copy, *wrong, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.FOREIGN_KEY"
