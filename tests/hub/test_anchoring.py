"""Anchors over a real socket: published, journaled, listed beside their checkpoints (ANCHOR0, D-104)."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.hub import builders as w
from tests.hub.servers import ADMIN, LiveHub
from tests.hub.test_tooling import ADMIN_HEADER, FORMS, error, message, submit
from tests.waiting import DEADLINE_SEC

from veen.core.objects.control import AnchorPublish
from veen.core.objects.identity import HubIdentity
from veen.core.objects.tooling import AnchorRequest, AnchorResponse, AnchorsResponse
from veen.hub.api.access import Access
from veen.hub.api.anchoring import Anchoring
from veen.hub.process.observe import HubObserver
from veen.io.local import OsFs
from veen.storage.anchors import AnchorError
from veen.verify.directory import verify_data


class Ledger:
    """Another backend: remembers in memory, and fails when told to."""

    name = "ledger"

    def __init__(self):
        self.roots = {}
        self.fails = False

    def publish(self, root, epoch, ts, nonce):
        if self.fails:
            raise AnchorError("the ledger is closed")
        self.roots[nonce] = root
        return nonce

    def verify(self, root, anchor_ref):
        return self.roots.get(anchor_ref) == root


@pytest.fixture
def hub(tmp_path):
    policy = w.policy(preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
    with LiveHub(tmp_path, policy=policy, access=Access.of(admin_tokens=[ADMIN])) as live:
        live.receipts = [submit(live, message(seq)) for seq in (1, 2, 3)]
        yield live


def anchor(hub, *, form="cbor", **given):
    request = AnchorRequest(label=w.LABEL, **given)
    return hub.call("/tooling/anchor", request, AnchorResponse, form=form, headers=ADMIN_HEADER)


def listed(hub, query=""):
    status, _, data = hub.request("GET", f"/tooling/anchor?label={w.LABEL.hex()}{query}")
    assert status == 200
    return AnchorsResponse.from_json(json.loads(data))


@pytest.mark.req("ANC-01", "ANC-04")
@pytest.mark.parametrize("form", FORMS)
def test_an_anchor_is_published_journaled_and_listed_beside_its_checkpoint(hub, form):
    anchored = anchor(hub, form=form, upto_seq=2)
    body = anchored.record.body
    assert isinstance(body, AnchorPublish)
    assert (body.label, body.upto_seq, body.mmr_root) == (w.LABEL, 2, hub.receipts[1].mmr_root)
    anchored.record.verify(w.HUB.public)
    anchored.checkpoint.verify(w.HUB.public)
    assert hub.services.anchors.verify(body.mmr_root, body.anchor_ref)
    assert not hub.services.anchors.verify(hub.receipts[0].mmr_root, body.anchor_ref)
    whole = anchor(hub, form=form)
    assert whole.checkpoint.upto_seq == 3
    assert [(item.record, item.checkpoint) for item in listed(hub).anchors] == [
        (anchored.record, anchored.checkpoint),
        (whole.record, whole.checkpoint),
    ]
    assert [item.record for item in listed(hub, "&from=3").anchors] == [whole.record]
    assert not listed(hub).more


def test_a_checkpoint_is_anchored_once(hub):
    assert anchor(hub).record == anchor(hub).record == anchor(hub, upto_seq=3).record


@pytest.mark.req("ANC-02")
def test_backends_can_be_exchanged(hub):
    hub.services.anchor_backend = ledger = Ledger()
    body = anchor(hub).record.body
    assert isinstance(body, AnchorPublish)
    assert body.backend == "ledger"
    assert ledger.verify(body.mmr_root, body.anchor_ref)


def test_an_anchor_that_somebody_else_made_is_only_recorded(hub):
    fields = {"backend": "rfc3161", "anchor_ref": b"a time stamp"}
    record = anchor(hub, upto_seq=1, **fields).record
    body = record.body
    assert isinstance(body, AnchorPublish)
    assert (body.backend, body.anchor_ref, body.mmr_root) == (*fields.values(), hub.receipts[0].mmr_root)
    assert anchor(hub, upto_seq=1, **fields).record == record
    assert anchor(hub, upto_seq=1, backend="rfc3161", anchor_ref=b"another").record != record
    for wrong in (
        {"backend": "rfc3161"},
        {"anchor_ref": b"x"},
        {"backend": "", "anchor_ref": b"x"},
        {"backend": "b" * 65, "anchor_ref": b"x"},
        {"backend": "file", "anchor_ref": b"x"},
        {"backend": "rfc3161", "anchor_ref": bytes(4_097)},
    ):
        assert error(hub, "/tooling/anchor", AnchorRequest(label=w.LABEL, **wrong), headers=ADMIN_HEADER)[0] == 400


@pytest.mark.req("ANC-02", "OBS-01")
def test_a_backend_that_fails_is_counted_and_the_log_goes_on(hub):
    """D-104: never blocks commits."""
    hub.services.anchor_backend = ledger = Ledger()
    hub.services.observer = observer = HubObserver()
    ledger.fails = True
    status, envelope = error(hub, "/tooling/anchor", AnchorRequest(label=w.LABEL), headers=ADMIN_HEADER)
    assert (status, envelope.code) == (503, "E.UNAVAILABLE")
    assert b"\nveen_anchor_fail_total 1\n" in observer.render({})
    assert listed(hub).anchors == ()
    submit(hub, message(4))
    ledger.fails = False
    assert anchor(hub).checkpoint.upto_seq == 4


def test_only_administrators_anchor_and_only_what_is_there(hub):
    assert error(hub, "/tooling/anchor", AnchorRequest(label=w.LABEL))[0] == 401
    for request, status in (
        (AnchorRequest(label=w.LABEL, upto_seq=4), 404),
        (AnchorRequest(label=w.LABEL, upto_seq=0), 400),
        (AnchorRequest(label=bytes(32)), 404),
    ):
        assert error(hub, "/tooling/anchor", request, headers=ADMIN_HEADER)[0] == status
    assert hub.request("GET", "/tooling/anchor")[0] == 400
    assert hub.request("GET", f"/tooling/anchor?label={bytes(32).hex()}")[0] == 404


@pytest.mark.req("ANC-03")
def test_a_hub_that_anchors_by_itself_anchors_what_grew(hub, tmp_path):
    def all_of_them():
        return hub.run(Anchoring(hub.api).anchor_all())

    assert all_of_them() == 1
    assert all_of_them() == 0
    submit(hub, message(4))
    assert all_of_them() == 1
    assert [item.record.body.upto_seq for item in listed(hub).anchors] == [3, 4]
    hub.services.anchor_backend = ledger = Ledger()
    ledger.fails = True
    submit(hub, message(5))
    assert all_of_them() == 0
    report = verify_data(OsFs(tmp_path), identity=HubIdentity.first(w.HUB.public, valid_from=0))
    assert not report.findings


def test_long_lists_go_on(hub):
    for number in range(101):
        anchor(hub, upto_seq=1, backend="notary", anchor_ref=bytes([number]))
    last = anchor(hub, upto_seq=2).record
    assert len(listed(hub).anchors) == 100
    assert listed(hub).more
    assert [item.record for item in listed(hub, "&from=2").anchors] == [last]


def test_an_anchor_that_is_asked_for_again_under_its_id_is_the_same_although_the_log_grew(hub):
    """Without an id a retry anchored the longer log as well."""
    first = anchor(hub, request_id=b"r" * 32)
    submit(hub, message(4))
    assert anchor(hub, request_id=b"r" * 32) == first
    assert len(listed(hub).anchors) == 1
    assert anchor(hub, request_id=b"s" * 32).checkpoint.upto_seq == 4
    assert anchor(hub).record == anchor(hub, request_id=b"t" * 32).record  # asked for otherwise, it is there already
    assert len(listed(hub).anchors) == 2


def test_two_requests_under_one_id_at_the_same_time_anchor_once(hub):
    """The first caller went away while the backend was slow."""
    calls, entered, gate = [], threading.Event(), threading.Event()
    publish = hub.services.anchors.publish

    def slow(*args):
        calls.append(args)
        entered.set()
        gate.wait(DEADLINE_SEC)
        return publish(*args)

    hub.services.anchors.publish = slow
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(anchor, hub, request_id=b"r" * 32)]
        entered.wait(DEADLINE_SEC)
        answers.append(threads.submit(anchor, hub, request_id=b"r" * 32))
        gate.set()
        first, second = (answer.result() for answer in answers)
    assert first == second
    assert len(calls) == 1
