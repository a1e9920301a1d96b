"""veen contacts, invite, join, revoke, keys, inbox: what goes wrong has a code of its own, and nothing is kept."""

import asyncio
import json
import time
from dataclasses import replace

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.client.client import Client
from veen.client.generations.records import GENERATION_SCHEMA, KeyGeneration, control_keys, seal_back
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import open_identity
from veen.client.invites import SealedInvite


@pytest.fixture
def bob(tmp_path, talk):
    """Bob in a home of his own, whom Alice has as a contact."""
    cli = Cli(tmp_path / "bob")
    card = cli.keygen("bob")["card"]
    talk.run("contacts", "add", "bob", card)
    return cli


def kept_files(cli):
    """All that a home holds, by path; locks and names for completion apart."""
    return {
        path.relative_to(cli.root): path.read_bytes()
        for path in cli.root.rglob("*")
        if path.is_file() and path.name not in ("lock", "streams") and not path.name.endswith(".lock")
    }


def invited(talk, stream, *options):
    talk.run("invite", stream, "--out", "x.veen-invite", *options)
    return "x.veen-invite"


# --- joining ----------------------------------------------------------------------------------------------------


def test_an_invitation_brings_context_pin_hub_id_keys_and_the_inviter(talk, bob, hub):
    stream = talk.new_stream("together/all")
    joined = bob.json("join", invited(talk, stream, "--for", "bob"))
    assert joined["inviter"] == "alice"
    context = bob.json("context", "show", joined["context"])
    assert (context["hub"], context["hub_pk"]) == (hub.url, hub.about["hub_pk"])
    assert context["hub_id"] == joined["hub_id"]
    bob.run("send", stream, "hello")
    assert [row["name"] for row in bob.json("contacts", "list")["contacts"]] == ["alice"]
    again = bob.json("join", "x.veen-invite")  # the same hub: the same context
    assert again["context"] == joined["context"]
    assert len(bob.json("context", "list")["contexts"]) == 1


def test_the_word_itself_and_standard_input_do_as_well_as_a_file(talk, bob, tmp_path):
    stream = talk.new_stream("together/word")
    word = (tmp_path / invited(talk, stream, "--for", "bob")).read_text()
    assert bob.json("join", word.strip())["streams"] == [stream]
    assert bob.json("join", "-", stdin=word)["streams"] == [stream]


def wrong_type(text):
    return "an ordinary letter\n"


def truncated(text):
    return text[:-20]


def altered(text):
    return text[:60] + ("A" if text[60] != "A" else "B") + text[61:]


@pytest.mark.parametrize(
    ("change", "code"),
    [(wrong_type, "E.INVITE.KIND"), (truncated, "E.INVITE.TRUNCATED"), (altered, "E.INVITE.DAMAGED")],
)
def test_a_bad_file_has_its_own_code_and_nothing_is_kept(talk, bob, tmp_path, change, code):
    path = tmp_path / invited(talk, talk.new_stream(f"together/{code}"), "--for", "bob")
    path.write_text(change(path.read_text()))
    before = kept_files(bob)
    assert bob.json("join", path, code=Exit.LOCAL)["code"] == code
    assert kept_files(bob) == before


def test_binary_files_directories_and_missing_files_are_no_invitations(talk, bob, tmp_path):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for path in ("binary", ".", "missing", "/dev/null"):
        assert bob.json("join", path, code=Exit.LOCAL)["code"] == "E.INVITE.KIND"


def test_somebody_elses_invitation_is_refused(talk, bob, tmp_path):
    path = invited(talk, talk.new_stream("together/other"), "--for", "bob")
    carol = Cli(tmp_path / "carol")
    carol.keygen("carol")
    before = kept_files(carol)
    assert carol.json("join", path, code=Exit.LOCAL)["code"] == "E.INVITE.RECIPIENT"
    assert kept_files(carol) == before


def test_a_code_is_shown_once_typed_from_a_file_and_a_wrong_one_keeps_nothing(talk, bob, tmp_path):
    stream = talk.new_stream("together/code")
    invite = talk.json("invite", stream, "--code", "--out", "c.veen-invite")
    assert talk.secret_free(invite["code"].encode())
    (tmp_path / "right").write_text(invite["code"])
    (tmp_path / "wrong").write_text("AAAA-BBBB-CCCC-DDDD")
    before = kept_files(bob)
    assert bob.json("join", "c.veen-invite", "--code", "@wrong", code=Exit.LOCAL)["code"] == "E.INVITE.CODE"
    assert bob.json("join", "c.veen-invite", "--code", invite["code"], code=Exit.USAGE)["code"] == "E.USAGE"
    assert bob.json("join", "c.veen-invite", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"  # nobody to ask
    assert kept_files(bob) == before
    assert bob.json("join", "c.veen-invite", "--code", "@right")["enrolled"] is True
    assert [row["name"] for row in talk.json("keys", "list", stream)["readers"]] == ["bob"]
    late = Cli(tmp_path / "late")
    late.keygen("late")
    late.run("join", "c.veen-invite", "--code", "@right")
    readers = talk.json("keys", "list", stream)["readers"]
    assert [row["name"] for row in readers] == ["bob"]  # one time: whoever comes second is no reader of later keys


def test_an_expired_invitation_is_refused(talk, bob, tmp_path):
    path = tmp_path / invited(talk, talk.new_stream("together/late"), "--for", "bob", "--expires", "0")
    until(lambda: time.time() >= path.stat().st_mtime + 1.5)
    before = kept_files(bob)
    assert bob.json("join", path, code=Exit.LOCAL)["code"] == "E.INVITE.EXPIRED"
    assert kept_files(bob) == before


def test_another_hub_in_the_place_of_the_pinned_one_is_caught_and_nothing_is_kept(talk, bob, tmp_path):
    stream = talk.new_stream("together/lies")
    with running(tmp_path / "liar" / "data" if not (tmp_path / "liar").mkdir() else None, *DEV) as other:
        path = invited(talk, stream, "--for", "bob", "--address", other.url)
        before = kept_files(bob)
        assert bob.json("join", path, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.FOREIGN_KEY"
        assert kept_files(bob) == before


def test_a_hub_that_claims_another_hub_id_is_caught_and_nothing_is_kept(talk, bob, tmp_path):
    """The key is the pinned one, the log is not (D-174)."""
    talk.new_stream("together/hub-id")
    path = tmp_path / invited(talk, "together/hub-id", "--for", "bob")
    alice, receiver = (
        open_identity(Home.at(cli.root), name, None).identity for cli, name in ((talk, "alice"), (bob, "bob"))
    )
    opened = SealedInvite.from_text(path.read_text()).open(int(time.time()), identities=[receiver])
    changed = replace(opened, hub_id=b"x" * 32).sign(alice)
    path.write_text(SealedInvite.for_card(changed, receiver.card()).to_text())
    before = kept_files(bob)
    assert bob.json("join", path, code=Exit.BAD_EVIDENCE)["code"].startswith("E.DIVERGED")
    assert kept_files(bob) == before


def test_a_hub_that_does_not_answer_keeps_nothing(talk, bob):
    path = invited(talk, talk.new_stream("together/silent"), "--for", "bob", "--address", "http://127.0.0.1:9")
    before = kept_files(bob)
    assert bob.json("join", path, code=Exit.NETWORK)["code"] == "E.NET.UNREACHABLE"
    assert kept_files(bob) == before


def test_an_invitation_does_not_change_whom_one_follows(talk, bob):
    stream = talk.new_stream("together/conflict")
    bob.run("id", "keyring", "new", stream)
    path = invited(talk, stream, "--for", "bob")
    before = kept_files(bob)
    assert bob.json("join", path, code=Exit.LOCAL)["code"] == "E.INVITE.OWNER"
    assert kept_files(bob) == before


# --- inviting ---------------------------------------------------------------------------------------------------


def test_only_the_owner_hands_the_read_key_over(talk, bob, tmp_path):
    stream = talk.new_stream("together/owner")
    bob.run("join", invited(talk, stream, "--for", "bob"))
    assert bob.json("invite", stream, "--code", code=Exit.LOCAL)["code"] == "E.LOCAL.OWNER"
    assert bob.json("keys", "rotate", stream, code=Exit.LOCAL)["code"] == "E.LOCAL.OWNER"
    assert not list(tmp_path.glob("together*.veen-invite"))


def test_an_invitation_to_write_holds_no_read_key_and_is_no_hand_over(talk, bob):
    stream = talk.new_stream("together/write")
    bob.run("join", invited(talk, stream, "--for", "bob", "--write"))
    sent = bob.json("send", stream, "from a writer")
    assert sent["seq"] == 1
    assert "E.LOCAL.READER" in bob.run("stream", stream, code=Exit.LOCAL).stderr
    assert [entry["body"] for entry in talk.entries(stream)] == ["from a writer"]


def test_usage_of_invite(talk, bob, tmp_path):
    stream = talk.new_stream("together/usage")
    talk.run("invite", stream, code=Exit.USAGE)
    talk.run("invite", stream, "--for", "bob", "--code", code=Exit.USAGE)
    assert talk.json("invite", stream, "--for", "nobody", code=Exit.LOCAL)["code"] == "E.LOCAL.CONTACT"
    assert talk.json("invite", stream, "--for", "veen1qqqq", code=Exit.LOCAL)["code"] == "E.LOCAL.CARD"
    (tmp_path / "bob.veen-invite").write_text("mine")
    assert talk.json("invite", stream, "--for", "bob", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert (tmp_path / "bob.veen-invite").read_text() == "mine"


# --- names ------------------------------------------------------------------------------------------------------


def test_authors_are_names_me_and_marked_strangers(talk, bob, tmp_path):
    stream = talk.new_stream("together/names")
    bob.run("join", invited(talk, stream, "--for", "bob"))
    talk.run("send", stream, "mine")
    bob.run("send", stream, "from bob")
    stranger = Cli(tmp_path / "stranger")
    stranger.keygen("stranger")
    invite = talk.json("invite", stream, "--code", "--out", "s.veen-invite", "--write")
    (tmp_path / "code").write_text(invite["code"])
    stranger.run("join", "s.veen-invite", "--code", "@code")
    stranger.run("send", stream, "who am I")
    entries = {entry["body"]: entry for entry in talk.entries(stream) if entry["body"]}
    kinds = {body: (entry["author"], entry["author_kind"]) for body, entry in entries.items()}
    assert kinds == {"mine": ("alice", "me"), "from bob": ("bob", "contact"), "who am I": (None, "unknown")}
    rows = talk.lines("stream", stream)
    assert [row[2] for row in rows if row[3] == "who am I"] == [f"?{entries['who am I']['client_id']}"]
    assert "?" in talk.run("stream", stream, "-o", "human").stdout
    assert [entry["body"] for entry in talk.entries(stream, "--author", "me", "--grep", "mine")] == ["mine"]
    (newest,) = talk.entries(stream, "--author", "me", "--last", 1)
    assert newest == [entry for entry in entries.values() if entry["author"] == talk.me["name"]][-1]
    assert [entry["body"] for entry in talk.entries(stream, "--author", entries["who am I"]["client_id"])] == [
        "who am I"
    ]
    assert talk.json("stream", stream, "--author", "nobody", code=Exit.LOCAL)["code"] == "E.LOCAL.CONTACT"
    talk.run("stream", stream, "--grep", "(", code=Exit.USAGE)
    assert [entry["body"] for entry in talk.entries(stream, "--grep", "^from .ob$")] == ["from bob"]


def test_messages_about_keys_are_shown_as_what_they_say(talk, bob):
    stream = talk.new_stream("together/shown")
    talk.run("invite", stream, "--for", "bob")
    rotated = talk.json("keys", "rotate", stream, "--reason", "new year")
    assert (rotated["generation"], rotated["readers"], rotated["removed"]) == (1, ["bob"], [])
    shown = [row[3] for row in talk.lines("stream", stream)]
    assert shown[0] == "[keys: generation 0 handed over to bob]"
    assert shown[1] == "[keys: generation 1 for 2 cards: new year]"


def test_contacts_are_added_shown_renamed_and_removed(talk, bob, tmp_path):
    card = bob.json("id", "show")["card"]
    (tmp_path / "bob.card").write_text(card + "\n")
    assert talk.json("contacts", "add", "bob", "@bob.card")["name"] == "bob"
    assert talk.json("contacts", "add", "robert", card, code=Exit.LOCAL)["code"] == "E.LOCAL.CONTACT_EXISTS"
    assert talk.json("contacts", "add", "x y", card, code=Exit.LOCAL)["code"] == "E.LOCAL.NAME"
    assert talk.json("contacts", "add", "carol", "veen1nonsense", code=Exit.LOCAL)["code"] == "E.LOCAL.CARD"
    assert talk.json("contacts", "rename", "bob", "robert")["name"] == "robert"
    assert talk.json("contacts", "show", "robert")["card"] == card
    assert talk.json("contacts", "remove", "robert") == {"removed": "robert"}
    assert talk.json("contacts", "show", "robert", code=Exit.LOCAL)["code"] == "E.LOCAL.CONTACT"


# --- keys, revocations, inbox -----------------------------------------------------------------------------------


def test_a_key_word_without_an_owner_can_be_told_whom_to_follow(talk, bob, tmp_path):
    stream = talk.new_stream("together/claim")
    (tmp_path / "key").write_text(talk.json("id", "keyring", "share", stream, "--read")["key"])
    bob.run("context", "add", "dev", "--hub", talk.hub.url, "--pin", talk.hub.about["hub_pk"], "--use")
    bob.run("id", "keyring", "add", "@key")
    alice = talk.json("id", "show")
    assert bob.json("keys", "owner", stream)["owner_pk"] == alice["id_sign_pk"]
    bob.run("contacts", "add", "alice", alice["card"])
    assert bob.json("keys", "owner", stream, "alice")["owner"] == "alice"
    talk.run("keys", "rotate", stream)
    talk.run("send", stream, "after")
    error = bob.json("stream", stream)["entries"][-1]["error"]
    assert "no read key for this stream" in error  # a bearer of a word is not among the readers
    assert "altered" not in error


def test_revoking_a_reader_who_is_none_and_shredding_what_is_in_use_are_refused(talk, bob):
    stream = talk.new_stream("together/refused")
    assert talk.json("revoke", "reader", "bob", stream, code=Exit.LOCAL)["code"] == "E.LOCAL.MEMBER"
    error = talk.json("keys", "shred", stream, "--generation", 0, "--yes", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.GENERATION"
    assert talk.json("keys", "shred", stream, "--generation", 0, code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert talk.entries(stream) == []


def test_a_reader_is_taken_out_and_an_old_generation_is_shredded(talk, bob):
    stream = talk.new_stream("together/taken-out")
    bob.run("join", invited(talk, stream, "--for", "bob"))
    announced = bob.json("contacts", "announce", stream)
    assert (announced["stream"], announced["client_id"]) == (stream, bob.json("id", "show")["client_id"])
    before = talk.json("send", stream, "before")["seq"]
    revoked = talk.json("revoke", "reader", "bob", stream, "--reason", "left the team")
    talk.json("send", stream, "after")
    entries = {entry["seq"]: entry for entry in bob.json("stream", stream)["entries"]}
    assert entries[before]["body"] == "before"
    assert "no read key for this stream" in entries[max(entries)]["error"]
    shredded = talk.json("keys", "shred", stream, "--generation", 0, "--yes")
    assert (revoked["generation"], revoked["removed"], shredded["generation"]) == (1, ["bob"], 0)
    assert not [entry for entry in talk.entries(stream) if entry["body"] == "before"]


def test_a_reader_without_history_opens_the_same_in_every_read(talk, bob):
    """walk A1, D-182."""
    stream = talk.new_stream("together/no-history")
    before = talk.json("send", stream, "before")["seq"]
    joined = bob.json("join", invited(talk, stream, "--for", "bob", "--read", "--no-history"))
    assert joined["rights"] == "read"
    after = talk.json("send", stream, "after")["seq"]
    for _ in range(2):
        entries = {entry["seq"]: entry for entry in bob.json("stream", stream)["entries"]}
        assert "no read key" in entries[before]["error"]
        assert entries[after]["body"] == "after"
    rows = {row["generation"]: row for row in bob.json("keys", "list", stream)["generations"]}
    assert rows[1]["bound_to"] == joined["hub_id"]


def announce_as_an_earlier_release(talk, stream, hub):
    """Announce generation 1 without a number, and with the key of generation 0 inside."""
    home = Home.at(talk.root)
    secrets = open_identity(home, "alice", None).secrets
    owner, first = secrets.identity, secrets.keyring.for_stream(stream)
    keys = replace(StreamKeys.create(stream, owner_pk=owner.id_sign_pk), gen=1)
    record = KeyGeneration.issue(owner.id_sign, keys, [owner.card()], history=True, back=seal_back(keys, first))
    control = control_keys(keys.stream_id, owner.id_sign_pk)

    async def send():
        pin = hub.about["hub_pk"]
        async with await Client.connect(hub.url, pin=pin, identity=owner, keyring=secrets.keyring, home=home) as client:
            await client.send(control, record.to_bytes(), schema=GENERATION_SCHEMA)

    asyncio.run(send())


def test_a_generation_that_leads_back_is_reported_and_shredded_only_as_weak(talk, hub):
    """D-182."""
    stream = talk.new_stream("together/back")
    assert talk.json("keys", "check", stream)["verdict"]["value"] == "good"
    announce_as_an_earlier_release(talk, stream, hub)
    report = talk.json("keys", "check", stream, code=Exit.POLICY)
    assert report["streams"][0]["opened"] == [{"generation": 0, "opened_by": 1, "forgotten": False}]
    refused = talk.json("keys", "shred", stream, "--generation", 0, "--yes", code=Exit.LOCAL)
    assert refused["code"] == "E.LOCAL.GENERATION"
    assert "generation 1" in refused["message"] + str(refused)
    done = talk.run("keys", "shred", stream, "--generation", 0, "--yes", "--weak")
    assert "readers are asked to forget; whoever kept keys and log can open it" in done.stderr
    rows = {row["generation"]: row for row in talk.json("keys", "list", stream)["generations"]}
    assert (rows[0]["shredded"], rows[0]["opened_by"]) == (False, 1)
    assert talk.json("keys", "check", stream, code=Exit.POLICY)["streams"][0]["opened"][0]["forgotten"]


def test_an_invitation_that_would_replace_a_key_is_refused_and_keys_can_be_bound_to_their_hub(talk, bob, tmp_path):
    stream = talk.new_stream("together/replaced")
    bob.run("join", invited(talk, stream, "--for", "bob"))
    owner, receiver = (
        open_identity(Home.at(cli.root), name, None).identity for cli, name in ((talk, "alice"), (bob, "bob"))
    )
    path = tmp_path / "x.veen-invite"
    opened = SealedInvite.from_text(path.read_text()).open(int(time.time()), identities=[receiver])
    mallory = Identity.create("mallory", now=int(time.time()))
    evil = replace(StreamKeys.create(stream, owner_pk=owner.id_sign_pk), gen=7)
    attack = replace(opened, keys=(evil,), inviter=mallory.card()).sign(mallory)
    path.write_text(SealedInvite.for_card(attack, receiver.card()).to_text())
    before = kept_files(bob)
    assert bob.json("join", path, code=Exit.LOCAL)["code"] == "E.INVITE.OWNER"
    assert kept_files(bob) == before
    bound = talk.json("keys", "bind", stream)
    assert talk.json("keys", "list", stream)["generations"][0]["bound_to"] == bound["bound_to"]
    talk.run("send", stream, "still mine")


def test_a_hub_that_enforces_no_revocation_says_so(talk, bob):
    assert talk.run("revoke", "writer", "bob", code=Exit.REFUSED)


def test_a_personal_message_needs_a_prekey_and_reaches_one_inbox(talk, bob, tmp_path):
    stream = talk.new_stream("together/inbox")
    bob.run("join", invited(talk, stream, "--for", "bob"))
    assert talk.json("send", "--to", "bob", "too early", code=Exit.LOCAL)["code"] == "E.LOCAL.NO_PREKEY"
    assert bob.json("inbox")["entries"] == []
    sent = talk.json("send", "--to", "bob", "psst")
    assert (sent["to"], sent["sealed_to"]) == ("bob", "prekey")
    (entry,) = bob.json("inbox", "--author", "alice")["entries"]
    assert entry["body"] == "psst"
    assert talk.json("inbox")["entries"] == []
    talk.run("send", "--to", "bob", "x", "y", code=Exit.USAGE)
    talk.run("send", "--to", "bob", code=Exit.USAGE)


def test_on_a_hub_that_asks_for_tokens_an_invitation_brings_one_and_a_revocation_ends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alice = Cli(tmp_path / "alice")
    issuer = alice.keygen("alice")["id_sign_pk"]
    (tmp_path / "admin").write_text("a" * 64 + "\n")
    (tmp_path / "admin").chmod(0o600)
    settings = {
        "admission.capability_gating": "true",
        "admission.stream_scope": "enforced",
        "admission.trusted_issuers": issuer,
        "admission.kex1_plus": "true",
        "auth.admin_token_files": str(tmp_path / "admin"),
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with running(tmp_path / "data", *DEV, *options) as hub:
        talk = Talk.__new__(Talk)
        talk.root, talk.env, talk.hub = alice.root, alice.env, hub
        talk.point_at(hub)
        stream = talk.new_stream("together/gated")
        own = alice.json("id", "show")["card"]
        alice.run("cap", "issue", "--subject", own, "--stream", stream, "--ttl", "1d", "--out", "own.cbor")
        alice.run("authorize", "own.cbor")
        bob = Cli(tmp_path / "bob")
        alice.run("contacts", "add", "bob", bob.keygen("bob")["card"])
        assert alice.json("invite", stream, "--code", code=Exit.LOCAL)["code"] == "E.LOCAL.TOKEN"
        invite = alice.json("invite", stream, "--for", "bob")
        joined = bob.json("join", "bob.veen-invite")
        assert joined["token"] == invite["token"]
        bob.run("send", stream, "with a token")
        bob.run("inbox")  # the token covers it
        revoked = alice.json("revoke", "writer", "bob", "--token-file", "admin")
        assert revoked["tokens"] == 1
        until(lambda: bob.invoke("send", stream, "no more").exit_code == Exit.REFUSED)
        assert json.loads(bob.invoke("send", stream, "no more", "--json").stderr)["code"] == "E.CAP"
        bodies = [entry["body"] for entry in talk.entries(stream)]
        assert "with a token" in bodies
