"""RPC0 as messages: bodies, correlation, idempotency, and what a log tells of calls (001 spec-1 §24, D-86)."""

import cbor2
import pytest

from veen.core.hashing import H
from veen.overlays.framework.schema import Draft
from veen.overlays.rpc import messages as rpc
from veen.testing.events import FakeLog


def view(log: FakeLog, as_of: int | None = None, **kwargs) -> rpc.RpcView:
    fold = rpc.RpcFold(**kwargs)
    return fold.view(fold.summarize(log.all()), as_of)


@pytest.mark.req("RPC-01")
def test_the_keys_of_a_request_stand_in_the_order_of_the_document():
    draft = rpc.call("sum", {"b": 1, "a": [2]}, timeout_ms=500, reply_to=bytes(32), idem=2**64 - 1)
    assert list(cbor2.loads(draft.body)) == ["method", "args", "timeout_ms", "reply_to", "idem"]
    assert list(cbor2.loads(rpc.call("ping", None).body).items()) == [("method", "ping"), ("args", None)]
    assert rpc.RpcRequest.from_bytes(rpc.call("ping", None).body).args is None


@pytest.mark.req("RPC-03", "RPC-04")
def test_a_reply_has_a_result_that_may_be_null_or_an_error():
    assert cbor2.loads(rpc.answer(bytes(32), None).body) == {"ok": True, "result": None}
    assert cbor2.loads(rpc.refuse(bytes(32), "NO", "because").body) == {
        "ok": False,
        "error": {"code": "NO", "detail": "because"},
    }
    assert rpc.RpcReply.from_bytes(cbor2.dumps({"ok": False, "result": None, "error": {"code": "NO"}})).error


@pytest.mark.req("RPC-04")
@pytest.mark.parametrize(
    "body",
    [
        {"ok": True},
        {"ok": True, "error": {"code": "NO"}},
        {"ok": True, "result": 1, "error": {"code": "NO"}},
        {"ok": False},
        {"ok": False, "result": 1},
        {"ok": False, "result": 1, "error": {"code": "NO"}},
    ],
)
def test_any_other_reply_is_refused(body):
    log = FakeLog()
    call = log.append(rpc.call("ping", None))
    log.append(Draft(schema=rpc.REPLY.id, body=cbor2.dumps(body), parent_id=call.msg_id))
    fold = rpc.RpcFold()
    summary = fold.summarize(log.all())
    assert [issue.code for issue in fold.issues(summary)] == ["RPC.REPLY"]
    assert fold.view(summary).calls[call.msg_id].status == "open"


@pytest.mark.req("RPC-02")
def test_a_reply_belongs_to_the_call_that_is_its_parent():
    log = FakeLog()
    first, second, third = log.extend(rpc.call("sum", [n]) for n in range(3))
    log.append(rpc.answer(second.msg_id, 2), client="server", stream="answers")
    log.append(rpc.refuse(first.msg_id, "NO"), client="server")
    orphan = log.append(rpc.answer(bytes(32), 0), client="server")
    calls = view(log)
    assert [calls.calls[e.msg_id].status for e in (first, second, third)] == ["failed", "answered", "open"]
    answer = calls.calls[second.msg_id].answer
    assert answer is not None
    assert answer.reply.result == 2
    assert calls.orphans == (orphan.msg_id,)


@pytest.mark.req("RPC-05")
def test_calls_with_one_idempotency_key_are_one_call_with_one_answer():
    log = FakeLog()
    first = log.append(rpc.call("pay", 5, idem=1), client="alice")
    again = log.append(rpc.call("pay", 5, idem=1), client="alice")
    others = [
        log.append(rpc.call("pay", 5, idem=1), client="bob"),
        log.append(rpc.call("pay", 5, idem=2), client="alice"),
        log.append(rpc.call("ask", 5, idem=1), client="alice"),
        log.append(rpc.call("pay", 5), client="alice"),
    ]
    log.append(rpc.answer(again.msg_id, "done"))
    calls = view(log)
    assert calls.calls[first.msg_id].answer == calls.calls[again.msg_id].answer is not None
    assert calls.calls[again.msg_id].same_as == first.msg_id
    assert [calls.calls[e.msg_id].status for e in others] == ["open"] * 4


@pytest.mark.req("RPC-05")
def test_answers_that_contradict_the_first_are_listed():
    log = FakeLog()
    call = log.append(rpc.call("pay", 5, idem=1))
    log.append(rpc.answer(call.msg_id, "done"))
    log.append(rpc.answer(call.msg_id, "done"))
    wrong = log.append(rpc.answer(call.msg_id, "twice"))
    assert view(log).calls[call.msg_id].conflicts == (wrong.msg_id,)


def test_expired_is_an_answer_only_if_there_is_no_other():
    log = FakeLog()
    call = log.append(rpc.call("pay", 5, idem=1))
    log.append(rpc.refuse(call.msg_id, rpc.EXPIRED))
    assert view(log).calls[call.msg_id].status == "failed"
    again = log.append(rpc.call("pay", 5, idem=1))
    log.append(rpc.answer(again.msg_id, "done"))
    assert view(log).calls[call.msg_id].status == "answered"
    assert view(log).calls[call.msg_id].conflicts == ()


@pytest.mark.req("RPC-06")
def test_an_unanswered_call_times_out_by_the_time_of_the_log():
    log = FakeLog()
    call = log.append(rpc.call("ping", None, timeout_ms=1_500), ts=1_000)
    assert view(log, 1_002).calls[call.msg_id].status == "open"
    assert view(log, 1_003).calls[call.msg_id].status == "timed_out"


def test_only_the_answers_of_known_servers_count():
    log = FakeLog()
    call = log.append(rpc.call("ping", None))
    log.append(rpc.answer(call.msg_id, "lie"), client="mallory")
    assert view(log, servers=[H(b"server")]).calls[call.msg_id].status == "open"
    log.append(rpc.answer(call.msg_id, "truth"), client="server")
    answer = view(log, servers=[H(b"server")]).calls[call.msg_id].answer
    assert answer is not None
    assert answer.reply.result == "truth"
