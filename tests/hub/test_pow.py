"""The proof-of-work prefilter (001 SH1+ §5.2, D-58, D-59)."""

import asyncio
import json
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub import builders as w
from tests.hub.servers import LiveHub, detail_of

from veen.core.errors import FormatError, VerifyError
from veen.core.hashing import H, Ht, u64be
from veen.core.objects.envelopes import SubmitRequest
from veen.core.pow import PowCookie, solve
from veen.hub.admission.pow import HEADER, Payments, batch_difficulty, check_pow


def leading_zero_bits(value: bytes) -> int:
    return len(value) * 8 - int.from_bytes(value, "big").bit_length()


@pytest.mark.req("SH1-04")
@given(st.binary(max_size=50), st.integers(0, 8))
def test_a_solution_holds_for_its_request_and_begins_with_zero_bits(request_, difficulty):
    cookie = solve(request_, difficulty)
    cookie.verify(request_, difficulty)
    value = Ht("veen/pow", cookie.challenge + u64be(cookie.nonce))
    assert leading_zero_bits(value) >= difficulty
    assert value == sha256(b"veen/pow\x00" + H(request_) + u64be(cookie.nonce)).digest()
    assert PowCookie.from_bytes(cookie.to_bytes()) == cookie


@pytest.mark.req("SH1-04", "ADM-02")
def test_it_pays_for_one_request_only_and_not_less_than_asked():
    cookie = solve(b"request", 8)
    cookie.verify(b"request", 3)
    for request_, difficulty in ((b"another", 8), (b"request", 9)):
        with pytest.raises(VerifyError):
            cookie.verify(request_, difficulty)
    worthless = next(
        candidate
        for nonce in range(1000)
        if not _holds(candidate := PowCookie(challenge=H(b"request"), nonce=nonce, difficulty=8))
    )
    with pytest.raises(VerifyError):
        worthless.verify(b"request", 8)


def _holds(cookie):
    return leading_zero_bits(Ht("veen/pow", cookie.challenge + u64be(cookie.nonce))) >= cookie.difficulty


def test_a_cookie_is_a_text_key_map_with_an_eight_bit_difficulty():
    assert solve(b"", 0).to_bytes()[:11] == b"\xa3\x69challenge"
    with pytest.raises(FormatError):
        PowCookie(challenge=b"", nonce=0, difficulty=256).to_bytes()


@pytest.mark.req("SH0-01")
@pytest.mark.parametrize("header", [None, "", "zz", "a0", "ff" * 300, solve(b"other", 4).to_bytes().hex()])
def test_whatever_is_in_the_header_the_answer_is_no(header):
    assert isinstance(check_pow(header, b"request", 4), str)
    assert isinstance(Payments().spend(header, b"request", 4), str)


def header_of(cookie):
    return cookie.to_bytes().hex()


def test_a_cookie_pays_once():
    payments = Payments()
    cookie = solve(b"request", 4)
    assert isinstance(payments.spend(header_of(cookie), b"request", 4), bytes)
    weaker = replace(cookie, difficulty=3)  # the same work under another name
    for again in (header_of(cookie), header_of(cookie).upper(), header_of(weaker)):
        assert "used before" in payments.spend(again, b"request", 3)
    other = solve(b"request", 4, cookie.nonce + 1)
    assert isinstance(payments.spend(header_of(other), b"request", 4), bytes)


def test_a_cookie_that_bought_nothing_pays_again():
    payments, cookie = Payments(), header_of(solve(b"request", 4))
    mark = payments.spend(cookie, b"request", 4)
    assert isinstance(mark, bytes)
    payments.refund(mark)
    assert isinstance(payments.spend(cookie, b"request", 4), bytes)
    assert isinstance(payments.spend(cookie, b"request", 4), str)


def test_the_memory_of_cookies_is_bounded_and_the_last_ones_are_in_it():
    capacity = 50
    payments = Payments(capacity)
    bodies = [b"request %d" % number for number in range(4 * capacity)]
    headers = [header_of(solve(body, 1)) for body in bodies]
    for number, (body, header) in enumerate(zip(bodies, headers, strict=True)):
        assert isinstance(payments.spend(header, body, 1), bytes)
        assert len(payments._recent) + len(payments._older) <= 2 * capacity
        for back in range(min(number, capacity)):
            assert isinstance(payments.spend(headers[number - back], bodies[number - back], 1), str)


def submit_body(seq):
    return b"\xa2\x01\x01\x02" + w.msg(seq=seq, token=None).to_bytes()


@pytest.fixture
def hub(tmp_path):
    with LiveHub(tmp_path, policy=w.policy(capability_gating=False, pow_difficulty=4)) as hub:
        yield hub


@pytest.mark.parametrize("path", ["/v1/submit", "/tooling/submit_batch"])
def test_a_hub_takes_a_cookie_once(hub, path):
    body = submit_body(1) if path == "/v1/submit" else w.msg(seq=1, token=None).to_bytes()
    cookie = solve(body, 4)
    assert hub.request("POST", path, body, {HEADER: header_of(cookie)})[0] == 200
    for _ in range(50):
        status, _, data = hub.request("POST", path, body, {HEADER: header_of(cookie)})
        detail = detail_of(data)
        assert (status, detail["detail_enum"], detail["field"]) == (403, "PREFILTER_REJECT", HEADER)
        assert "used before" in detail["reason"]
    # Who pays again is heard again: the message is a duplicate, and nothing is known of it but that.
    other = solve(body, 4, cookie.nonce + 1)
    status, _, data = hub.request("POST", path, body, {HEADER: header_of(other)})
    assert b"DUPLICATE" in data


def test_two_requests_at_once_cannot_share_a_cookie(hub):
    """JSON is read in another thread if there is much of it; the cookie is taken before."""
    body = json.dumps(SubmitRequest(msg=w.msg(seq=1, token=None)).to_json()).encode()
    body += b" " * (100_000 - len(body))
    headers = {HEADER: header_of(solve(body, 4)), "Content-Type": "application/json"}

    async def both():
        calls = [hub.api.call("submit", body, form="json", pow_header=headers[HEADER]) for _ in range(8)]
        return [reply.status for reply in await asyncio.gather(*calls)]

    assert sorted(hub.run(both())) == [200] + [403] * 7


def test_a_hub_without_time_keeps_no_cookie(hub):
    body = submit_body(1)
    headers = {HEADER: header_of(solve(body, 4))}
    sequencer = hub.services.sequencer
    most, sequencer._max_queue = sequencer._max_queue, 0
    for _ in range(3):
        assert hub.request("POST", "/v1/submit", body, headers)[0] == 503
    sequencer._max_queue = most
    assert hub.request("POST", "/v1/submit", body, headers)[0] == 200


@given(st.integers(1, 30), st.integers(1, 1000))
def test_a_batch_costs_about_as_much_as_its_messages_one_by_one(difficulty, count):
    asked = 2 ** batch_difficulty(difficulty, count)
    assert count * 2**difficulty <= asked < 2 * count * 2**difficulty
    assert batch_difficulty(0, count) == 0
