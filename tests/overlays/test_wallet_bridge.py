"""WALBR0: only what is proven crosses, byte for byte, and only once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.wallet_reference import ANN, ANY_TIME, BOB, BRIDGE, REALM, World, opened, worlds, xfer

from veen.core.crypto.ed25519 import SigningKey
from veen.core.crypto.x25519 import public_key
from veen.core.errors import ProofError, SignatureError, VerifyError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Binding, open_msg, seal
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_inclusion
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.schema import Draft
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import OPEN, wallet_stream
from veen.overlays.wallet.bridge import Authorities, BridgedReferences, NotAuthoritative, copy_of, verify_entry

FOLD = LedgerFold(mirrors=Mirrors.by([BRIDGE]), policy=ANY_TIME)


class Entries:
    """A label of a real hub: sealed, signed, in an MMR, with receipts."""

    def __init__(self, stream_id: bytes, hub: str) -> None:
        self.hub, self.device, self.reader = SigningKey(H(hub.encode())), SigningKey(H(b"device")), H(b"reader key")
        self.stream_id, self.label, self.tree = stream_id, H(stream_id + hub.encode()), MmrTree()

    def append(self, draft: Draft, key: SigningKey | None = None) -> tuple[Msg, Receipt, Event]:
        key = key or self.device
        seq = self.tree.size + 1
        binding = Binding(
            profile_id=H(b"profile"), label=self.label, client_id=key.public, client_seq=seq, prev_ack=0, auth_ref=None
        )
        hdr = PayloadHdr(schema=draft.schema, parent_id=draft.parent_id)
        sealed = seal(
            public_key(self.reader), binding, hdr, draft.body, ikm=H(draft.body + bytes([seq])), pad_block=256
        )
        msg = Msg.compose(
            key,
            profile_id=H(b"profile"),
            label=self.label,
            client_seq=seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed.ciphertext,
        )
        self.tree.append(msg.leaf_hash())
        receipt = Receipt.issue(
            self.hub,
            label=self.label,
            stream_seq=seq,
            leaf_hash=msg.leaf_hash(),
            mmr_root=self.tree.root(),
            hub_ts=1_000 + seq,
        )
        opened_msg = open_msg(self.reader, msg)
        event = Event(
            stream_id=self.stream_id,
            label=self.label,
            epoch=0,
            stream_seq=seq,
            leaf_hash=msg.leaf_hash(),
            client_id=msg.client_id,
            auth_ref=None,
            hub_ts=receipt.hub_ts,
            ts=receipt.hub_ts,
            hdr=opened_msg.hdr,
            body=opened_msg.body,
        )
        return msg, receipt, event


@pytest.mark.req("WALBR-02", "WALBR-04")
def test_a_bridge_verifies_on_a_and_sends_the_same_bytes_under_its_own_key_to_b():
    """WAL §11.3, over real messages, receipts and proofs."""
    a, b = Entries(wallet_stream(ANN), "A"), Entries(H(b"replica"), "B")
    own_key = SigningKey(H(b"bridge key"))
    copies = LedgerFold(mirrors=Mirrors.by([own_key.public])).copies
    for draft in (opened("ann"), drafts.deposit(ANN, 5, ts=1, ref=b"x")):
        msg, receipt, event = a.append(draft)
        proof = prove_inclusion(a.tree.node_at, receipt.stream_seq)
        verify_entry(msg, receipt, hub_pks=[H(b"old"), a.hub.public], proof=proof, event=event)
        msg_b, receipt_b, event_b = b.append(copy_of(event, copies), own_key)
        verify_entry(msg_b, receipt_b, hub_pks=[b.hub.public], event=event_b)
        assert (event_b.hdr.schema, event_b.body) == (event.hdr.schema, draft.body)
        assert event_b.hdr.parent_id == msg.leaf_hash()
        assert event_b.client_id == own_key.public


@pytest.mark.req("WALBR-02")
def test_what_does_not_verify_does_not_cross():
    a = Entries(wallet_stream(ANN), "A")
    first = a.append(opened("ann"))
    msg, receipt, event = a.append(drafts.deposit(ANN, 5, ts=1))
    proof = prove_inclusion(a.tree.node_at, 2)
    pks = [a.hub.public]
    verify_entry(msg, receipt, hub_pks=pks, proof=proof, event=event)
    with pytest.raises(SignatureError):
        verify_entry(msg, receipt, hub_pks=[H(b"another hub")])
    with pytest.raises(SignatureError):
        verify_entry(replace(msg, sig=bytes(64)), receipt, hub_pks=pks)
    with pytest.raises(VerifyError, match="another message"):
        verify_entry(msg, first[1], hub_pks=pks)
    with pytest.raises(ProofError):
        verify_entry(msg, receipt, hub_pks=pks, proof=prove_inclusion(a.tree.node_at, 1, 2))
    with pytest.raises(VerifyError, match="not opened from"):
        verify_entry(msg, receipt, hub_pks=pks, event=first[2])


def carry(seen: BridgedReferences, source: World, to: World, hub: str) -> int:
    """One run of a bridge."""
    missing = list(seen.find_missing(source.all()))
    for _, draft in missing:
        seen.note([to.send(draft, stream_id=H(b"replica"), client=BRIDGE, hub=hub)])
    return len(missing)


@pytest.mark.req("WALBR-03")
def test_a_bridge_that_runs_again_or_restarts_sends_nothing_twice():
    a, b = World(), World(now=5_000)
    a.send_all(opened("ann"), opened("bob"), drafts.deposit(ANN, 9, ts=0))
    a.send(Draft(schema=H(b"else"), body=b""), stream_id=H(b"else"))
    references = BridgedReferences(FOLD)
    assert carry(references, a, b, "B") == 3
    assert carry(references, a, b, "B") == 0
    a.send_all(drafts.transfer(ANN, BOB, 4, ts=0, transfer_id=xfer(1)))
    restarted = BridgedReferences(FOLD)
    restarted.note(b.all())
    assert carry(restarted, a, b, "B") == 1
    assert FOLD.view(FOLD.summarize(b.all())) == FOLD.view(FOLD.summarize(a.all()))
    assert FOLD.view(FOLD.summarize(a.all() + b.all())) == FOLD.view(FOLD.summarize(a.all()))


@pytest.mark.req("WALBR-03")
def test_what_was_not_noted_is_missing_again():
    a = World()
    a.send_all(opened("ann"))
    references = BridgedReferences(FOLD)
    assert len(list(references.find_missing(a.all() + a.all()))) == 1
    assert len(list(references.find_missing(a.all()))) == 1


@pytest.mark.req("WALBR-03", "WALBR-04")
@examples(60)
@given(worlds(max_events=12), st.integers(1, 3))
def test_a_ring_of_bridges_carries_every_event_once(world, rounds):
    """A to B, B to C, C to A: the parent is always the first original, and all hubs together hold the same money."""
    b, c = World(now=50_000), World(now=60_000)  # the world of the history has hubs A and B already
    expected = FOLD.view(FOLD.summarize(world.all()))
    to_b, to_c, to_a = BridgedReferences(FOLD), BridgedReferences(FOLD), BridgedReferences(FOLD)
    to_a.note(world.all())
    back = World(now=70_000)
    for _ in range(rounds):
        carry(to_b, world, b, "second")
        carry(to_c, b, c, "third")
        assert carry(to_a, c, back, "first") == 0
    everywhere = world.all() + b.all() + c.all()
    assert FOLD.view(FOLD.summarize(everywhere)) == expected
    assert {e.body for e in b.all()} == {e.body for e in c.all()} <= {e.body for e in world.all()}


@pytest.mark.req("WALBR-01")
def test_changes_are_made_on_the_authoritative_hub():
    hub_a, hub_b, hub_c = H(b"A"), H(b"B"), H(b"C")
    authorities = Authorities(by_wallet={ANN: hub_a}, by_realm={REALM: hub_b}, default=hub_c)
    authorities.check(hub_a, ANN, REALM)
    authorities.check(hub_b, BOB, REALM)
    authorities.check(hub_c, BOB)
    for hub, wallet, realm in ((hub_b, ANN, REALM), (hub_c, BOB, REALM), (hub_a, BOB, None)):
        with pytest.raises(NotAuthoritative, match="changes are made on hub"):
            authorities.check(hub, wallet, realm)
    Authorities().check(hub_a, ANN)


@pytest.mark.req("WALBR-02", "WAL-17")
def test_a_bridge_lends_its_rights_to_nobody():
    """What the policy refuses on A would count on B, where the bridge is trusted."""
    a = World()
    a.send_all(opened("ann"), opened("bob"))
    a.send(drafts.withdraw(ANN, 1, ts=0), stream_id=wallet_stream(BOB))
    a.send(drafts.deposit(ANN, 1, ts=0))
    a.send(replace(drafts.deposit(ANN, 1, ts=0), body=b"\xff"), stream_id=wallet_stream(ANN))
    strict = LedgerFold(
        policy=WalletPolicy.institutional(services=[H(b"service")], max_skew_sec=None), mirrors=Mirrors.by([BRIDGE])
    )
    assert [draft.schema for _, draft in BridgedReferences(strict).find_missing(a.all())] == [OPEN.id, OPEN.id]
