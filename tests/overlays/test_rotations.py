"""Every operation profile passes three rotations of every party between any two steps (D-179).

Parties are named by their principals. Each step is sent by a key of the party that nobody has seen a day before; the
binding of every earlier key has run out by then.
"""

from dataclasses import dataclass, field, replace

from tests.overlays.operation_builders import cap, refs
from tests.overlays.speaking_builders import IDS, PRINCIPALS, REALM, STREAM, KeyLog, ctx_id

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H, u64be
from veen.core.objects.speaking import SPEAKS_SCHEMA, SpeaksBinding
from veen.overlays.framework.schema import Draft
from veen.overlays.operations import access, agreement, delegation, mirror, paid, publication, queryaudit, recovery
from veen.overlays.operations.common import account_id_of, operation_id_of
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_id_of
from veen.overlays.wallet.bridge import BridgedReferences
from veen.overlays.wallet.policy import INSTITUTION, WalletGrant

ALICE, BOB, CAROL = PRINCIPALS
DAY = 86_400
LIFE = 87_000
ROTATIONS = 3


@dataclass
class Parties(KeyLog):
    """A log of one stream in which every principal rotates its key before each step, and binds the new one."""

    rotations: int = ROTATIONS
    keys_made: int = 0
    retired: list[tuple[SigningKey, SigningKey]] = field(default_factory=list)

    def by(self, principal, draft):
        """Send a draft by the newest key of a principal, after rotations of all of them."""
        current = {}
        for _ in range(self.rotations):
            for party in PRINCIPALS:
                current[party.public] = self.bind(party)
            self.now += DAY + LIFE  # what was bound before has run out
        for party in PRINCIPALS:
            current[party.public] = self.bind(party)
        return self.send(draft, current[principal.public])

    def bind(self, principal):
        self.keys_made += 1
        key = SigningKey(H(b"key" + u64be(self.keys_made)))
        binding = SpeaksBinding.issue(principal, key, stream_id=STREAM, not_before=self.now, not_after=self.now + LIFE)
        self.send(Draft(schema=SPEAKS_SCHEMA, body=binding.to_bytes()), key)
        self.retired.append((principal, key))
        return key


def folded(fold, log):
    summary = fold.summarize(log.all())
    return fold.view(summary), [issue.code for issue in fold.issues(summary)]


def test_an_agreement():
    log = Parties()
    log.by(ALICE, agreement.define(IDS[0], 1, terms_hash=STREAM, parties=[ALICE.public, BOB.public]))
    log.by(ALICE, agreement.confirm(IDS[0], 1, ALICE.public, "accept"))
    log.by(BOB, agreement.confirm(IDS[0], 1, BOB.public, "accept"))
    assert folded(agreement.AgreementFold(), log)[0].active == {IDS[0]: 1}
    log.by(CAROL, agreement.define(IDS[0], 2, terms_hash=STREAM, parties=[CAROL.public]))
    log.by(ALICE, agreement.define(IDS[0], 2, terms_hash=STREAM, parties=[ALICE.public]))
    log.by(BOB, agreement.confirm(IDS[0], 1, BOB.public, "withdraw"))
    state, codes = folded(agreement.AgreementFold(), log)
    assert (state.active, codes) == ({}, ["AGREE.OWNER"])


def test_a_publication():
    def version(number, by=ALICE, publisher=ALICE):
        draft = publication.publish(
            IDS[0], publisher.public, content_root=STREAM, content_form="list", content_class="c", version=str(number)
        )
        return log.by(by, draft)

    log = Parties()
    version(1)
    version(2)
    version(3, BOB)
    version(3, BOB, BOB)
    state, codes = folded(publication.PublicationFold(), log)
    assert sorted(number for _, number in state.versions) == ["1", "2"]
    assert codes == ["PUB.SPEAKER", "PUB.OWNER"]


def test_an_id_that_was_published_under_by_a_key_belongs_to_the_principal_of_the_key():
    def version(number, publisher):
        return publication.publish(
            IDS[0], publisher, content_root=STREAM, content_form="list", content_class="c", version=str(number)
        )

    log = Parties()
    key = log.bind(ALICE)
    log.send(version(1, key.public), key)
    log.by(ALICE, version(2, key.public))
    log.by(ALICE, version(3, ALICE.public))
    log.by(BOB, version(4, BOB.public))
    state, codes = folded(publication.PublicationFold(), log)
    assert (len(state.versions), codes) == (3, ["PUB.OWNER"])


def test_grants_and_their_revocation():
    log, fold = Parties(), access.AccessFold(granters=[ALICE.public])
    late = log.now + 10**9
    log.by(ALICE, access.grant(BOB.public, [access.ACCESS_ADMIN, STREAM], expiry_time=late))
    grant = log.by(BOB, access.grant(CAROL.public, [STREAM], expiry_time=late - 1))
    log.by(CAROL, access.grant(BOB.public, [STREAM], expiry_time=late - 1))
    state, codes = folded(fold, log)
    assert codes == ["GRANT.AUTHORITY"]
    assert [grant.granter for grant in state.grants.values() if grant.subject == CAROL.public] == [BOB.public]
    log.by(CAROL, access.revoke(CAROL.public))
    log.by(BOB, access.revoke(CAROL.public, operation_id_of(grant.msg_id)))
    log.by(ALICE, access.revoke(BOB.public))
    state, codes = folded(fold, log)
    assert not state.live(CAROL.public, log.now)
    assert not state.live(BOB.public, log.now)
    assert codes == ["GRANT.AUTHORITY", "REVOKE.AUTHORITY"]


def test_a_grant_to_a_key_is_one_to_the_principal_that_bound_it():
    """Before the key was bound, or after: the principal grants on, and who revokes the principal revokes both."""
    log, fold = Parties(), access.AccessFold(granters=[ALICE.public])
    late = log.now + 10**9
    old = SigningKey(H(b"an old key"))
    admin = access.grant(old.public, [access.ACCESS_ADMIN, STREAM], expiry_time=late)
    log.by(ALICE, admin)
    binding = SpeaksBinding.issue(BOB, old, stream_id=STREAM, not_before=0, not_after=LIFE)
    log.send(Draft(schema=SPEAKS_SCHEMA, body=binding.to_bytes()), old)
    log.by(BOB, access.grant(CAROL.public, [STREAM], expiry_time=late - 1))
    log.by(ALICE, admin)
    state, codes = folded(fold, log)
    assert (codes, len(state.live(CAROL.public, log.now))) == ([], 1)
    log.by(ALICE, access.revoke(BOB.public))
    log.by(BOB, access.grant(CAROL.public, [STREAM], expiry_time=late - 1))
    state, codes = folded(fold, log)
    assert (codes, state.live(old.public, log.now)) == (["GRANT.AUTHORITY"], ())


def pay(payer, payee, amount):
    return paid.pay(
        paid.PaidOperation(
            operation_type="t",
            operation_args=None,
            payer_account=account_id_of(payer),
            payee_account=account_id_of(payee),
            amount=amount,
            currency_code="c",
        )
    )


def test_payments_and_the_right_to_debit():
    log, fold = Parties(), paid.PaidFold(issuing=[account_id_of(ALICE.public)])
    late = log.now + 10**9
    log.by(ALICE, pay(ALICE.public, BOB.public, 100))
    log.by(BOB, pay(BOB.public, CAROL.public, 10))
    log.by(CAROL, pay(BOB.public, CAROL.public, 1))
    log.by(BOB, access.grant(CAROL.public, [STREAM], expiry_time=late, maximum_amount=30, currency_code="c"))
    log.by(CAROL, pay(BOB.public, CAROL.public, 20))
    log.by(CAROL, pay(BOB.public, CAROL.public, 20))
    log.by(BOB, access.revoke(CAROL.public))
    log.by(CAROL, pay(BOB.public, CAROL.public, 5))
    state, codes = folded(fold, log)
    assert codes == ["PAID.RIGHTS", "PAID.AMOUNT", "PAID.RIGHTS"]
    assert (state.balance(account_id_of(BOB.public), "c"), state.sums()) == (70, {"c": 0})


def test_money_rights_and_revocations_of_a_key_pass_to_the_principal_that_binds_it():
    log, fold = Parties(rotations=0), paid.PaidFold(issuing=[account_id_of(ALICE.public)])
    late = log.now + 10**9
    old, subject = SigningKey(H(b"payer")), SigningKey(H(b"subject"))
    log.by(ALICE, pay(ALICE.public, old.public, 100))
    log.send(access.grant(subject.public, [STREAM], expiry_time=late, maximum_amount=50, currency_code="c"), old)
    for principal, key in ((BOB, old), (CAROL, subject)):
        binding = SpeaksBinding.issue(principal, key, stream_id=STREAM, not_before=0, not_after=LIFE)
        log.send(Draft(schema=SPEAKS_SCHEMA, body=binding.to_bytes()), key)
    log.rotations = ROTATIONS
    log.by(CAROL, pay(old.public, CAROL.public, 20))  # by the grant to the subject's key
    log.by(BOB, pay(old.public, BOB.public, 5))  # the account of a key that Bob bound
    log.by(CAROL, pay(CAROL.public, ALICE.public, 1))
    log.by(ALICE, pay(old.public, ALICE.public, 1))
    log.by(BOB, access.grant(ALICE.public, [STREAM], expiry_time=late, maximum_amount=7, currency_code="c"))
    log.by(ALICE, pay(old.public, ALICE.public, 7))  # what Bob grants holds for the accounts of his keys
    log.by(BOB, access.revoke(CAROL.public))
    log.by(CAROL, pay(old.public, CAROL.public, 1))
    state, codes = folded(fold, log)
    assert codes == ["PAID.RIGHTS", "PAID.RIGHTS"]
    assert state.balance(account_id_of(old.public), "c") == 100 - 20 - 5 - 7


def test_delegated_operations():
    """D-92: agent_identity may be the principal of the agent's key; the last token is for the agent."""
    links = cap(CAROL, ALICE.public, (STREAM,), ttl=10**9), cap(ALICE, BOB.public, (STREAM,), ttl=10**9)
    caps = delegation.Caps(links)

    def delegated(draft, by):
        return log.by(by, delegation.delegate(draft, principal=ALICE.public, agent=BOB.public, chain=refs(*links)))

    log = Parties()
    define = agreement.define(IDS[0], 1, terms_hash=STREAM, parties=[ALICE.public])
    log.by(ALICE, define)
    delegated(agreement.confirm(IDS[0], 1, ALICE.public, "accept"), BOB)
    delegated(agreement.confirm(IDS[0], 1, ALICE.public, "withdraw"), CAROL)
    state, codes = folded(agreement.AgreementFold(caps=caps), log)
    assert (state.active, codes) == ({IDS[0]: 1}, ["DELEG.SPEAKER"])
    executions, codes = folded(delegation.DelegationFold(caps=caps), log)
    assert (len(executions), codes) == (1, ["DELEG.SPEAKER"])


def test_a_recovery_and_what_its_target_may_not_do_any_more():
    """Guardians and targets are principals; a fresh key of a principal that was replaced acts for nobody (D-140)."""
    log, fold = Parties(), recovery.RecoveryFold(guards=recovery.Guards.of([BOB.public, CAROL.public], 2))
    new = SigningKey(H(b"new principal")).public
    log.by(ALICE, recovery.request(ALICE.public, new))
    approvals = [log.by(party, recovery.approve(ALICE.public, new, party.public)) for party in (BOB, CAROL)]
    log.by(BOB, recovery.execute(ALICE.public, new, [event.msg_id for event in approvals]))
    state, codes = folded(fold, log)
    assert (state.current(ALICE.public), codes) == (new, [])
    log.by(ALICE, recovery.request(BOB.public, H(b"another")))
    state, codes = folded(fold, log)
    assert (codes, len(state.requests)) == (["RECOV.SUPERSEDED"], 1)


def test_audits_and_mirror_records_of_named_services():
    log = Parties()
    for party in (ALICE, BOB):
        log.by(party, queryaudit.audit(BOB.public, "r", "personal-data"))
    state, codes = folded(queryaudit.make_fold(services=[ALICE.public]), log)
    assert (len(state), codes) == (1, ["QAUD.SERVICE"])
    log = Parties()
    for party in (ALICE, BOB, ALICE):
        body = mirror.FederationMirror(
            source_hub_identifier=mirror.hub_identifier(STREAM),
            source_label=STREAM,
            source_stream_seq=1,
            source_leaf_hash=IDS[0],
            source_receipt_root=IDS[1],
            target_label=H(u64be(log.keys_made)),
        )
        log.by(party, mirror.MIRROR.draft(body, parent_id=IDS[0]))
    state, codes = folded(mirror.MirrorFold(authors=[ALICE.public]), log)
    assert codes == ["MIRR.AUTHOR"]


# --- wallets on shared streams ------------------------------------------------------------------------------------


def wallet(principal):
    return wallet_id_of(REALM, ctx_id(principal.public), "EUR")


def open_wallet(principal, now):
    return drafts.open_wallet(realm_id=REALM, ctx_id=ctx_id(principal.public), currency="EUR", created_at=now)


def bank(policy):
    """Wallets of Alice and Bob on one stream; Carol is the bank."""
    log = Parties()
    for party in (ALICE, BOB):
        log.by(party, open_wallet(party, log.now))
    log.by(CAROL, drafts.deposit(wallet(ALICE), 100, ts=log.now))
    log.by(ALICE, drafts.transfer(wallet(ALICE), wallet(BOB), 30, ts=log.now, nonce=bytes(16)))
    log.by(BOB, drafts.transfer(wallet(ALICE), wallet(BOB), 30, ts=log.now, nonce=bytes(16)))
    log.by(BOB, drafts.deposit(wallet(BOB), 5, ts=log.now))
    return log, LedgerFold(policy=policy)


BANK = WalletGrant(operations=INSTITUTION, principals=frozenset([CAROL.public]))
POLICY = WalletPolicy(
    own_streams=False, reserved=INSTITUTION - {"open", "transfer"}, grants=(BANK,), max_skew_sec=10**8
)


def test_wallets_of_a_shared_stream_obey_the_keys_of_their_principals_and_no_list_of_keys():
    log, fold = bank(POLICY)
    state, codes = folded(fold, log)
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"] * 2
    assert [state.balance(wallet(party)) for party in (ALICE, BOB)] == [70, 30]


def test_the_keys_of_a_list_of_owners_act_beside_bound_ones():
    log = Parties()
    key = SigningKey(H(b"listed"))
    policy = replace(POLICY, owners={ctx_id(ALICE.public): frozenset([key.public])})
    log.send(open_wallet(ALICE, log.now), key)
    log.by(CAROL, drafts.deposit(wallet(ALICE), 100, ts=log.now))
    log.by(ALICE, drafts.transfer(wallet(ALICE), wallet(BOB), 0, ts=log.now, nonce=bytes(16)))
    assert folded(LedgerFold(policy=policy), log)[1] == ["WAL.UNKNOWN_WALLET"]  # of Bob: Alice may send
    off = replace(policy, speaks="off")
    assert folded(LedgerFold(policy=off), log)[1] == ["WAL.UNAUTHORIZED_OPERATION"] * 2
    assert LedgerFold(policy=off).semantics() != LedgerFold(policy=policy).semantics()


def test_a_wallet_stands_still_when_the_binding_of_the_sender_has_run_out():
    log = Parties(rotations=0)
    key = log.bind(ALICE)
    log.send(open_wallet(ALICE, log.now), key)
    log.now += 2 * DAY
    log.send(drafts.withdraw(wallet(ALICE), 0, ts=log.now), key)
    assert folded(LedgerFold(policy=POLICY), log)[1] == ["SPEAKS.TIME"]


def test_a_policy_that_asks_for_no_owner_reads_no_bindings():
    for policy in (
        WalletPolicy(),
        WalletPolicy.institutional(),
        WalletPolicy(own_streams=False, trust_every_writer=True),
    ):
        assert SPEAKS_SCHEMA not in LedgerFold(policy=policy).schemas


def test_a_bridge_carries_what_bound_keys_may_do():
    log, fold = bank(POLICY)
    carried = list(BridgedReferences(fold).find_missing(log.all()))
    assert len(carried) == 4
    assert SPEAKS_SCHEMA not in {draft.schema for _, draft in carried}
