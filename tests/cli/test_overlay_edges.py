"""Overlays on the command line where things are not simple: gated hubs, rotating labels, writers, other packages."""

import json
import subprocess
import sys
import textwrap

import pytest
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person, world
from tests.cli.talk import DEV

from veen.cli.shared.output import Exit


def test_a_hub_that_asks_for_capabilities_gets_one_with_every_overlay_message(tmp_path):
    with world(tmp_path, "admin") as (_, admin):
        issuer = admin.me["id_sign_pk"]
        options = ("--port", 0, "--set", "engine.workers=0", "--set", f"admission.trusted_issuers={issuer}")
        with running(tmp_path / "gated", *options) as gated:
            bob = Person(tmp_path / "bob", gated, "bob")
            stream = bob.new_stream("gated/kv")
            assert bob.json("kv", "put", stream, "k", "1", code=Exit.LOCAL)["code"] == "E.LOCAL.TOKEN"
            token = tmp_path / "token"
            admin.run("cap", "issue", "--subject", bob.card, "--stream", stream, "--ttl", "10m", "--out", token)
            bob.json("kv", "put", stream, "k", "1", "--cap", token)
            bob.json("kv", "put", stream, "k", "2")  # it is held from now on
            assert bob.json("kv", "get", stream, "k")["value"] == "2"
            silent = bob.json("rpc", "call", stream, "x", "--timeout", "1s", code=Exit.NETWORK)
            assert silent["code"] == "RPC.NO_ANSWER", "the call was admitted"


@pytest.mark.req("OVL-15")
def test_labels_that_rotate_are_folded_as_one_stream(tmp_path):
    config = tmp_path / "hub.toml"
    config.write_text('[admission]\nprofiles = [{ epoch_sec = 2, pad_block = 0 }]\nstreams = ["app/kv"]\n')
    scoped = (*DEV, "--set", "admission.stream_scope=enforced", "--config", config)
    with world(tmp_path, "alice", options=scoped) as (_, alice):
        stream = alice.new_stream("app/kv")
        labels: set[str] = set()
        count = 0
        while len(labels) < 2:
            labels.add(alice.json("kv", "put", stream, "n", count, "--format", "json")["label"])
            count += 1
        result = alice.json("kv", "get", stream, "n")
        assert result["value"] == count - 1
        assert {cut["label"] for cut in result["upto"]} == labels
        assert not result["snapshot"]["used"]
        assert alice.json("fold", "run", stream, "--overlay", "kv")["entries"] == count
        alice.run("fold", "run", stream, "--overlay", "kv", "--every", 2, code=Exit.USAGE)
        alice.json("kv", "get", stream, "n", "--as-of", 1, code=Exit.LOCAL)


def test_who_can_only_write_is_not_told_whether_it_counts(tmp_path):
    with world(tmp_path, "alice") as (_, alice):
        stream = alice.new_stream("shared")
        alice.let_write("writer", stream)
        as_writer = ("--identity", "writer")
        result = alice.json("crud", "create", stream, "user", "1", "{}", *as_writer)
        assert "counted" not in result
        report = alice.run("crud", "create", stream, "user", "1", "{}", *as_writer)
        assert "no read key for this stream" in report.stderr
        denied = alice.json("crud", "list", stream, *as_writer, code=Exit.LOCAL)
        assert denied["code"] == "E.LOCAL.READER"
        listed = alice.json("crud", "list", stream, "--identity", "alice")
        assert [issue["code"] for issue in listed["issues"]] == ["CRUD.EXISTS"]


OVERLAY = textwrap.dedent("""
    from dataclasses import dataclass
    from typing import ClassVar

    from veen.overlays.framework.schema import Body
    from veen.overlays.framework.fold import Compact
    from veen.overlays.framework.registry import Overlay
    from veen.overlays.framework.schema import Schema, SchemaSet

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Vote(Body):
        KIND: ClassVar[str] = "example.vote.v1"
        choice: str

        @classmethod
        def _read(cls, f):
            return cls(choice=f.text("choice"))

        def _write(self):
            return {"choice": self.choice}

    VOTE = Schema("example.vote.v1", Vote)

    class VoteFold(Compact):
        name = "example.vote"
        schemas = SchemaSet([VOTE])
        SUMMARY = dict[bytes, str]

        def start(self):
            return {}

        def add(self, into, event):
            into[event.event.leaf_hash] = event.body.choice

        def absorb(self, into, other):
            into.update(other)

        def show(self, state, as_of):
            choices = sorted(state.values())
            return {choice: choices.count(choice) for choice in choices}

    OVERLAY = Overlay(name="votes", about="who wants what", schemas=(VOTE,), folds={"example.vote": VoteFold})
""")


@pytest.mark.slow
@pytest.mark.req("OVL-03")
def test_an_overlay_of_another_package_works_over_a_log_that_is_older(tmp_path):
    """Outcome Interpret: no change of the hub, none of the log, none of this program."""
    with world(tmp_path, "alice") as (_, alice):
        stream = alice.new_stream("votes")
        for choice in ("tea", "coffee", "tea"):
            body = tmp_path / "body"
            body.write_bytes(b"\xa1\x66choice" + bytes([0x60 + len(choice)]) + choice.encode())
            alice.run("send", stream, "--file", body, "--schema", "example.vote.v1")
        alice.run("fold", "show", stream, "--overlay", "votes", code=Exit.USAGE)
        site = tmp_path / "site"
        about = site / "example_votes-1.dist-info"
        about.mkdir(parents=True)
        (site / "example_votes.py").write_text(OVERLAY)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: example-votes\nVersion: 1\n")
        entries = "[veen.overlays]\nvotes = example_votes:OVERLAY\nbroken = example_votes:NOTHING\n"
        (about / "entry_points.txt").write_text(entries)

        def veen(*args):
            done = subprocess.run(
                [sys.executable, "-m", "veen", *args, "--json"],
                env={**alice.env, "PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        assert veen("fold", "show", stream, "--overlay", "votes")["state"] == {"coffee": 1, "tea": 2}
        listed = veen("fold", "list")
        assert "votes" in [overlay["name"] for overlay in listed["overlays"] if not overlay["builtin"]]
        assert [overlay["name"] for overlay in listed["broken"]] == ["broken"]
        moments = veen("fold", "run", stream, "--overlay", "example.vote", "--every", "1")["moments"]
        assert len({overlay["state_hash"] for overlay in moments}) == 3
