"""The tooling operations over a real socket (D-61), and who may call them."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
from dataclasses import replace

import cbor2
import pytest
from tests.hub import builders as w
from tests.hub.servers import ADMIN, READER, VERSION, LiveHub, detail_of
from tests.waiting import DEADLINE_SEC

from veen.core import cbor
from veen.core.hashing import H
from veen.core.labels import label_of, stream_id_of
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import CapAuthorize, StreamRegister
from veen.core.objects.envelopes import (
    CheckpointResponse,
    ErrorEnvelope,
    ProofResponse,
    StreamItem,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.objects.evidence import Equivocation
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import (
    AttachmentGrant,
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    CheckpointRangeRequest,
    ClientCursorRequest,
    ClientCursorResponse,
    ConsistencyRequest,
    ConsistencyResponse,
    HealthResponse,
    IdentityResponse,
    InspectRequest,
    InspectResponse,
    LabelRequest,
    LegacyItem,
    OkResponse,
    ProofAtRequest,
    ReadyResponse,
    RecordResponse,
    StatusResponse,
    StreamRegisterRequest,
    StreamsResponse,
    TailRequest,
    VersionRequest,
    VersionResponse,
)
from veen.core.pow import solve
from veen.hub.admission.pow import HEADER
from veen.hub.api.access import Access
from veen.hub.api.attachments import GRANT_HEADER
from veen.hub.process.config import AttachmentPolicy

FORMS = ["cbor", "json"]
COUNT = 11
ADMIN_HEADER = {"Authorization": f"Bearer {ADMIN.decode()}"}


def message(seq=1, **changes):
    return w.msg(token=w.FREE_TOKEN, seq=seq, **changes)


def submit(hub, msg):
    return hub.call("/v1/submit", SubmitRequest(msg=msg), SubmitResponse).receipt


def error(hub, path, request, *, form="cbor", headers=None):
    body = request.to_bytes() if form == "cbor" else json.dumps(request.to_json()).encode()
    status, _, data = hub.request("POST", path, body, {"Content-Type": f"application/{form}", **(headers or {})})
    envelope = ErrorEnvelope.from_bytes(data) if form == "cbor" else ErrorEnvelope.from_json(json.loads(data))
    return status, envelope


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """COUNT entries in one label, one in another; nobody writes to it."""
    with LiveHub(
        tmp_path_factory.mktemp("log"),
        limits=Limits(max_checkpoint_interval=4),
        policy=w.policy(capability_gating=False, preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN}),
        resolver=w.resolver(w.STREAM, w.OTHER_STREAM),
    ) as hub:
        hub.receipts = [submit(hub, message(seq)) for seq in range(1, COUNT + 1)]
        hub.other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
        submit(hub, w.msg(token=None, label=hub.other, key=w.BOB))
        yield hub


@pytest.fixture
def hub(tmp_path):
    with LiveHub(tmp_path, policy=w.policy(), access=Access.of(admin_tokens=[ADMIN])) as live:
        yield live


# --- capabilities -----------------------------------------------------------------------------------------


@pytest.mark.req("API-18", "CAP-11", "CAP-12", "OP0-02")
@pytest.mark.parametrize("form", FORMS)
def test_authorize_journals_the_token_and_opens_the_stream(hub, form):
    answer = hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse, form=form)
    assert answer.auth_ref == w.TOKEN.auth_ref()
    assert answer.expires_at == w.NOW + w.TOKEN.allow.ttl
    answer.record.verify(w.HUB.public)
    assert answer.record.hub_ts == w.NOW
    assert answer.record.body == CapAuthorize.of(w.TOKEN)
    assert submit(hub, w.msg()).stream_seq == 1


@pytest.mark.req("CAP-10", "CAP-11", "KEX1-04")
def test_authorizing_again_returns_the_first_record_and_extends_nothing(tmp_path):
    """D-47, also after a restart."""
    times = [w.NOW]
    options = {"policy": w.policy(), "clock": lambda: times[0]}
    with LiveHub(tmp_path, **options) as hub:
        first = hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse)
        times[0] += 100
        assert hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse) == first
    with LiveHub(tmp_path, **options) as hub:
        times[0] += 100
        assert hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse) == first
        submit(hub, w.msg())
        times[0] = first.expires_at + 1
        assert hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse) == first
        status, envelope = error(hub, "/v1/submit", SubmitRequest(msg=w.msg(seq=2)))
        assert (status, envelope.detail["detail_enum"]) == (400, "CAP_TTL")


@pytest.mark.req("CAP-06", "CAP-08")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_token_is_refused_if_any_of_its_links_is_not_the_issuers(hub, number):
    """spec §6: a chain of three, of which one link was signed by somebody else, or by the subject."""
    good = w.TOKEN.renew(w.ISSUER).renew(w.ISSUER)
    for signer in (w.STRANGER, w.ALICE):
        links = list(good.sig_chain)
        links[number] = signer.sign(good._link_digest(links[number - 1] if number else bytes(64)))
        forged = replace(good, sig_chain=tuple(links))
        status, envelope = error(hub, "/tooling/authorize", forged)
        assert (status, envelope.detail["detail_enum"]) == (403, "CAP_INVALID")
        status, envelope = error(hub, "/v1/submit", SubmitRequest(msg=w.msg(token=forged)))
        assert (status, envelope.detail["detail_enum"]) == (403, "CAP_MISSING")
    hub.call("/tooling/authorize", good, AuthorizeResponse)
    submit(hub, w.msg(token=good))


def test_two_that_authorize_at_once_get_one_record(hub):
    async def both():
        return await asyncio.gather(*(hub.api.call("authorize", w.TOKEN.to_bytes()) for _ in range(5)))

    replies = hub.run(both())
    assert len({reply.body for reply in replies}) == 1
    assert AuthorizeResponse.from_bytes(replies[0].body).record.seq == 1


def test_a_preloaded_token_is_authorised_by_its_first_message(log):
    answer = log.call("/tooling/authorize", w.FREE_TOKEN, AuthorizeResponse)
    assert answer.record.hub_ts == log.receipts[0].hub_ts


@pytest.mark.req("CAP-20")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "token",
    [CapToken.issue(w.STRANGER, w.ALICE.public, [w.STREAM], ttl=1), w.forged(w.TOKEN)],
    ids=["issuer", "forged"],
)
def test_a_token_of_a_stranger_is_refused(hub, token, form):
    status, envelope = error(hub, "/tooling/authorize", token, form=form)
    assert (status, envelope.code, envelope.detail["detail_enum"]) == (403, "E.CAP", "CAP_INVALID")


@pytest.mark.req("CAP-07")
def test_a_token_with_too_many_links_has_the_wrong_size(hub):
    tree = w.TOKEN.to_tree()
    tree[5] = tree[5] * 9
    status, _, data = hub.request("POST", "/tooling/authorize", cbor2.dumps(tree))
    assert (status, ErrorEnvelope.from_bytes(data).code) == (413, "E.SIZE")


def test_a_token_without_end_has_an_end_that_fits(hub):
    token = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=2**64 - 1)
    assert hub.call("/tooling/authorize", token, AuthorizeResponse).expires_at == 2**64 - 1
    status = hub.call("/tooling/cap_status", CapStatusRequest(auth_ref=token.auth_ref()), CapStatusResponse)
    assert status.expires_at == 2**64 - 1


@pytest.mark.req("CAP-12", "CAP-17")
@pytest.mark.parametrize("form", FORMS)
def test_cap_status_tells_what_the_hub_holds(log, form):
    request = CapStatusRequest(auth_ref=w.FREE_TOKEN.auth_ref())
    status = log.call("/tooling/cap_status", request, CapStatusResponse, form=form)
    assert (status.token, status.issued_at) == (w.FREE_TOKEN.to_bytes(), w.NOW)
    assert error(log, "/tooling/cap_status", CapStatusRequest(auth_ref=bytes(32)), form=form)[0] == 404


@pytest.mark.parametrize("form", FORMS)
def test_a_registered_stream_resolves_also_after_a_restart(tmp_path, form):
    """D-23."""
    stream_id = stream_id_of("registered")
    options = {"policy": w.policy(capability_gating=False), "access": Access.of(admin_tokens=[ADMIN])}
    label = label_of(w.ROUTING_KEY, stream_id, 0)
    with LiveHub(tmp_path, **options) as hub:
        status, _, _ = hub.request("POST", "/v1/submit", SubmitRequest(msg=w.msg(token=None, label=label)).to_bytes())
        assert status == 403
        request = StreamRegisterRequest(stream_id=stream_id)
        response = hub.call("/tooling/streams", request, RecordResponse, form=form, headers=ADMIN_HEADER)
        response.record.verify(w.HUB.public)
        assert response.record.body == StreamRegister(stream_id=stream_id)
        again = hub.call("/tooling/streams", request, RecordResponse, form=form, headers=ADMIN_HEADER)
        assert again == response
    with LiveHub(tmp_path, **options, resolver=w.resolver(w.STREAM)) as hub:
        assert submit(hub, w.msg(token=None, label=label)).stream_seq == 1
        _, _, data = hub.request("GET", "/tooling/streams", headers=ADMIN_HEADER)
        assert StreamsResponse.from_json(json.loads(data)).stream_ids == (stream_id,)


def test_what_changes_the_hub_is_closed_unless_configured(log, hub):
    """Default closed: 403 with a hint. With administrators named, 401 without credentials or with unknown ones."""
    request = StreamRegisterRequest(stream_id=bytes(32))
    status, envelope = error(log, "/tooling/streams", request, headers=ADMIN_HEADER)
    assert (status, envelope.code) == (403, "E.FORBIDDEN")
    assert "admin_token_files" in envelope.detail["hint"]
    assert error(hub, "/tooling/streams", request)[0] == 401
    assert error(hub, "/tooling/streams", request, headers={"Authorization": "Bearer guess"})[0] == 401
    assert error(hub, "/tooling/streams", request, headers={"Authorization": "Basic guess"})[0] == 401


# --- batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_answered_message_by_message_in_order(tmp_path, form):
    with LiveHub(tmp_path, workers=1) as hub:
        messages = [message(1), message(2), message(2), w.msg(token=None), message(3), message(9)]
        if form == "cbor":
            body = b"".join(msg.to_bytes() for msg in messages) + b"\x80"
        else:
            body = json.dumps([msg.to_json() for msg in messages] + [[]]).encode()
        status, heads, data = hub.request(
            "POST", "/tooling/submit_batch", body, {"Content-Type": f"application/{form}"}
        )
        assert status == 200
        if form == "cbor":
            assert heads["Content-Type"] == "application/cbor-seq"
            items = list(cbor.sequence(data))
            kinds = [item[0] >> 5 for item in items]
            receipts = [Receipt.from_bytes(item) for item, kind in zip(items, kinds, strict=True) if kind == 4]
            errors = [ErrorEnvelope.from_bytes(item) for item, kind in zip(items, kinds, strict=True) if kind == 5]
        else:
            items = json.loads(data)
            kinds = [4 if isinstance(item, list) else 5 for item in items]
            receipts = [Receipt.from_json(item) for item in items if isinstance(item, list)]
            errors = [ErrorEnvelope.from_json(item) for item in items if isinstance(item, dict)]
        assert kinds == [4, 4, 5, 5, 4, 5, 5]
        assert [receipt.stream_seq for receipt in receipts] == [1, 2, 3]
        assert [(error.detail or {})["detail_enum"] for error in errors] == [
            "DUPLICATE",
            "CAP_MISSING",
            "CLIENT_SEQ",
            "CBOR_INVALID",
        ]


@pytest.mark.parametrize(
    ("body", "status"), [(message().to_bytes()[:-3], 400), (b"\x80" * 1001, 413), (b"", 200), (b"\xff", 400)]
)
def test_a_batch_that_is_no_sequence_admits_nothing(hub, body, status):
    got, _, _ = hub.request("POST", "/tooling/submit_batch", body)
    assert got == status
    assert hub.on_loop(lambda: list(hub.services.sequencer.store.labels())) == []


def test_a_batch_pays_its_proof_of_work_at_once_and_more(tmp_path):
    policy = w.policy(pow_difficulty=4, preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
    with LiveHub(tmp_path, policy=policy) as hub:
        body = b"".join(message(seq).to_bytes() for seq in range(1, 9))
        for difficulty, expected in ((4, 403), (6, 403), (7, 200)):
            cookie = solve(body, difficulty).to_bytes().hex()
            assert hub.request("POST", "/tooling/submit_batch", body, {HEADER: cookie})[0] == expected


def test_an_overloaded_hub_tells_so_for_each_message(tmp_path):
    with LiveHub(tmp_path, max_queue=0) as hub:
        status, _, data = hub.request("POST", "/tooling/submit_batch", message(1).to_bytes() + message(2).to_bytes())
        codes = [ErrorEnvelope.from_bytes(item).code for item in cbor.sequence(data)]
        assert (status, codes) == (200, ["E.UNAVAILABLE"] * 2)


# --- proofs and checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_proof_at_proves_an_old_leaf_under_a_later_root(log, form):
    """D-34."""
    for seq in (1, 4, 7, COUNT):
        for size in (seq, COUNT):
            request = ProofAtRequest(label=w.LABEL, stream_seq=seq, tree_size=size)
            proof = log.call("/tooling/proof_at", request, ProofResponse, form=form).mmr_proof
            leaf, root = log.receipts[seq - 1].leaf_hash, log.receipts[size - 1].mmr_root
            proof.verify(leaf_hash=leaf, stream_seq=seq, expected_root=root, tree_size=size)


@pytest.mark.parametrize("form", FORMS)
def test_consistency_proves_that_the_log_only_grew(log, form):
    request = ConsistencyRequest(label=w.LABEL, from_size=3, to_size=COUNT)
    proof = log.call("/tooling/consistency", request, ConsistencyResponse, form=form).consistency_proof
    roots = {"from_root": log.receipts[2].mmr_root, "to_root": log.receipts[-1].mmr_root}
    proof.verify(from_size=3, to_size=COUNT, **roots)


@pytest.mark.parametrize(
    ("path", "request_", "status"),
    [
        ("/tooling/proof_at", ProofAtRequest(label=w.LABEL, stream_seq=0, tree_size=1), 400),
        ("/tooling/proof_at", ProofAtRequest(label=w.LABEL, stream_seq=3, tree_size=2), 400),
        ("/tooling/proof_at", ProofAtRequest(label=w.LABEL, stream_seq=3, tree_size=99), 404),
        ("/tooling/proof_at", ProofAtRequest(label=bytes(32), stream_seq=3, tree_size=3), 404),
        ("/tooling/consistency", ConsistencyRequest(label=w.LABEL, from_size=0, to_size=1), 400),
        ("/tooling/consistency", ConsistencyRequest(label=w.LABEL, from_size=5, to_size=4), 400),
        ("/tooling/consistency", ConsistencyRequest(label=w.LABEL, from_size=5, to_size=99), 404),
        ("/tooling/checkpoint_latest", LabelRequest(label=bytes(32)), 404),
        ("/tooling/inspect", InspectRequest(label=bytes(32)), 404),
    ],
)
def test_proofs_of_what_is_not_there_are_refused(log, path, request_, status):
    assert error(log, path, request_)[0] == status


@pytest.mark.req("API-19")
@pytest.mark.parametrize("form", FORMS)
def test_the_latest_checkpoint_of_a_label_covers_all_of_it(log, form):
    response = log.call(
        "/tooling/checkpoint_latest", LabelRequest(label=w.LABEL), CheckpointResponse, form=form
    ).checkpoint
    response.verify(w.HUB.public)
    assert (response.upto_seq, response.mmr_root) == (COUNT, log.receipts[-1].mmr_root)


def checkpoints(hub, form="cbor", **fields):
    request = CheckpointRangeRequest(**{"epoch_min": 0, "epoch_max": 2**64 - 1, **fields})
    data = hub.call("/tooling/checkpoint_range", request, form=form)
    if form == "json":
        return [Checkpoint.from_json(item) for item in json.loads(data)]
    return [Checkpoint.from_bytes(item) for item in cbor.sequence(data)]


@pytest.mark.req("API-19", "DR0-01", "GEN-25")
@pytest.mark.parametrize("form", FORMS)
def test_a_range_of_checkpoints_is_ordered_by_epoch_and_label(tmp_path, form):
    """D-65."""
    profile, clock = PRESETS["ref"], [w.NOW]
    policy = w.policy(profiles=(profile,), capability_gating=False)
    resolver = w.resolver(w.STREAM, w.OTHER_STREAM, epoch_sec=60)
    with LiveHub(tmp_path, policy=policy, resolver=resolver, clock=lambda: clock[0]) as hub:
        expected = []
        for _ in range(3):
            epoch = clock[0] // 60
            for stream in (w.STREAM, w.OTHER_STREAM):
                label = label_of(w.ROUTING_KEY, stream, epoch)
                submit(hub, w.msg(token=None, profile=profile, label=label))
                expected.append((epoch, label))
            clock[0] += 60
        expected.sort()
        first = expected[0][0]

        def listed(**fields):
            return [(checkpoint.epoch, checkpoint.label_curr) for checkpoint in checkpoints(hub, form, **fields)]

        assert listed() == expected
        assert listed(epoch_min=first + 1, epoch_max=first + 1) == expected[2:4]
        assert listed(epoch_max=first - 1) == listed(epoch_min=5, epoch_max=4) == []
        assert listed(epoch_min=first, after=expected[0][1]) == expected[1:]
        assert listed(label=expected[3][1]) == expected[3:4]
        assert listed(label=expected[3][1], epoch_max=first) == listed(label=bytes(32)) == []
    with LiveHub(tmp_path, policy=policy, resolver=resolver, clock=lambda: clock[0]) as hub:
        assert [(checkpoint.epoch, checkpoint.label_curr) for checkpoint in checkpoints(hub, form)] == expected


# --- a client's own cursor (D-162) ------------------------------------------------------------------------


def cursor_request(key=w.ALICE, **changes):
    return ClientCursorRequest.issue(key, **{"label": w.LABEL, "ts": w.NOW, **changes})


@pytest.mark.parametrize("form", FORMS)
def test_a_client_asks_for_its_own_cursor(log, form):
    answer = log.call("/tooling/client_cursor", cursor_request(client_seq=3), ClientCursorResponse, form=form)
    assert answer == ClientCursorResponse(
        last_client_seq=COUNT, last_prev_ack=0, stream_seq=3, leaf=log.receipts[2].leaf_hash
    )
    plain = log.call("/tooling/client_cursor", cursor_request(), ClientCursorResponse, form=form)
    assert plain == ClientCursorResponse(last_client_seq=COUNT, last_prev_ack=0)


@pytest.mark.parametrize(
    "request_",
    [
        cursor_request(w.BOB, client_seq=1),  # a client without entries in this label
        cursor_request(label=bytes(32), client_seq=1),  # a label without entries
    ],
)
def test_a_cursor_shows_nothing_of_others(log, request_):
    answer = log.call("/tooling/client_cursor", request_, ClientCursorResponse)
    assert answer == ClientCursorResponse(last_client_seq=0, last_prev_ack=0)


@pytest.mark.parametrize("client_seq", [0, COUNT + 1, 2**64 - 1])
def test_a_number_that_was_not_accepted_has_no_entry(log, client_seq):
    answer = log.call("/tooling/client_cursor", cursor_request(client_seq=client_seq), ClientCursorResponse)
    assert (answer.last_client_seq, answer.stream_seq, answer.leaf) == (COUNT, None, None)


@pytest.mark.parametrize("change", ["label", "client_id", "client_seq", "ts", "sig"])
def test_a_cursor_request_is_signed_by_its_client_in_every_field(log, change):
    request = cursor_request(client_seq=3)
    changes = {"label": bytes(32), "client_id": w.BOB.public, "client_seq": 4, "ts": w.NOW + 1, "sig": bytes(64)}
    forged = replace(request, **{change: changes[change]})
    data = log.call("/tooling/client_cursor", forged, status=409)
    assert detail_of(data)["detail_enum"] == "SIG_INVALID"


def test_a_cursor_request_counts_within_the_epoch_skew(log):
    skew = Limits().max_epoch_skew_sec
    for ts in (w.NOW - skew, w.NOW + skew):
        log.call("/tooling/client_cursor", cursor_request(ts=ts), ClientCursorResponse)
    for ts in (w.NOW - skew - 1, w.NOW + skew + 1, 0, 2**64 - 1):
        data = log.call("/tooling/client_cursor", cursor_request(ts=ts), status=400)
        assert (ErrorEnvelope.from_bytes(data).code, detail_of(data)["field"]) == ("E.BAD_REQUEST", "ts")


def test_a_cursor_needs_no_right_to_read(tmp_path):
    with LiveHub(tmp_path, access=Access.of(read_tokens=[READER])) as hub:
        hub.call("/v1/submit", SubmitRequest(msg=message()), SubmitResponse)
        hub.call("/tooling/inspect", InspectRequest(), status=401)
        answer = hub.call("/tooling/client_cursor", cursor_request(client_seq=1), ClientCursorResponse)
        assert (answer.last_client_seq, answer.stream_seq) == (1, 1)


def test_a_cursor_survives_retirement_and_restart(tmp_path):
    with LiveHub(tmp_path) as hub:
        sent = [message(seq, ack=seq - 1) for seq in (1, 2, 3)]
        receipts = [hub.call("/v1/submit", SubmitRequest(msg=msg), SubmitResponse).receipt for msg in sent]
        before = hub.call("/tooling/client_cursor", cursor_request(client_seq=2), ClientCursorResponse)
        hub.on_loop(hub.services.sequencer.store.retire)
        assert hub.call("/tooling/client_cursor", cursor_request(client_seq=2), ClientCursorResponse) == before
    with LiveHub(tmp_path) as hub:
        after = hub.call("/tooling/client_cursor", cursor_request(client_seq=2), ClientCursorResponse)
    assert before == after
    assert after == ClientCursorResponse(last_client_seq=3, last_prev_ack=2, stream_seq=2, leaf=receipts[1].leaf_hash)


def test_a_cursor_tells_only_what_is_durable(tmp_path):
    """The sequencer may be ahead of the disk: a crash would make a liar of an answer about that."""
    with LiveHub(tmp_path) as hub:
        hub.call("/v1/submit", SubmitRequest(msg=message()), SubmitResponse)

        async def ahead():
            sequencer = hub.services.sequencer
            waiting = sequencer.submit(message(2).to_bytes())
            reply = await hub.api.call("client_cursor", cursor_request(client_seq=2).to_bytes())
            done = waiting.done()
            await waiting
            return done, ClientCursorResponse.from_bytes(reply.body)

        done, answer = hub.run(ahead())
        assert (done, answer) == (False, ClientCursorResponse(last_client_seq=1, last_prev_ack=0))


@pytest.mark.parametrize("form", FORMS)
def test_inspect_counts_without_reading(log, form):
    """GEN-24."""
    response = log.call("/tooling/inspect", InspectRequest(), InspectResponse, form=form)
    assert (response.label_count, response.more) == (2, False)
    assert {info.label: info.last_stream_seq for info in response.labels} == {w.LABEL: COUNT, log.other: 1}
    single = log.call("/tooling/inspect", InspectRequest(label=w.LABEL), InspectResponse, form=form)
    assert single.labels[0].last_mmr_root == log.receipts[-1].mmr_root
    rest = log.call("/tooling/inspect", InspectRequest(after_epoch=0, after=response.labels[0].label), InspectResponse)
    assert rest.labels == response.labels[1:]


# --- evidence ---------------------------------------------------------------------------------------------


@pytest.mark.req("API-20")
@pytest.mark.parametrize("form", FORMS)
def test_proof_of_equivocation_is_kept_and_anything_else_is_not(log, form):
    receipt = log.receipts[0]
    fields = {"label": receipt.label, "stream_seq": 1, "leaf_hash": bytes(32), "hub_ts": w.NOW}
    evidence = Equivocation.of(receipt, Receipt.issue(w.HUB, mmr_root=bytes(32), **fields), one_pk=w.HUB.public)
    log.services.evidence.clear()
    assert log.call("/tooling/report_equivocation", evidence, OkResponse, form=form).ok
    assert log.services.evidence == [evidence]
    agreeing = Equivocation(hub_pks=(w.HUB.public,), first=receipt, second=receipt)
    elsewhere = Equivocation.of(
        Receipt.issue(w.STRANGER, mmr_root=bytes(32), **fields),
        Receipt.issue(w.STRANGER, mmr_root=bytes([1]) * 32, **fields),
        one_pk=w.STRANGER.public,
    )
    for other in (agreeing, elsewhere):
        assert error(log, "/tooling/report_equivocation", other, form=form)[0] == 400
    assert log.services.evidence == [evidence]


# --- attachments ------------------------------------------------------------------------------------------


def grant(key, token, coid):
    return {GRANT_HEADER: AttachmentGrant.issue(key, token.auth_ref(), coid).to_bytes().hex()}


def test_attachments_travel_by_the_hash_of_their_bytes(hub):
    """D-15."""
    hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse)
    data = b"ciphertext of an attachment"
    coid = H(data)
    path = f"/tooling/attachment/{coid.hex()}"
    assert hub.request("GET", path)[0] == 404
    headers = grant(w.ALICE, w.TOKEN, coid)
    assert [hub.request("PUT", path, data, headers)[0] for _ in range(2)] == [201, 200]
    status, heads, page = hub.request("GET", path)
    assert (status, heads["Content-Type"], page) == (200, "application/octet-stream", data)
    assert hub.request("PUT", path, data + b"!", headers)[0] == 400
    assert hub.request("POST", path, data)[0] == 405


def test_an_attachment_needs_the_grant_of_a_writer(tmp_path):
    times = [w.NOW]
    with LiveHub(tmp_path, policy=w.policy(), clock=lambda: times[0]) as hub:
        hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse)
        data = b"x"
        coid = H(data)
        path = f"/tooling/attachment/{coid.hex()}"

        def refused(headers):
            status, _, answer = hub.request("PUT", path, data, headers)
            return status, detail_of(answer)["detail_enum"]

        assert refused({}) == refused({GRANT_HEADER: "zz"}) == (403, "CAP_MISSING")
        assert refused(grant(w.ALICE, w.FREE_TOKEN, coid)) == (403, "CAP_MISSING")
        assert refused(grant(w.BOB, w.TOKEN, coid)) == (403, "AUTH_REF")
        assert refused(grant(w.ALICE, w.TOKEN, bytes(32))) == (403, "AUTH_REF")
        times[0] += w.TOKEN.allow.ttl + 1
        assert refused(grant(w.ALICE, w.TOKEN, coid)) == (400, "CAP_TTL")


def test_attachments_have_a_size_and_a_name(tmp_path):
    policy = w.policy(capability_gating=False)
    with LiveHub(tmp_path, policy=policy, limits=Limits(max_attachment_bytes=100)) as hub:
        for size, expected in ((116, 201), (117, 413)):  # the tag of 16 bytes is not counted (D-16)
            data = bytes(size)
            assert hub.request("PUT", f"/tooling/attachment/{H(data).hex()}", data)[0] == expected
        for name in ("", "00", "zz" * 32, "AA" * 32, "../" * 10 + "etc/passwd"):
            assert hub.request("GET", f"/tooling/attachment/{name}")[0] == 400
    with LiveHub(tmp_path, attach=False) as hub:
        assert hub.request("GET", f"/tooling/attachment/{'00' * 32}")[0] == 404


def test_a_damaged_attachment_is_not_served(tmp_path):
    with LiveHub(tmp_path, policy=w.policy(capability_gating=False)) as hub:
        coid = H(b"whole").hex()
        hub.request("PUT", f"/tooling/attachment/{coid}", b"whole")
        (tmp_path / "attachments" / coid[:2] / coid).write_bytes(b"hole!")
        status, _, data = hub.request("GET", f"/tooling/attachment/{coid}")
        assert (status, detail_of(data)["reason"]) == (503, "corrupt")
        assert hub.request("PUT", f"/tooling/attachment/{coid}", b"hole!")[0] == 400
        assert hub.request("PUT", f"/tooling/attachment/{coid}", b"whole")[0] == 201  # whoever has it brings it back
        assert hub.request("GET", f"/tooling/attachment/{coid}")[2] == b"whole"


def attach(hub, data, headers=None, query=""):
    """PUT an attachment: status, retry_after, and the detail of a refusal."""
    path = f"/tooling/attachment/{H(data).hex()}{query}"
    status, _, answer = hub.request("PUT", path, data, headers)
    if status in (200, 201):
        return status, None, {}
    envelope = ErrorEnvelope.from_bytes(answer)
    return status, envelope.retry_after, envelope.detail or {}


def test_an_upload_costs_tokens_of_its_capability_by_its_size(tmp_path):
    """One token for each 64 KiB that is begun; a debt is paid before the next one; messages have their own bucket."""
    times = [w.NOW]
    with LiveHub(tmp_path, policy=w.policy(), clock=lambda: times[0]) as hub:
        hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse)  # 2 a second, 5 at once

        def put(data):
            return attach(hub, data, grant(w.ALICE, w.TOKEN, H(data)))

        assert put(bytes(3 * 65_536))[0] == 201  # 3 of 5
        assert put(b"x")[0] == 201  # 1, as it begins a block
        status, retry_after, detail = put(bytes(65_537))  # 2 of the 1 that is left
        assert (status, retry_after, detail["detail_enum"]) == (429, 1, "CAP_RATE")
        times[0] += 1
        assert put(bytes(65_537))[0] == 201  # 2 of 3
        times[0] += 10
        assert put(b"y" * 10 * 65_536)[0] == 201  # 10 of 5: a full bucket, and a debt of 5
        assert put(b"z")[:2] == (429, 3)
        times[0] += 2
        assert put(b"z")[:2] == (429, 1)
        times[0] += 1
        assert put(b"z")[0] == 201
        receipts = [submit(hub, w.msg(seq=seq, token=w.TOKEN)) for seq in range(1, 6)]
        assert receipts[-1].stream_seq == 5


def test_bytes_that_are_wrong_or_here_already_cost_the_same(tmp_path):
    with LiveHub(tmp_path, policy=w.policy()) as hub:
        hub.call("/tooling/authorize", w.TOKEN, AuthorizeResponse)
        data = bytes(2 * 65_536)
        headers, path = grant(w.ALICE, w.TOKEN, H(data)), f"/tooling/attachment/{H(data).hex()}"
        assert hub.request("PUT", path, data[:-1], headers)[0] == 400
        assert hub.request("PUT", path, data, headers)[0] == 201
        assert hub.request("PUT", path, data, headers)[0] == 429


def test_a_rate_of_zero_lets_nothing_through(tmp_path):
    token = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=600, rate=Rate(per_sec=5, burst=0))
    with LiveHub(tmp_path, policy=w.policy()) as hub:
        hub.call("/tooling/authorize", token, AuthorizeResponse)
        assert attach(hub, b"x", grant(w.ALICE, token, H(b"x")))[:2] == (429, None)


def test_the_quota_of_a_client_counts_over_all_its_capabilities(tmp_path):
    tokens = [w.FREE_TOKEN, CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=10**8)]
    with LiveHub(tmp_path, policy=w.policy()) as hub:
        hub.services.attachment_policy = AttachmentPolicy(client_bytes=100)
        for token in tokens:
            hub.call("/tooling/authorize", token, AuthorizeResponse)
        assert attach(hub, b"a" * 60, grant(w.ALICE, tokens[0], H(b"a" * 60)))[0] == 201
        for token in tokens:
            status, _, detail = attach(hub, b"b" * 41, grant(w.ALICE, token, H(b"b" * 41)))
            assert (status, detail["detail_enum"]) == (413, "ATTACHMENT_QUOTA")
            assert (detail["used"], detail["actual"], detail["max_allowed"]) == (60, 101, 100)
        assert attach(hub, b"b" * 40, grant(w.ALICE, tokens[1], H(b"b" * 40)))[0] == 201
    with LiveHub(tmp_path, policy=w.policy()) as hub:  # what is kept is kept: the quota counts it after a restart too
        hub.services.attachment_policy = AttachmentPolicy(client_bytes=100)
        assert attach(hub, b"c", grant(w.ALICE, tokens[0], H(b"c")))[0] == 413


def test_uploads_without_a_capability_share_a_quota_and_a_rate(tmp_path):
    limits = Limits(max_cap_rate_per_sec=1, max_cap_rate_burst=3)
    with LiveHub(tmp_path, policy=w.policy(capability_gating=False), limits=limits) as hub:
        hub.services.attachment_policy = AttachmentPolicy(open_bytes=10)
        assert attach(hub, b"12345678")[0] == 201
        assert attach(hub, b"abc")[2]["detail_enum"] == "ATTACHMENT_QUOTA"
        assert attach(hub, b"ab")[0] == 201
        assert attach(hub, b"ab")[2]["detail_enum"] == "CAP_RATE"


def test_an_attachment_names_its_entry_whole_or_not_at_all(tmp_path):
    label, client = f"label={w.LABEL.hex()}", f"client_id={w.ALICE.public.hex()}"
    with LiveHub(tmp_path, policy=w.policy()) as hub:
        hub.call("/tooling/authorize", w.FREE_TOKEN, AuthorizeResponse)
        headers = grant(w.ALICE, w.FREE_TOKEN, H(b"x"))
        for wrong in (label, client, "client_seq=1", f"{label}&client_seq=1", f"{label}&{client}&client_seq=0"):
            assert attach(hub, b"x", headers, f"?{wrong}")[0] == 400
        assert attach(hub, b"x", headers, f"?{label}&{client}&client_seq={2**63}")[0] == 400
        status, _, detail = attach(hub, b"x", headers, f"?{label}&client_id={w.BOB.public.hex()}&client_seq=1")
        assert (status, detail["detail_enum"], detail["field"]) == (403, "AUTH_REF", "client_id")
        assert attach(hub, b"x", headers, f"?{label}&{client}&client_seq=1")[0] == 201


@pytest.mark.req("API-19")
@pytest.mark.parametrize("accept", [None, "application/json"])
def test_checkpoints_are_had_by_get_as_well(log, accept):
    """001 spec-1 §16: GET label -> CHECKPOINT; GET epoch range -> a CBOR sequence of CHECKPOINT."""
    headers = {"Accept": accept} if accept else {}

    def ask(url):
        status, _, data = log.request("GET", url, headers=headers)
        return status, data

    status, data = ask(f"/tooling/checkpoint_latest?label={w.LABEL.hex()}")
    latest = Checkpoint.from_json(json.loads(data)) if accept else Checkpoint.from_bytes(data)
    latest.verify(w.HUB.public)
    assert (status, latest.upto_seq, latest.label_curr) == (200, COUNT, w.LABEL)
    assert latest in checkpoints(log)

    def listed(query):
        status, data = ask(f"/tooling/checkpoint_range{query}")
        assert status == 200
        if accept:
            return [Checkpoint.from_json(item) for item in json.loads(data)]
        return [Checkpoint.from_bytes(item) for item in cbor.sequence(data)]

    epoch, label = latest.epoch, f"label={w.LABEL.hex()}"
    assert listed("") == checkpoints(log)
    assert listed(f"?epoch_min={epoch}&epoch_max={epoch}&{label}") == [latest]
    assert listed(f"?epoch_min={epoch + 1}&{label}") == []
    if epoch:
        assert listed(f"?epoch_max={epoch - 1}&{label}") == []
    assert listed(f"?epoch_min={epoch}&after={w.LABEL.hex()}") == checkpoints(log, epoch_min=epoch, after=w.LABEL)


@pytest.mark.req("API-19")
@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/submit", "/v1/submit"),
        ("/stream", "/v1/stream"),
        ("/authorize", "/tooling/authorize"),
        ("/report_equivocation", "/tooling/report_equivocation"),
        ("/checkpoint_latest", "/tooling/checkpoint_latest"),
        ("/checkpoint_range", "/tooling/checkpoint_range"),
        ("/anchor", "/tooling/anchor"),
        ("/anchor/", "/tooling/anchor"),
        ("/tooling/submit", "/v1/submit"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_the_404_of_a_bare_path_names_the_right_one(log, path, right, method):
    """001 spec-1 §16 and products §4.9 write the paths without a prefix."""
    status, _, data = log.request(method, f"{path}?label=1", b"{}", {"Accept": "application/json"})
    error = json.loads(data)
    assert (status, error["code"]) == (404, "E.NOT_FOUND")
    assert f" is at {right} (" in error["detail"]["hint"]
    assert error["detail"]["hint"] in error["message"]


def test_the_404_of_another_path_names_none(log):
    status, _, data = log.request("GET", "/nowhere/submitted", headers={"Accept": "application/json"})
    assert (status, json.loads(data)["message"], json.loads(data).get("detail")) == (404, "no such path", {})
    _, _, data = log.request("POST", "/api/query/submit", b"{}", {"Accept": "application/json"})
    assert "veen query serve" in json.loads(data)["detail"]["hint"]


# --- the older way to read, and waiting -------------------------------------------------------------------


@pytest.mark.req("DR0-01")
@pytest.mark.parametrize("with_proof", [False, True])
def test_the_legacy_stream_is_a_sequence_of_items(log, with_proof):
    status, heads, data = log.request(
        "GET", f"/tooling/stream?label={w.LABEL.hex()}&from=3&with_proof={int(with_proof)}"
    )
    assert (status, heads["Content-Type"]) == (200, "application/cbor-seq")
    items = [LegacyItem.from_bytes(item) for item in cbor.sequence(data)]
    assert [item.receipt for item in items] == log.receipts[2:]
    for item in items:
        assert item.msg.leaf_hash() == item.receipt.leaf_hash
        assert (item.mmr_proof is not None) == with_proof
        if item.mmr_proof:
            receipt = item.receipt
            item.mmr_proof.verify(
                leaf_hash=receipt.leaf_hash, stream_seq=receipt.stream_seq, expected_root=receipt.mmr_root
            )


@pytest.mark.parametrize(
    "query",
    ["", "label=00", f"label={'0G' * 32}", "label={}&from=-1", "label={}&from=" + "9" * 30, "label={}&with_proof=2"],
)
def test_wrong_parameters_are_a_bad_request(log, query):
    assert log.request("GET", f"/tooling/stream?{query.format(w.LABEL.hex())}")[0] == 400


def tail(hub, form="cbor", **fields):
    request = TailRequest(**{"label": w.LABEL, "from_seq": 1, "wait_sec": 0, **fields})
    response = hub.call("/tooling/tail", request, StreamResponse, form=form)
    return [item.stream_seq for item in response.items]


@pytest.mark.parametrize("form", FORMS)
def test_a_tail_answers_at_once_if_it_can(log, form):
    assert tail(log, form, from_seq=9) == [9, 10, 11]
    assert tail(log, form, from_seq=9, max_items=1) == [9]
    assert tail(log, form, from_seq=COUNT + 1) == []


def test_a_tail_waits_for_the_next_entry_and_not_longer(tmp_path):
    with LiveHub(tmp_path) as hub:
        events = []
        waiting = threading.Thread(target=lambda: events.append(tail(hub, wait_sec=20)))
        waiting.start()
        time.sleep(0.2)
        assert not events  # also for a label that has no entry yet
        submit(hub, message(1))
        waiting.join(DEADLINE_SEC)
        assert events == [[1]]
        started = time.monotonic()
        assert tail(hub, from_seq=2, wait_sec=1) == []
        assert time.monotonic() - started > 0.9
        status, envelope = error(hub, "/tooling/tail", TailRequest(label=bytes(32), from_seq=1, wait_sec=0))
        assert (status, envelope.code) == (404, "E.NOT_FOUND")
        status, envelope = error(hub, "/tooling/tail", TailRequest(label=w.LABEL, from_seq=1, wait_sec=61))
        assert (status, envelope.detail["max_allowed"]) == (400, 60)


class Events:
    """A client of server-sent events."""

    def __init__(self, hub, query, headers=None):
        self.connection = http.client.HTTPConnection(hub.host, hub.port, timeout=10)
        self.connection.request("GET", f"/tooling/events?{query}", headers=headers or {})
        self.answer = self.connection.getresponse()

    def next(self):
        """The fields of the next event; None at the end."""
        fields: dict[str, str] = {}
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            if not text and fields:
                return fields
            name, _, value = text.partition(": ")
            if name and not text.startswith(":"):
                fields[name] = value
        return None


def test_events_follow_the_log_and_resume(tmp_path):
    with LiveHub(tmp_path) as hub:
        submit(hub, message(1))
        events = Events(hub, f"label={w.LABEL.hex()}&from=1")
        assert events.answer.getheader("Content-Type") == "text/event-stream"
        for seq in (1, 2, 3):
            event = events.next()
            item = StreamItem.from_json(json.loads(event["data"]))
            assert (event["event"], event["id"], item.stream_seq) == ("entry", str(seq), seq)
            assert item.receipt is not None
            item.receipt.verify(w.HUB.public)
            submit(hub, message(seq + 1))
        again = Events(hub, f"label={w.LABEL.hex()}", {"Last-Event-ID": "3"})
        assert again.next()["id"] == "4"
        again.connection.close()
        stopping = asyncio.run_coroutine_threadsafe(hub.server.stop(DEADLINE_SEC), hub.loop)
        while (event := events.next()) is not None:
            assert event["id"] == "4"
        stopping.result(DEADLINE_SEC)
        events.connection.close()


@pytest.mark.parametrize("headers", [{"Last-Event-ID": "x"}, {"Last-Event-ID": "9" * 40}])
def test_a_strange_event_id_is_refused(log, headers):
    assert log.request("GET", f"/tooling/events?label={w.LABEL.hex()}", headers=headers)[0] == 400


# --- the hub itself ---------------------------------------------------------------------------------------


@pytest.mark.req("API-17", "CAP-13", "OP0-03", "CRY-10")
@pytest.mark.parametrize("form", FORMS)
def test_status_tells_clients_what_they_need(tmp_path, form):
    for scope in ("enforced", "open"):
        policy = w.policy(stream_scope=scope, profiles=(PRESETS["messaging"], PRESETS["bulk"]))
        with LiveHub(tmp_path / scope, policy=policy) as hub:
            status = hub.call("/tooling/status", VersionRequest(), StatusResponse, form=form)
            assert (status.hub_ts, status.epoch, status.server_version) == (w.NOW, 0, VERSION)
            assert (status.hub_pk, status.hub_id) == (w.HUB.public, hub.services.identity.hub_id)
            assert (status.profiles, status.stream_scope) == (policy.profiles, scope)
            assert (status.capability_gating, status.pow_difficulty) == (True, 0)
            assert Limits.from_json(status.limits) == hub.limits


def test_status_and_identity_may_be_asked_for_by_get(log):
    _, heads, data = log.request("GET", "/tooling/status")
    assert heads["Content-Type"] == "application/json"
    assert StatusResponse.from_json(json.loads(data)).hub_pk == w.HUB.public
    _, _, data = log.request("GET", "/tooling/identity", headers={"Accept": "application/cbor"})
    assert IdentityResponse.from_bytes(data).hub_keys[0].hub_pk == w.HUB.public
    assert log.request("POST", "/tooling/status", b"\xa1\x01\x02")[0] == 400
    assert log.request("POST", "/tooling/status", b"")[0] == 200


@pytest.mark.parametrize("form", FORMS)
def test_identity_lists_the_keys(log, form):
    response = log.call("/tooling/identity", VersionRequest(), IdentityResponse, form=form)
    assert (response.hub_id, response.hub_keys[0].hub_pk) == (log.services.identity.hub_id, w.HUB.public)


@pytest.mark.req("OBS-04")
@pytest.mark.parametrize("prefix", ["", "/tooling"])
def test_health_is_about_the_label_that_was_committed_to_last(tmp_path, prefix):
    def health(hub):
        status, _, data = hub.request("GET", f"{prefix}/healthz")
        assert status == 200
        return HealthResponse.from_json(json.loads(data))

    with LiveHub(tmp_path) as hub:
        assert health(hub) == HealthResponse(
            ok=True, profile_id=hub.policy.profiles[0].profile_id(), peaks_count=0, last_stream_seq=0
        )
        receipts = [submit(hub, message(seq)) for seq in (1, 2, 3)]
        response = health(hub)
        assert (response.peaks_count, response.last_stream_seq, response.last_mmr_root) == (2, 3, receipts[-1].mmr_root)
    with LiveHub(tmp_path) as hub:
        assert health(hub) == response


@pytest.mark.parametrize("prefix", ["", "/tooling"])
def test_readiness_version_and_metrics(tmp_path, prefix):
    with LiveHub(tmp_path) as hub:
        status, _, data = hub.request("GET", f"{prefix}/readyz")
        assert (status, ReadyResponse.from_json(json.loads(data)).ready) == (200, True)
        hub.services.reason = "the disk is gone"
        status, _, data = hub.request("GET", f"{prefix}/readyz")
        assert (status, ReadyResponse.from_json(json.loads(data)).reason) == (503, "the disk is gone")
        assert hub.request("GET", f"{prefix}/healthz")[0] == 200  # alive all the same
        _, _, data = hub.request("GET", f"{prefix}/version")
        assert VersionResponse.from_json(json.loads(data)).server_version == VERSION
        status, heads, data = hub.request("GET", f"{prefix}/metrics")
        assert (status, data) == (200, b"veen_submit_ok_total 0\n")
        assert heads["Content-Type"].startswith("text/plain")


def test_a_defect_is_answered_and_not_told(log):
    """DESIGN §9.6: no traceback leaves, and the connection lives."""

    async def broken(call):
        raise RuntimeError("secret")

    role, handler = log.api._operations["inspect"]
    log.api._operations["inspect"] = (role, broken)
    with contextlib.ExitStack() as stack:
        stack.callback(log.api._operations.__setitem__, "inspect", (role, handler))
        status, envelope = error(log, "/tooling/inspect", InspectRequest())
        assert (status, envelope.code) == (500, "E.UNAVAILABLE")
        assert "secret" not in envelope.message
