"""docs/together.md, typed by three people in fresh homes; and what each of them meets when something is wrong."""

import json
from pathlib import Path

from tests.journeys.typed import steps
from tests.waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "together.md").read_text("utf-8")


def test_every_line_of_the_page_works_and_prints_what_is_shown(people):
    commands = list(steps(PAGE))
    assert len(commands) > 30
    for who, command, shown in commands:
        printed = people.types(who, command)
        if shown.strip():
            assert printed == shown, f"{who}$ {command}"
    # what the page says happened
    until(lambda: "the client key was revoked" in refused(people))
    readers = json.loads(people.types("alice", "veen keys list orders --json"))
    assert [reader["name"] for reader in readers["readers"]] == ["?carol"]
    assert [row["generation"] for row in readers["generations"]] == [2, 1, 0]
    assert [row["rights"] for row in readers["generations"]] == ["read and write", "read and write", "write"]


def refused(people):
    """What Bob is told; a revocation counts from the next second of the hub on."""
    try:
        return people.types("bob", "veen send orders 'after the revocation'", status=4)
    except AssertionError:
        return ""


def test_a_colleague_without_a_key_is_told_to_ask_for_an_invitation(people):
    people.processes = True
    people.types("alice", "veen keygen --name alice")
    people.types("alice", "veen context add team --hub $URL --pin $PIN --use")
    said = people.types("alice", "veen send orders hello", status=5)
    assert "ask its owner for an invitation" in said
    assert "veen join FILE" in said
