"""No identity holds both directions (AGB-02, AGB-19)."""

from dataclasses import replace

import pytest

from veen.client.send.captokens import issue
from veen.core.crypto.ed25519 import SigningKey
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, RoleHolder, judge, judge_at_hub

ISSUER = SigningKey(b"\x09" * 32)


def token(*streams):
    return issue(ISSUER, bytes(32), streams, ttl=1_000)


EXPORTER = RoleHolder(
    role="exporter", name="exporter", keys=frozenset({b"1"}), readable=("record/security/auth",), tokens=()
)
ONLINE = RoleHolder(
    role="online-log", name="on", keys=frozenset({b"2"}), readable=(ONLINE_LOG,), tokens=(token(ONLINE_LOG),)
)
IMPORTER = RoleHolder(
    role="importer", name="importer", keys=frozenset({b"3"}), readable=(), tokens=(token("import/z1/a"),)
)
OFFLINE = RoleHolder(role="offline-log", name="off", keys=frozenset({b"4"}), readable=(), tokens=(token(OFFLINE_LOG),))
GOOD = [EXPORTER, ONLINE, IMPORTER, OFFLINE]


@pytest.mark.req("AGB-02")
def test_roles_that_are_apart_pass():
    assert judge(GOOD) == []
    assert all(judge_at_hub("offline", holder, [bytes(32)]) == [] for holder in (IMPORTER, OFFLINE))


@pytest.mark.req("AGB-02", "AGB-19")
@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (0, {"tokens": (token("record/security/auth"),)}, "the exporter only reads"),
        (0, {"readable": ("import/z1/a",)}, "a stream of the other zone"),
        (2, {"readable": ("import/z1/a",)}, "the importer only writes"),
        (1, {"tokens": (token(ONLINE_LOG, "record/security/auth"),)}, "a token for other streams"),
        (3, {"readable": ("record/security/auth",)}, "does nothing but"),
        (2, {"keys": frozenset({b"1"})}, "share a private key"),
        (2, {"keys": frozenset({b"1", b"3"})}, "share a private key"),
        (3, {"tokens": (token("record/security/auth"),)}, "a token for other streams"),
    ],
)
def test_every_mixture_is_named(at, change, words):
    holders = list(GOOD)
    holders[at] = replace(holders[at], **change)
    assert any(words in finding.what for finding in judge(holders))


@pytest.mark.req("AGB-02")
def test_a_hub_that_would_let_the_other_side_write_is_named():
    for zone, holder in (("online", IMPORTER), ("online", EXPORTER), ("offline", EXPORTER), ("offline", ONLINE)):
        assert len(judge_at_hub(zone, holder, [bytes(32)])) == 1
