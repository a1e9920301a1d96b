"""`veen wallet` against real hubs: money that neither appears nor disappears, and lines that can be proven."""

import pytest
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person, world

from veen.cli.shared.output import Exit


@pytest.fixture
def people(tmp_path_factory):
    with world(tmp_path_factory.mktemp("wallets"), "alice", "bob") as (_, alice, bob):
        yield alice, bob


@pytest.fixture
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


def test_a_wallet_is_corrected_emptied_and_closed(people, wallets):
    alice, _ = people
    mine, _ = wallets
    assert alice.json("wallet", "adjust", mine, 5, "--reason", "a count was wrong")["balance"] == 75
    alice.json("wallet", "withdraw", mine, 75)
    closed = alice.json("wallet", "close", mine)
    assert (closed["wallet_id"], closed["counted"]) == (mine, True)
    assert alice.json("wallet", "balance", mine)["state"] == "closed"
    alice.json("wallet", "deposit", mine, 1, code=Exit.POLICY)


@pytest.mark.req("WAL-21")
def test_every_line_of_a_statement_is_proven_and_the_books_are_verified(people, wallets):
    alice, bob = people
    mine, _ = wallets
    alice.json("wallet", "withdraw", mine, 10**6, "--force", code=Exit.POLICY)
    statement = alice.json("wallet", "statement", mine, "--with-proofs")
    assert statement["opening"] == 0
    assert statement["closing"] == alice.json("wallet", "balance", mine)["balance"]
    assert len(statement["proofs"]) == len(statement["lines"])
    assert "WAL.INSUFFICIENT_FUNDS" in [issue["code"] for issue in statement["refused"]]
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
    at_bank = ("--stream", "bank", "--service", alice.client_id, "--owner-card", bob.card)
    owner = bob.card
    wallet = bob.json("wallet", "open", "USD", *at_bank)["wallet_id"]
    forged = bob.json("wallet", "deposit", wallet, 5, *at_bank, "--force", code=Exit.POLICY)
    assert forged["code"] == "WAL.UNAUTHORIZED_OPERATION"
    alice.json("wallet", "deposit", f"{owner}:USD", 50, *at_bank)
    assert bob.json("wallet", "withdraw", "me:USD", 20, *at_bank)["balance"] == 30
    codes = [issue["code"] for issue in alice.json("wallet", "balance", wallet, *at_bank)["issues"]]
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"]


@pytest.mark.req("WAL-17")
def test_on_a_shared_stream_no_other_writer_moves_or_closes_a_wallet(people, tmp_path):
    """Alice is the institution, Bob owns a wallet, and Mallory may write to the stream like both of them."""
    alice, bob = people
    mallory = Person(tmp_path / "mallory", alice.hub, "mallory")
    stream = alice.new_stream("shared")
    bob.join(alice, stream)
    mallory.join(alice, stream)
    cards = tmp_path / "cards"
    cards.write_text(f"{bob.card}\n{mallory.card}\n")
    shared = ("--stream", stream, "--service", alice.client_id, "--owner-card", f"@{cards}")
    wallet = bob.json("wallet", "open", "EUR", *shared)["wallet_id"]
    alice.json("wallet", "deposit", wallet, 100, *shared)
    own = mallory.json("wallet", "open", "EUR", *shared)["wallet_id"]
    thefts = (("transfer", wallet, own, 100), ("withdraw", wallet, 1), ("close", wallet))
    for theft in thefts:
        refused = mallory.json("wallet", *theft, *shared, code=Exit.POLICY)
        assert refused["code"] == "WAL.UNAUTHORIZED_OPERATION"
        forced = mallory.json("wallet", *theft, *shared, "--force", code=Exit.POLICY)
        assert "is in the log" in forced["message"]
    for reader in (alice, bob, mallory):
        ledger = reader.json("wallet", "balance", *shared)
        assert {row["wallet_id"]: (row["balance"], row["state"]) for row in ledger["wallets"]} == {
            wallet: (100, "open"),
            own: (0, "open"),
        }
        assert [issue["code"] for issue in ledger["issues"]] == ["WAL.UNAUTHORIZED_OPERATION"] * len(thefts)
    assert bob.json("wallet", "transfer", wallet, own, 1, *shared)["balance"] == 99
    blind = alice.json("wallet", "balance", "--stream", stream, "--service", alice.client_id)
    assert blind["wallets"] == [], "whose keys are not named owns nothing"


def test_a_time_that_is_far_off_is_neither_sent_nor_counted(people, wallets):
    alice, _ = people
    mine, _ = wallets
    before = alice.json("wallet", "balance", mine)["balance"]
    assert alice.json("wallet", "deposit", mine, 1, "--ts", 1_000, code=Exit.POLICY)["code"] == "WAL.SKEW"
    forced = alice.json("wallet", "deposit", mine, 1, "--ts", 1_000, "--force", code=Exit.POLICY)
    assert forced["code"] == "WAL.SKEW"
    assert alice.json("wallet", "balance", mine)["balance"] == before
    lax = alice.json("wallet", "balance", mine, "--max-skew", 1 << 40)
    assert lax["balance"] == before + 1, "a reader with another policy has another balance"


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
