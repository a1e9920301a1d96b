"""Capability tokens in the hands of a client (spec §6, D-43 … D-49)."""

import random
import threading
from dataclasses import replace

import pytest
from tests.client.builders import NOW, HubLog, identity, process, seeded

from veen.client.errors import LocalError, TokenExpired, TokenMissing
from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.captokens import HeldToken, TokenStore, describe, issue
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import CapabilityError
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import Rate
from veen.testing.memfs import Crash, Fault, MemFs

ALICE = identity()
ISSUER = SigningKey(b"\x11" * 32)
HUB, OTHER_HUB = HubLog().hub_id, HubLog(2).hub_id
ROOM, BOARD = stream_id_of("room"), stream_id_of("board")
TOKEN = issue(ISSUER, ALICE.card(), ["room", BOARD], ttl=100, rate=Rate(per_sec=1, burst=2))
REF = TOKEN.auth_ref()


@pytest.mark.req("CAP-15")
def test_a_token_is_issued_to_the_client_key_on_a_card():
    assert TOKEN.subject_pk == ALICE.client_id
    assert set(TOKEN.allow.stream_ids) == {ROOM, BOARD}
    by_key = issue(ISSUER, ALICE.client_id, [f"hex:{BOARD.hex()}", "room"], ttl=100, rate=Rate(per_sec=1, burst=2))
    assert by_key == TOKEN  # equal inputs, equal bytes
    with pytest.raises(LocalError, match="a label does not show its stream"):
        issue(ISSUER, ALICE.client_id, [f"label:{BOARD.hex()}"], ttl=1)


def test_a_token_is_shown_with_names_where_they_are_known():
    ring = Keyring.of([StreamKeys.create("room", random=seeded("room"))])
    info = describe(TOKEN, ring)
    assert set(info.streams) == {"room", f"hex:{BOARD.hex()}"}
    assert (info.auth_ref, info.ttl, info.links, info.fault) == (REF, 100, 1, None)
    assert describe(TOKEN.renew(ISSUER)).links == 2
    forged = replace(TOKEN, subject_pk=bytes(32))
    assert "does not verify" in (describe(forged).fault or "")


@pytest.mark.req("CAP-17")
def test_tokens_and_their_auth_refs_last(tmp_path):
    home = Home.at(tmp_path)
    TokenStore(home.tokens_fs("alice")).put(TOKEN)
    store = TokenStore(home.tokens_fs("alice"))
    assert store.all() == [HeldToken(token=TOKEN)]
    assert store.get(REF) == HeldToken(token=TOKEN)
    assert store.get(bytes(32)) is None
    assert home.find_exposed() == []
    store.remove(REF)
    store.remove(REF)
    assert store.all() == []


def test_a_forged_token_is_not_kept():
    store = TokenStore(MemFs())
    with pytest.raises(CapabilityError):
        store.put(replace(TOKEN, subject_pk=bytes(32)))
    assert store.all() == []


def test_a_token_ends_when_the_hub_that_authorised_it_says_so_and_not_before():
    """D-47, D-48: inclusive, per hub, and re-authorising never extends."""
    store = TokenStore(MemFs())
    token = store.put(TOKEN)
    assert token.expires_at(HUB) is None
    assert token.is_live(HUB, 10**12)  # not shown to this hub yet: all of its ttl is left
    store.add_grant(REF, HUB, NOW)
    token = store.add_grant(REF, HUB, NOW + 50)
    assert token.expires_at(HUB) == NOW + 100
    assert token.is_live(HUB, NOW + 100)
    assert not token.is_live(HUB, NOW + 101)
    assert token.expires_at(OTHER_HUB) is None
    assert store.put(TOKEN) == token  # what is known stays
    with pytest.raises(TokenMissing):
        store.add_grant(bytes(32), HUB, NOW)


@pytest.mark.req("KEX1-05")
def test_a_token_is_due_for_renewal_while_it_still_works_and_renewal_gives_a_new_ttl():
    """D-44"""
    store = TokenStore(MemFs())
    store.put(TOKEN)
    store.add_grant(REF, HUB, NOW)
    assert store.due(HUB, NOW + 79) == []
    assert [token.auth_ref for token in store.due(HUB, NOW + 80)] == [REF]
    renewed = TOKEN.renew(ISSUER)
    assert renewed.auth_ref() != REF
    store.put(renewed)
    store.add_grant(renewed.auth_ref(), HUB, NOW + 80)
    assert store.usable(HUB, ALICE.client_id, ROOM, NOW + 90).token == renewed
    assert store.usable(HUB, ALICE.client_id, ROOM, NOW + 180).token == renewed


def test_the_token_that_fits_is_chosen():
    """D-49: client key and stream; one that the hub knows comes before one it was not shown."""
    store = TokenStore(MemFs())
    with pytest.raises(TokenMissing):
        store.usable(HUB, ALICE.client_id, ROOM, NOW)
    store.put(TOKEN)
    long_one = issue(ISSUER, ALICE.card(), ["room"], ttl=10_000)
    store.put(long_one)
    assert store.usable(HUB, ALICE.client_id, ROOM, NOW).token == long_one
    store.add_grant(REF, HUB, NOW)
    assert store.usable(HUB, ALICE.client_id, ROOM, NOW).token == TOKEN
    assert store.usable(HUB, ALICE.client_id, ROOM, NOW + 101).token == long_one
    assert store.usable(HUB, ALICE.client_id, BOARD, NOW).token == TOKEN
    with pytest.raises(TokenExpired, match=str(NOW + 100)):
        store.usable(HUB, ALICE.client_id, BOARD, NOW + 101)
    for client_id, stream in ((ALICE.client_id, stream_id_of("cellar")), (bytes(32), ROOM)):
        with pytest.raises(TokenMissing):
            store.usable(HUB, client_id, stream, NOW)


@pytest.mark.parametrize(
    "content", [b"", b"garbage", TOKEN.to_bytes(), HeldToken(token=TOKEN.renew(ISSUER)).to_bytes()]
)
def test_a_damaged_file_is_named(content):
    name = f"{REF.hex()}.cbor"
    with pytest.raises(LocalError, match=name):
        TokenStore(MemFs({name: content})).all()


@pytest.mark.parametrize("kind", ["lost", "torn", "done", "error"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_crash_leaves_whole_tokens(at, kind):
    fs = MemFs(fault=Fault(at=at, kind=kind))
    store = TokenStore(fs)
    steps = 0
    try:
        store.put(TOKEN)
        steps = 1
        store.add_grant(REF, HUB, NOW)
        steps = 2
        store.remove(REF)
        steps = 3
    except (Crash, OSError):
        pass
    for seed in range(4):
        token = TokenStore(fs.after_crash(random.Random(seed))).get(REF)
        states = [None, HeldToken(token=TOKEN), HeldToken(token=TOKEN).with_grant(HUB, NOW), None]
        assert token in states[steps : steps + 2]


@pytest.mark.slow
def test_threads_and_processes_may_add_tokens_at_the_same_time(tmp_path, pytestconfig):
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.client.test_captokens import REF, TOKEN
from veen.client.send.captokens import TokenStore
from veen.client.home import Home
store = TokenStore(Home.at(Path(sys.argv[1])).tokens_fs("alice"))
store.put(TOKEN)
for number in range(20):
    store.add_grant(REF, bytes([int(sys.argv[3])]) * 31 + bytes([number]), 1)
"""
    children = [process(code, tmp_path, pytestconfig.rootpath, number) for number in (1, 2)]
    store = TokenStore(Home.at(tmp_path).tokens_fs("alice"))
    store.put(TOKEN)
    threads = [
        threading.Thread(target=lambda n=n: [store.add_grant(REF, bytes([n]) * 31 + bytes([m]), 1) for m in range(10)])
        for n in (3, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    token = store.get(REF)
    assert token is not None
    assert len({grant.hub_id for grant in token.grants}) == len(token.grants) == 60


def test_a_lock_that_never_opens_ends_in_an_error():
    fs = MemFs()
    waited: list[float] = []
    with fs.lock(), pytest.raises(LocalError, match="another process"):
        TokenStore(fs, sleep=waited.append).put(TOKEN)
    assert waited
