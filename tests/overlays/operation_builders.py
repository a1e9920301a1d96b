"""Identities, tokens and short ways to write operations, for the tests of the profiles of spec-3."""

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.captoken import CapToken
from veen.overlays.operations.common import account_id_of, operation_id_of
from veen.overlays.operations.delegation import Caps, KnownCap

ALICE, BOB, CAROL, MALLORY = (H(name) for name in (b"alice", b"bob", b"carol", b"mallory"))
BANK = SigningKey(b"\x01" * 32)  # an identity with a key of its own, which can issue tokens
ROOT = SigningKey(b"\x02" * 32)
MAIN, SIDE = H(b"main"), H(b"side")
ID = bytes([7]) * 32
OTHER_ID = bytes([8]) * 32


def codes(fold, log):
    """The codes at their positions, in one label."""
    return [(issue.stream_seq, issue.code) for issue in fold.issues(fold.summarize(log.all()))]


def view(fold, log, as_of=None):
    return fold.view(fold.summarize(log.all()), as_of)


def op_id(event):
    return operation_id_of(event.msg_id)


def account(name):
    return account_id_of(H(name.encode()))


def cap(issuer, subject, streams=(MAIN,), *, ttl=10_000, issued_at=0, revoked_at=None):
    return KnownCap(CapToken.issue(issuer, subject, streams, ttl=ttl), issued_at, revoked_at)


def refs(*known):
    return [token.token.auth_ref() for token in known]


def chain_to(agent, **second):
    """BANK's authority handed to an agent: the tokens as a fold gets them, and the references."""
    links = cap(ROOT, BANK.public, (MAIN, SIDE)), cap(BANK, agent, **second)
    return Caps(links), refs(*links)
