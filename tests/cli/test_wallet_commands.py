"""`veen wallet` against real hubs: money that neither appears nor disappears, and lines that can be proven."""

import pytest
from tests.cli.hubprocess import running
from tests.cli.overlayworld import world

from veen.cli.output import Exit


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    with world(tmp_path_factory.mktemp("wallets"), "alice", "bob") as (_, alice, bob):
        yield alice, bob


@pytest.fixture(scope="module")
def wallets(people):
    """One wallet each, on streams of their own that both can read; Alice has got 100 and passed on 30."""
    alice, bob = people
    mine, theirs = (person.json("wallet", "open", "EUR", "--make-keys") for person in people)
    bob.join(alice, mine["stream"])
    alice.join(bob, theirs["stream"])
    assert alice.json("wallet", "deposit", "me:EUR", 100, "--ref", "bank 1")["balance"] == 100
    moved = alice.json("wallet", "transfer", mine["wallet_id"], theirs["wallet_id"], 30)
    assert moved["balance"] == 70
    assert moved["counted"]
    return mine["wallet_id"], theirs["wallet_id"]


@pytest.mark.req("WAL-02", "WAL-06", "WAL-08", "WAL-10")
def test_money_comes_in_goes_over_and_both_see_the_same(people, wallets):
    alice, bob = people
    mine, theirs = wallets
    again = alice.json("wallet", "deposit", mine, 100, "--ref", "bank 1")
    assert again["balance"] == 70, "a retry counts once"
    assert bob.json("wallet", "balance", "me:EUR")["balance"] == 30
    assert bob.run("wallet", "balance", theirs).stdout == "30 EUR\n"
    both = [person.json("wallet", "balance") for person in people]
    assert both[0]["state_hash"] == both[1]["state_hash"]
    assert both[0]["supply"]["EUR"] == {"deposited": 100, "withdrawn": 0, "adjusted": 0, "balance": 100}


@pytest.mark.req("WAL-09", "WAL-13", "WAL-14", "WAL-20")
def test_what_may_not_be_is_not_sent_and_forced_it_counts_for_nothing(people, wallets):
    alice, bob = people
    mine, theirs = wallets
    before = alice.json("wallet", "balance", mine)["balance"]
    refused = alice.json("wallet", "withdraw", mine, 10**6, code=Exit.POLICY)
    assert refused["code"] == "WAL.INSUFFICIENT_FUNDS"
    forced = alice.json("wallet", "withdraw", mine, 10**6, "--force", code=Exit.POLICY)
    assert forced["code"] == "WAL.INSUFFICIENT_FUNDS"
    assert "is in the log" in forced["message"]
    alice.json("wallet", "limit", mine, 5)
    assert alice.json("wallet", "withdraw", mine, 6, code=Exit.POLICY)["code"] == "WAL.DAILY_LIMIT_EXCEEDED"
    alice.json("wallet", "limit", mine, "--clear")
    alice.json("wallet", "freeze", mine, "--reason", "lost card")
    assert alice.json("wallet", "withdraw", mine, 1, code=Exit.POLICY)["code"] == "WAL.FROZEN"
    assert alice.json("wallet", "balance", mine)["state"] == "frozen"
    alice.json("wallet", "unfreeze", mine)
    assert alice.json("wallet", "close", mine, code=Exit.POLICY)["code"] == "WAL.BALANCE_LEFT"
    below = bob.run("wallet", "adjust", theirs, "--reason", "x", "--json", "--", "-10000", code=Exit.POLICY)
    assert "WAL.INSUFFICIENT_FUNDS" in below.stderr
    assert alice.json("wallet", "balance", mine)["balance"] == before
    alice.run("wallet", "limit", mine, code=Exit.USAGE)
    alice.run("wallet", "balance", "nonsense", code=Exit.USAGE)
    alice.run("wallet", "open", "not ascii é", code=Exit.USAGE)
    assert alice.json("wallet", "balance", "ab" * 32, code=Exit.LOCAL)["code"] == "E.ABSENT"


@pytest.mark.req("WAL-21")
def test_every_line_of_a_statement_is_proven_and_the_books_are_verified(people, wallets):
    alice, bob = people
    mine, _ = wallets
    alice.json("wallet", "withdraw", mine, 10**6, "--force", code=Exit.POLICY)
    made = alice.json("wallet", "statement", mine, "--with-proofs")
    assert made["opening"] == 0
    assert made["closing"] == alice.json("wallet", "balance", mine)["balance"]
    assert len(made["proofs"]) == len(made["lines"])
    assert "WAL.INSUFFICIENT_FUNDS" in [issue["code"] for issue in made["refused"]]
    lines = bob.json("wallet", "history", mine)["lines"]
    assert [line["operation"] for line in lines][:3] == ["open", "deposit", "transfer"]
    good = bob.json("wallet", "verify", mine)
    assert good["good"]
    assert good["lines_proven"] == len(lines)
    last = lines[-1]["hub_ts"]
    later = alice.json("wallet", "statement", mine, "--since", last + 1)
    assert later["lines"] == []
    assert later["opening"] == later["closing"]


@pytest.mark.req("WAL-17")
def test_only_the_institution_makes_money_where_readers_say_so(people):
    alice, bob = people
    bob.join(alice, alice.new_stream("bank"))
    at_bank = ("--stream", "bank", "--service", alice.client_id)
    owner = bob.card
    wallet = bob.json("wallet", "open", "USD", *at_bank)["wallet_id"]
    forged = bob.json("wallet", "deposit", wallet, 5, *at_bank, code=Exit.POLICY)
    assert forged["code"] == "WAL.UNAUTHORIZED_OPERATION"
    alice.json("wallet", "deposit", f"{owner}:USD", 50, *at_bank)
    assert bob.json("wallet", "withdraw", "me:USD", 20, *at_bank)["balance"] == 30
    codes = [issue["code"] for issue in alice.json("wallet", "balance", wallet, *at_bank)["issues"]]
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"]


@pytest.mark.req("WALBR-02", "WALBR-03", "WALBR-04")
def test_a_bridge_copies_to_another_hub_what_is_missing_and_nothing_twice(people, wallets, tmp_path):
    alice, _ = people
    mine, _ = wallets
    with running(tmp_path / "replica") as other:
        alice.keygen("bridge")
        alice.run("context", "add", "there", "--hub", other.url, "--pin", other.about["hub_pk"], "--identity", "bridge")
        key = tmp_path / "key"
        alice.run("id", "keyring", "new", "copies", "--identity", "bridge")
        alice.run("id", "keyring", "share", "copies", "--read", "--out", key, "--identity", "bridge")
        alice.run("id", "keyring", "add", f"@{key}", "--identity", "alice")
        bridge = ("wallet", "bridge", "--to-context", "there", "--onto", "copies", "--identity", "alice")
        missing = alice.json(*bridge, "--dry-run")
        assert missing["copied"] == 0
        assert missing["missing"] >= 4
        done = alice.json(*bridge)
        assert done["copied"] == missing["missing"]
        assert alice.json(*bridge)["copied"] == 0
        bridge_id = alice.json("id", "show", "bridge")["client_id"]
        there = ("--context", "there", "--identity", "bridge", "--stream", "copies", "--bridge", bridge_id)
        assert (
            alice.json("wallet", "balance", mine, *there)["balance"]
            == (alice.json("wallet", "balance", mine, "--identity", "alice")["balance"])
        )
