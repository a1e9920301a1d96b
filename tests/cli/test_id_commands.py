"""The identity overlay on the command line, against a real hub: who is who, who may act for whom."""

import pytest
from tests.cli.overlay_people import world

from veen.cli.shared.output import Exit


@pytest.fixture
def people(tmp_path_factory):
    with world(tmp_path_factory.mktemp("ids"), "alice", "acme") as (_, alice, acme):
        yield alice, acme


def share(owner, reader, stream):
    reader.join(owner, stream)


@pytest.fixture
def known(people):
    """Alice with a device and an account, Acme with a staff that she belongs to; both can read all of it."""
    alice, acme = people
    realm = ("--realm", "shop", "--make-keys")
    messages = [
        alice.json("id", "principal", "add", "--info", '{"home":"Graz"}', *realm),
        alice.json("id", "device", "add", "--label", "laptop", *realm),
        alice.json("id", "context", "add", "--display-name", "Ann", *realm),
        alice.json("id", "handle", "add", "@ann", *realm),
        alice.json("id", "external", "add", "corp", "4711", *realm),
    ]
    for stream in {row["stream"] for row in messages}:
        share(alice, acme, stream)
    card = alice.card
    org = acme.json("id", "org", "add", "--display-name", "Acme", *realm)
    acme.json("id", "group", "add", "staff", card, *realm)
    acme.json("id", "role", "add", "clerk", "--group", "staff", *realm)
    share(acme, alice, org["stream"])
    return {"ctx_id": messages[2]["ctx_id"], "device_id": messages[1]["device_id"], "org_id": org["org_id"]}


@pytest.mark.req("ID-03", "ID-04", "ID-07")
def test_each_message_stands_in_the_stream_of_its_identity_and_both_see_the_same(people, known):
    alice, acme = people
    assert alice.json("id", "principal", "list")["principals"][0]["info"] == {"home": "Graz"}
    (device,) = acme.json("id", "device", "list")["devices"]
    assert (device["status"], device["label"]) == ("active", "laptop")
    account = alice.json("id", "context", "show", known["ctx_id"])
    assert account["display_name"] == "Ann"
    assert account["roles"] == {known["org_id"]: ["clerk"]}
    assert acme.json("id", "group", "show", "staff")["members"] == {known["ctx_id"]: None}
    assert acme.json("id", "role", "show", "clerk")["org_id"] == known["org_id"]
    assert acme.json("id", "org", "show", "Acme")["revoked"] is False
    for noun, shown in (("principal", alice.me["id_sign_pk"]), ("handle", "@ann"), ("external", "corp:4711")):
        assert alice.json("id", noun, "show", shown, "--realm", "shop")["overlay"] == "id"
    for noun in ("context", "group", "handle", "org", "role", "external"):
        assert len(alice.json("id", noun, "list")[f"{noun}s"]) == 1, noun
    hashes = {person.json("id", "graph")["state_hash"] for person in people}
    assert len(hashes) == 1
    assert alice.json("id", "graph")["issues"] == []


def test_handles_and_external_accounts_resolve_until_they_are_revoked(people, known):
    alice, acme = people
    realm = ("--realm", "shop")
    result = acme.json("id", "resolve", "@ann", *realm)
    assert (result["target_id"], result["display_name"]) == (known["ctx_id"], "Ann")
    assert acme.json("id", "resolve", "corp:4711", "--external", *realm)["target_id"] == known["ctx_id"]
    assert acme.json("id", "resolve", "@ann", code=Exit.LOCAL)["code"] == "E.ABSENT", "another realm"
    other = ("--external", "--writer", "ab" * 32)
    assert acme.json("id", "resolve", "corp:4711", *other, *realm, code=Exit.LOCAL)["code"] == "E.ABSENT"
    alice.json("id", "handle", "revoke", "@ann", *realm)
    assert acme.json("id", "resolve", "@ann", *realm, code=Exit.LOCAL)["code"] == "E.ABSENT"
    acme.json("id", "handle", "show", "@ann", *realm, code=Exit.LOCAL)
    alice.json("id", "external", "revoke", "corp", "4711", *realm)
    acme.json("id", "resolve", "corp:4711", "--external", *realm, code=Exit.LOCAL)
    assert acme.json("id", "external", "list")["externals"] == []
    refused = alice.json("id", "handle", "add", "two words", *realm, code=Exit.USAGE)
    assert refused["code"] == "ID.HANDLE"


def test_a_token_is_for_an_active_device_and_a_graph_shows_who_belongs_to_whom(people, known, tmp_path):
    alice, acme = people
    out = tmp_path / "phone.token"
    result = alice.json("id", "delegate", alice.card, "--realm", "shop", "--for-stream", "orders", "--out", out)
    assert result["issuer_pk"] == alice.me["id_sign_pk"]
    assert len(result["streams"]) == 3
    assert alice.json("inspect", out)
    stranger = alice.json("id", "delegate", acme.card, "--out", out, code=Exit.POLICY)
    assert stranger["code"] == "ID.DELEGATION"
    org = acme.json("id", "delegate", alice.card, "--as-org", "--for-stream", "orders", "--out", out)
    assert org["subject_pk"] == alice.client_id
    graph = acme.json("id", "graph")
    relations = {(edge["relation"], edge["to"].partition(":")[0]) for edge in graph["edges"]}
    assert {("device", "device"), ("account", "ctx"), ("member", "ctx"), ("role clerk", "group")} <= relations
    assert acme.run("id", "graph", "--dot").stdout.startswith("digraph")
    assert "Ann" in acme.run("id", "graph", "-o", "human").stdout


def test_revocations_are_for_good(people, known):
    alice, acme = people
    acme.json("id", "group", "revoke", "staff", known["ctx_id"], "--realm", "shop")
    assert alice.json("id", "context", "show", known["ctx_id"])["roles"] == {}
    acme.json("id", "role", "add", "clerk", "--ctx", alice.card, "--realm", "shop")
    assert alice.json("id", "context", "show", known["ctx_id"])["roles"] == {known["org_id"]: ["clerk"]}
    acme.json("id", "role", "revoke", known["ctx_id"], "--realm", "shop")
    assert alice.json("id", "context", "show", known["ctx_id"])["roles"] == {}
    alice.json("id", "device", "revoke", known["device_id"], "--reason", "lost")
    assert acme.json("id", "device", "show", known["device_id"])["status"] == "revoked"
    alice.json("id", "principal", "revoke", "ab" * 32)
    alice.json("id", "context", "revoke", "--realm", "shop")
    assert acme.json("id", "context", "show", known["ctx_id"])["revoked"] is True
    acme.json("id", "org", "revoke")
    assert alice.json("id", "org", "show", known["org_id"])["revoked"] is True


def test_one_stream_for_all_identities_and_a_message_in_the_wrong_stream(people):
    alice, acme = people
    acme.join(alice, alice.new_stream("people"))
    alice.json("id", "principal", "add", "--stream", "people")
    acme.json("id", "principal", "add", "--stream", "people")
    result = alice.json("id", "principal", "list", "--stream", "people")["principals"]
    assert len(result) == 2
    alice.json("id", "principal", "show", "ab" * 32, "--stream", "people", code=Exit.LOCAL)
    alice.run("id", "role", "add", "x", code=Exit.USAGE)
    stranger = alice.json("id", "org", "add", "--org", "cd" * 32, code=Exit.LOCAL)
    assert stranger["code"] == "E.LOCAL.STREAM"
