"""The issuance service: who gets which token (001 spec-5 §7.3)."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.overlays.discovery.bodies import IssuancePlace
from veen.overlays.rpc.ends import RpcFailed
from veen.products.issuance.service import (
    IssuancePolicy,
    IssuancePolicyInvalid,
    IssuedTokenInvalid,
    TokenIssuer,
    check_answer,
)

CALLS, OTHER = stream_id_of("app/calls"), stream_id_of("app/other")
ALICE, BOB, PRINCIPAL = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
KEY = SigningKey(b"\x09" * 32)
POLICY = f"""
[[grant]]
streams = ["app/calls"]
clients = ["{ALICE.hex()}", "{PRINCIPAL.hex()}"]
ttl_sec = 600
rate = [5, 10]
per_hour = 2
"""


@dataclass
class Call:
    client_id: bytes


def issuer(text=POLICY, **options):
    clock = options.pop("clock", lambda: 1_000.0)
    return TokenIssuer(IssuancePolicy.from_toml(text), KEY, clock=clock, **options)


def ask(service, caller=ALICE, **args):
    arguments = {"subject_pk": caller, "streams": [CALLS], **args}
    return CapToken.from_bytes(asyncio.run(service.handle(arguments, Call(caller)))["token"])


def refusal(service, caller=ALICE, **args):
    with pytest.raises(RpcFailed) as failed:
        ask(service, caller, **args)
    return failed.value.code


@pytest.mark.req("CONN-03")
def test_a_grant_decides_subject_streams_time_and_rate():
    token = ask(issuer())
    token.verify()
    assert (token.issuer_pk, token.subject_pk, token.allow.stream_ids) == (KEY.public, ALICE, (CALLS,))
    assert (token.allow.ttl, token.allow.rate.per_sec, token.allow.rate.burst) == (600, 5, 10)
    assert ask(issuer(), ttl=60).allow.ttl == 60
    assert ask(issuer(), ttl=6_000).allow.ttl == 600


@pytest.mark.req("CONN-03")
def test_what_no_grant_gives_is_refused():
    assert refusal(issuer(), BOB) == "ISSUE.DENIED"
    assert refusal(issuer(), streams=[CALLS, OTHER]) == "ISSUE.DENIED"
    assert refusal(issuer(), subject_pk=BOB) == "ISSUE.SUBJECT"
    wrong: tuple[dict[str, Any], ...] = (
        {"streams": []},
        {"subject_pk": b"short"},
        {"ttl": 0},
        {"ttl": "1h"},
        {"more": 1},
    )
    for args in wrong:
        assert refusal(issuer(), **args) == "ISSUE.REQUEST"


def test_an_identity_that_proved_its_client_key_asks_for_either():
    service = issuer(identity_of={BOB: PRINCIPAL}.get)
    assert ask(service, BOB).subject_pk == BOB
    assert ask(service, BOB, subject_pk=PRINCIPAL).subject_pk == PRINCIPAL
    assert refusal(service, ALICE, subject_pk=PRINCIPAL) == "ISSUE.SUBJECT"


def test_a_caller_gets_so_many_tokens_in_an_hour():
    now = [0.0]
    service = issuer(clock=lambda: now[0])
    ask(service), ask(service)
    assert refusal(service) == "ISSUE.RATE"
    now[0] = 3_600.0
    ask(service)


_ROW = "[[grant]]\nstreams = ['a']\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "[[", "grant = 1", "[[grant]]", f"{_ROW}ttl_sec = 1", f"{_ROW}clients = ['zz']\nttl_sec = 1",
        f"{_ROW}clients = ['*']\nttl_sec = 0", f"{_ROW}clients = ['*']\nttl_sec = 1\nrate = [1]",
        f"{_ROW}clients = ['*']\nttl_sec = 1\nx = 1",
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_used_names_its_grant(text):
    with pytest.raises(IssuancePolicyInvalid):
        IssuancePolicy.from_toml(text)


def test_everybody_is_allowed_only_by_a_star():
    service = issuer("[[grant]]\nstreams=['app/calls']\nclients=['*']\nttl_sec=1\n")
    assert ask(service, BOB).subject_pk == BOB


def test_the_place_of_an_issuer_is_read_from_details_or_is_none():
    place = IssuancePlace(stream_id=CALLS, servers=(ALICE,))
    assert IssuancePlace.of_details(place.to_details()) == place
    for details in (
        None,
        1,
        {},
        {"issue": 1},
        {"issue": {"stream_id": b"x"}},
        {"issue": {"stream_id": CALLS, "servers": 1}},
    ):
        assert IssuancePlace.of_details(details) is None


def test_an_answer_that_is_another_token_is_refused():
    token = CapToken.issue(KEY, ALICE, [CALLS], ttl=1)
    assert check_answer({"token": token.to_bytes()}, ALICE, [CALLS]) == token
    for other in (
        b"",
        CapToken.issue(KEY, BOB, [CALLS], ttl=1).to_bytes(),
        CapToken.issue(KEY, ALICE, [OTHER], ttl=1).to_bytes(),
        replace(token, sig_chain=(bytes(64),)).to_bytes(),
    ):
        with pytest.raises(IssuedTokenInvalid):
            check_answer({"token": other}, ALICE, [CALLS])
    with pytest.raises(IssuedTokenInvalid):
        check_answer(None, ALICE, [CALLS])
