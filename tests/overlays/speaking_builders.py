"""Random histories of operations, with and without statements about who speaks for whom; a function of a seed."""

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H, Ht
from veen.core.labels import schema_id
from veen.overlays.framework.schema import Draft
from veen.overlays.operations import access, agreement, delegation, mirror, paid, publication, queryaudit, recovery
from veen.overlays.operations.common import account_id_of, operation_id_of
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_id_of
from veen.overlays.wallet.policy import owners_by
from veen.testing.events import FakeLog

KEYS = tuple(SigningKey(bytes((n,)) * 32) for n in range(1, 6))
PRINCIPALS = tuple(SigningKey(bytes((n,)) * 32) for n in range(11, 14))
ROOT, ISSUER = SigningKey(b"\x20" * 32), SigningKey(b"\x21" * 32)
REALM = H(b"realm")
STREAM, OTHER_STREAM = H(b"main"), H(b"other")  # as FakeLog names them
IDS = (bytes((1,)) * 32, bytes((2,)) * 32)
NOW = 1_000


class KeyLog(FakeLog):
    """A log whose senders have keys."""

    def send(self, draft, key, *, ts=None, stream="main", epoch=0):
        event = self.append(draft, stream=stream, epoch=epoch, ts=self.now + 1 if ts is None else ts)
        event = replace(event, client_id=key.public, leaf_hash=H(event.leaf_hash + key.public))
        self.by_label[event.label][-1] = event
        return event


def ctx_id(principal):
    return Ht("id/ctx", principal + REALM)


# --- operations ---------------------------------------------------------------------------------------------


def references(rng, log):
    events = log.all()
    if not events:
        return bytes(32)
    msg_id = rng.choice(events).msg_id
    return operation_id_of(msg_id) if rng.random() < 0.5 else msg_id


def write_paid(rng, log, names):
    kind = rng.randrange(6)
    if kind == 0:
        amount = rng.choice([None, 5, 20])
        return access.grant(
            rng.choice(names), [STREAM], expiry_time=NOW + rng.randrange(60), maximum_amount=amount, currency_code="c"
        )
    if kind == 1:
        return access.revoke(rng.choice(names), rng.choice([None, references(rng, log)]))
    body = paid.PaidOperation(
        operation_type="t",
        operation_args=rng.choice([None, {"b": 1, "a": 2}]),
        payer_account=account_id_of(rng.choice(names)),
        payee_account=account_id_of(rng.choice(names)),
        amount=rng.randrange(12),
        currency_code=rng.choice([None, "c", "d"]),
        operation_reference=rng.choice([None, *IDS]),
    )
    return paid.pay(body)


def write_access(rng, log, names):
    if rng.randrange(3) == 0:
        return access.revoke(rng.choice(names), rng.choice([None, references(rng, log)]))
    streams = rng.choice([[STREAM], [access.ACCESS_ADMIN, STREAM], [access.ACCESS_ADMIN]])
    return access.grant(rng.choice(names), streams, expiry_time=NOW + rng.randrange(-1, 60))


def write_agreement(rng, log, names):
    if rng.randrange(3) == 0:
        parties = tuple(dict.fromkeys(rng.choices(names, k=rng.randrange(1, 3))))
        return agreement.define(rng.choice(IDS), rng.randrange(3), terms_hash=STREAM, parties=parties)
    return agreement.confirm(rng.choice(IDS), rng.randrange(3), rng.choice(names), rng.choice(agreement.DECISIONS))


def write_publication(rng, log, names):
    return publication.publish(
        rng.choice(IDS),
        rng.choice(names),
        content_root=STREAM,
        content_form="list",
        content_class="model",
        version=rng.choice(["1", "2", "v1.2.0"]),
    )


def write_recovery(rng, log, names):
    target, new = rng.sample(names, 2)
    kind = rng.randrange(4)
    if kind == 0:
        return recovery.request(target, new)
    if kind < 3:
        return recovery.approve(target, new, rng.choice(names), rng.choice(["approve", "reject"]))
    return recovery.execute(target, new, [references(rng, log)])


def write_mirror(rng, log, names):
    leaf = rng.choice(IDS)
    body = mirror.FederationMirror(
        source_hub_identifier=mirror.hub_identifier(STREAM),
        source_label=OTHER_STREAM,
        source_stream_seq=rng.randrange(1, 4),
        source_leaf_hash=leaf,
        source_receipt_root=rng.choice(IDS),
        target_label=rng.choice(IDS),
    )
    return mirror.MIRROR.draft(body, parent_id=rng.choice([leaf, leaf, STREAM]))


def write_audit(rng, log, names):
    return queryaudit.audit(rng.choice(names), rng.choice("ab"), "personal-data")


def write_delegated(rng, log, names):
    number = rng.randrange(len(names))
    chain = rng.choice([[LINKS[0], LINKS[1 + number]]] * 5 + [LINKS[:2], [bytes(32)]])
    return delegation.delegate(
        access.revoke(rng.choice(names)), principal=ROOT.public, agent=names[number], chain=chain
    )


def write_wallet(rng, log, names):
    wallets = [wallet_id_of(REALM, ctx_id(principal.public), "EUR") for principal in PRINCIPALS]
    number, now = rng.randrange(len(PRINCIPALS)), log.now + 1
    kind = rng.randrange(8)
    if kind < 2:
        return drafts.open_wallet(
            realm_id=REALM, ctx_id=ctx_id(PRINCIPALS[number].public), currency="EUR", created_at=now
        )
    if kind < 4:
        return drafts.deposit(wallets[number], rng.randrange(30), ts=now)
    if kind < 5:
        return drafts.withdraw(wallets[number], rng.randrange(10), ts=now)
    nonce = rng.randbytes(16)
    return drafts.transfer(wallets[number], rng.choice(wallets), rng.randrange(20), ts=now, nonce=nonce)


def _tokens():
    from tests.overlays.operation_builders import cap

    return [cap(ISSUER, ROOT.public, (STREAM,)), *(cap(ROOT, key.public, (STREAM,)) for key in (*KEYS, *PRINCIPALS))]


_TOKENS = _tokens()
LINKS = [token.token.auth_ref() for token in _TOKENS]
CAPS = delegation.Caps(_TOKENS)


def fold_paid(names, **more):
    return paid.PaidFold(issuing=[account_id_of(names[0])], default="c", **more)


def fold_access(names, **more):
    return access.AccessFold(granters=[names[0]], **more)


def fold_recovery(names, **more):
    return recovery.RecoveryFold(guards=recovery.Guards.of(names[:2], 1, executors=names[:4]), **more)


def fold_mirror(names, **more):
    return mirror.MirrorFold(authors=names[:3], **more)


def fold_delegated(names, **more):
    return delegation.DelegationFold(caps=CAPS, **more)


def fold_wallet(names, *, speaks=True, **more):
    policy = WalletPolicy().on_shared_streams(
        owners_by({ctx_id(p.public): [names[n]] for n, p in enumerate(PRINCIPALS)})
    )
    return LedgerFold(policy=policy if speaks else replace(policy, speaks="off"), **more)


def fold_audit(names, **more):
    make = getattr(queryaudit, "make_fold", queryaudit.QueryAuditFold)
    return make(services=names[:3], **more)


PROFILES = {
    "paid": (fold_paid, write_paid),
    "access": (fold_access, write_access),
    "agreement": (lambda names, **more: agreement.AgreementFold(**more), write_agreement),
    "publication": (lambda names, **more: publication.PublicationFold(**more), write_publication),
    "recovery": (fold_recovery, write_recovery),
    "mirror": (fold_mirror, write_mirror),
    "audit": (fold_audit, write_audit),
    "delegated": (fold_delegated, write_delegated),
    "wallet": (fold_wallet, write_wallet),
}


# --- statements ---------------------------------------------------------------------------------------------


@cache
def statement(kind, *arguments):
    """A statement as a draft; of few arguments, since signatures cost most of the time of a history."""
    from veen.core.objects.card import Card, CardRecord
    from veen.core.objects.speaking import PrincipalNext, SpeaksBinding, SpeaksEnd

    body: Any
    if kind == "bind":
        principal, key, stream_id, not_before, not_after, forged = arguments
        body = SpeaksBinding.issue(
            PRINCIPALS[principal], KEYS[key], stream_id=stream_id, not_before=not_before, not_after=not_after
        )
        if forged:
            body = replace(body, **{forged: bytes(64)})
    elif kind == "end":
        principal, key, stream_id, ended_at, forged = arguments
        client_id = None if key is None else KEYS[key].public
        body = SpeaksEnd.issue(PRINCIPALS[principal], stream_id=stream_id, client_id=client_id, ended_at=ended_at)
        if forged:
            body = replace(body, sig_principal=bytes(64))
    elif kind == "next":
        old, new, stream_id, forged = arguments
        body = PrincipalNext.issue(PRINCIPALS[old], PRINCIPALS[new], stream_id=stream_id)
        if forged:
            body = replace(body, **{forged: bytes(64)})
    else:
        principal, key, forged = arguments
        card = Card.issue(PRINCIPALS[principal], dh_pk=bytes(32), client_id=KEYS[key].public, name="n")
        body = CardRecord(card=replace(card, sig=bytes(64)) if forged else card)
        return Draft(schema=schema_id("veen.card.v1"), body=body.to_bytes())
    return Draft(schema=schema_id(body.KIND), body=body.to_bytes())


def bind(principal, key, *, stream=STREAM, not_before=0, not_after=87_000, forged=None):
    return statement("bind", principal, key, stream, not_before, not_after, forged)


def end(principal, key=None, *, stream=STREAM, ended_at=None, forged=False):
    return statement("end", principal, key, stream, ended_at, forged)


def successor(old, new, *, stream=STREAM, forged=None):
    return statement("next", old, new, stream, forged)


def card(principal, key, *, forged=False):
    return statement("card", principal, key, forged)


def write_statement(rng):
    """A statement and the key that must send it, or None: any may."""
    stream = STREAM if rng.random() < 0.93 else OTHER_STREAM
    kind, principal, key = rng.randrange(20), rng.randrange(len(PRINCIPALS)), rng.randrange(len(KEYS))
    if kind < 11:
        not_before, length = rng.choice([(0, 87_000), (NOW, 20), (NOW + 10, 40), (NOW, 0), (NOW, 86_999), (0, 87_001)])
        forged = rng.choice([None] * 8 + ["sig_client", "sig_principal"])
        return bind(
            principal, key, stream=stream, not_before=not_before, not_after=not_before + length, forged=forged
        ), None
    if kind < 15:
        key_or_all = rng.choice([None, key, key])
        return end(
            principal, key_or_all, stream=stream, ended_at=rng.choice([None, 1]), forged=rng.random() < 0.1
        ), None
    if kind < 17:
        forged = rng.choice([None] * 6 + ["sig_old", "sig_new"])
        return successor(principal, rng.randrange(len(PRINCIPALS)), stream=stream, forged=forged), None
    sender = KEYS[key] if rng.random() < 0.8 else rng.choice(KEYS)
    return card(principal, key, forged=rng.random() < 0.1), sender


def names_of_all():
    return [*(key.public for key in KEYS), *(principal.public for principal in PRINCIPALS)]


def history(seed, write, *, statements=0.0, count=40, names=None):
    """A log of one stream, mostly, with two labels; `statements` is the share of messages about who speaks."""
    rng, log = Random(seed), KeyLog()
    names = names or names_of_all()
    for _ in range(count):
        sender = rng.choice(KEYS)
        if rng.random() < statements:
            draft, only = write_statement(rng)
            sender = only or sender
        else:
            draft = write(rng, log, names)
        if rng.random() < 0.04:
            draft = Draft(schema=draft.schema, body=rng.choice([b"", b"\xa0", draft.body[:-1]]))
        stream = "main" if rng.random() < 0.95 else "other"
        log.send(draft, sender, ts=log.now + rng.choice([0, 0, 1, 1, 2]), stream=stream, epoch=rng.randrange(2))
    return log
