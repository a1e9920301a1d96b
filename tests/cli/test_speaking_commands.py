"""`veen id bind`, `bindings`, `revoke-key` and `contacts who`; names of people in lists (D-179)."""

import shutil

import pytest
from tests.cli.homes import Cli
from tests.cli.overlay_people import world

import veen
from veen.cli.shared.output import Exit
from veen.client.identity.card import IdentityCard
from veen.core.crypto.ed25519 import SigningKey
from veen.overlays.operations.common import account_id_of

STREAM = "deals"


@pytest.fixture
def people(tmp_path):
    with world(tmp_path, "alice", "bob") as (_, alice, bob):
        bob.join(alice, alice.new_stream(STREAM))
        alice.run("contacts", "add", "bob", bob.card)
        yield alice, bob


def agree(person, decision, *parties):
    if parties:
        (person.root / "terms").write_text("we agree")
        person.json(
            *("op", "agreement", "define", STREAM, "lease", 1, "--terms-hash", person.root / "terms"),
            *(word for party in parties for word in ("--parties", party)),
        )
    return person.json("op", "agreement", "confirm", STREAM, "lease", 1, decision)


@pytest.mark.req("KEX1-02")
def test_what_an_identity_accepted_it_withdraws_with_its_next_key(people):
    alice, bob = people
    assert agree(alice, "accept", "me", "bob")["counted"]
    assert agree(bob, "accept")["counted"]
    assert alice.json("op", "agreement", "list", STREAM)["active"]
    bob.run("id", "rotate")
    assert bob.json("op", "agreement", "confirm", STREAM, "lease", 1, "withdraw")["counted"]
    rows = bob.json("id", "bindings", STREAM)["bindings"]
    assert len(rows) == 3
    assert {row["principal_pk"] for row in rows} == {alice.principal, bob.principal}
    assert {row["state"] for row in rows} == {"live"}


def test_an_agreement_that_names_a_retired_key_is_taken_over_by_its_identity(people):
    alice, bob = people
    (alice.root / "terms").write_text("we agree")
    alice.json(
        *("op", "agreement", "define", STREAM, "lease", 1, "--terms-hash", alice.root / "terms"),
        *("--parties", bob.client_id),
    )
    old = bob.client_id
    bob.run("id", "rotate")
    confirm = ("op", "agreement", "confirm", STREAM, "lease", 1, "accept", "--party-identity", old)
    assert bob.json(*confirm, code=Exit.POLICY)["code"] == "AGREE.SPEAKER"
    assert old in bob.json("id", "bind", STREAM, "--all-retired")["bound"]
    assert bob.json("id", "bind", STREAM, "--all-retired")["bound"] == []  # it may be repeated
    assert bob.json(*confirm)["counted"]


def test_a_revoked_key_speaks_for_nobody_and_the_command_may_be_repeated(people):
    alice, bob = people
    agree(alice, "accept", "me", "bob")
    agree(bob, "accept")
    old = bob.client_id
    bob.run("id", "rotate")
    done = bob.json("id", "revoke-key", old, "--reason", "laptop stolen")
    assert done["ended_in"] == [STREAM]
    assert not done["failed"]
    states = {row["client_id"]: row["state"] for row in bob.json("id", "bindings", STREAM)["bindings"]}
    assert states[old] == "ended"
    assert bob.json("id", "revoke-key", "--all-but-current")["ended_in"] == []
    assert "ended" in bob.run("id", "bindings", STREAM).stdout
    bob.run("id", "revoke-key", code=Exit.USAGE)
    bob.run("id", "revoke-key", old, "--all-but-current", code=Exit.USAGE)


def test_contacts_who_answers_for_keys_identities_and_accounts(people):
    alice, bob = people
    for key, name, kind in (
        (bob.client_id, "bob", "client key"),
        (bob.principal, "bob", "identity"),
        (account_id_of(bytes.fromhex(bob.principal)).hex(), "bob", "account"),
        (alice.principal, "me", "identity"),
        (alice.client_id, "me", "client key"),
    ):
        answer = alice.json("contacts", "who", key)
        assert {"name": name, "kind": kind} in answer["meanings"], answer
    old = alice.client_id
    alice.run("id", "rotate")
    assert alice.json("contacts", "who", old)["meanings"] == [{"name": "me", "kind": "retired client key"}]
    nobody = alice.json("contacts", "who", "ab" * 32)
    assert (nobody["known"], nobody["meanings"]) == (False, [])
    alice.run("contacts", "who", "xyz", code=Exit.USAGE)


def test_a_key_that_no_card_names_is_found_by_what_its_owner_proved(people):
    alice, bob = people
    bob.run("id", "rotate")
    new = bob.json("id", "show")["client_id"]
    agree(bob, "accept", "me")  # binds the new key
    assert not alice.json("contacts", "who", new)["known"]
    proven = alice.json("contacts", "who", new, "--stream", STREAM)
    assert proven["meanings"] == [{"name": "bob", "kind": "client key, proven in the stream"}]


def test_lists_show_names_on_a_terminal_and_keys_elsewhere(people):
    alice, bob = people
    (alice.root / "policy").write_text('{"granters": ["me"]}')
    policy = ("--policy", alice.root / "policy")
    grant = ("--allowed-stream-ids", STREAM, "--expiry-time", "+1h", "--no-token")
    alice.json("op", "access", "grant", STREAM, "bob", *grant, *policy)
    listed = ("op", "access", "list", STREAM, *policy)
    shown = alice.run(*listed, VEEN_FORCE_TTY="1").stdout
    assert "bob" in shown
    assert bob.principal not in shown
    assert bob.principal in alice.run(*listed).stdout
    assert bob.principal in str(alice.json(*listed)["grants"])


def test_a_card_takes_no_name_away_and_gives_none_to_a_key_that_is_known(people):
    """A card claims keys that did not sign it: those of the identity in use and of contacts stay theirs."""
    alice, bob = people
    for name, claimed in (("mallory", bob.principal), ("mallet", alice.principal)):
        seed = SigningKey(name.encode().ljust(32))
        card = IdentityCard.issue(seed, dh_pk=bytes.fromhex(claimed), client_id=bytes.fromhex(bob.client_id), name=name)
        alice.run("contacts", "add", name, card.to_text())
    assert alice.json("contacts", "who", bob.principal)["meanings"] == [{"name": "bob", "kind": "identity"}]
    assert alice.json("contacts", "who", alice.principal)["meanings"] == [{"name": "me", "kind": "identity"}]
    mallory = alice.invoke("revoke", "writer", "mallory", "--json")
    assert mallory.exit_code != Exit.OK  # nobody may administer this hub, and there is no key left to revoke
    agree(bob, "accept", "me")
    proven = alice.json("contacts", "who", bob.client_id, "--stream", STREAM)
    assert proven["meanings"] == [{"name": "bob", "kind": "client key, proven in the stream"}]


def test_a_name_that_nobody_has_is_refused(people):
    alice, _ = people
    refused = alice.json("op", "recovery", "request", STREAM, "carol", "bob", code=Exit.LOCAL)
    assert refused["code"] == "E.LOCAL.CONTACT"


def test_a_key_shows_no_name_behind_the_end_of_its_binding(people, tmp_path):
    """Whoever has a stolen key writes under its own name, and what its owner wrote before keeps the name."""
    alice, bob = people
    bob.run("send", STREAM, "before")
    bob.run("id", "bind", STREAM)
    old = bob.client_id
    thief = Cli(tmp_path / "thief")
    shutil.copytree(bob.root, thief.root, dirs_exist_ok=True)
    bob.run("id", "rotate")
    bob.run("send", STREAM, "next key")
    bob.run("id", "revoke-key", old)
    thief.run("send", STREAM, "after")
    for person, name in ((alice, ("bob", "contact")), (bob, (bob.me["name"], "me"))):
        entries = person.json("stream", STREAM)["entries"]
        authors = {row["body"]: (row["author"], row["author_kind"], row["client_id"]) for row in entries}
        assert authors["before"] == (*name, old)
        assert authors["after"] == (None, "former", old)
    assert "(former)" in alice.run("stream", STREAM).stdout
    by_bob = [row["body"] for row in alice.json("stream", STREAM, "--author", "bob")["entries"]]
    assert "before" in by_bob
    assert "after" not in by_bob
    with veen.connect(home=alice.root) as connection:  # the Python API says the same
        read = {entry.body: entry.author for entry in connection.stream(STREAM).read() if entry.is_open}
    assert (read[b"before"], read[b"after"]) == ("bob", old)
    (meaning,) = alice.json("contacts", "who", old, "--stream", STREAM)["meanings"]
    assert meaning == {"name": "bob", "kind": "client key, proven in the stream"}
