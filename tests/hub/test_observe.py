"""What a hub tells: metrics that a strict parser reads, and log lines that hold exactly what they may."""

import asyncio
import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
from tests.client.builders import seeded
from tests.client.hubs import GATED, ORDERS, RING, Clock, client_at, hub_at, person, pin_of, run, token_for
from tests.hub import builders as w
from tests.waiting import eventually, until

from veen.client.errors import HubRefused
from veen.client.identity.keyring import StreamKeys
from veen.client.transport.inprocess import InProcess
from veen.core.entry import read_claimed_client
from veen.core.errors import ApiCode, Refusal
from veen.core.labels import stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.policies import Revocation
from veen.core.objects.tooling import PolicyRequest
from veen.core.tree.mmr import Mmr
from veen.hub.admission.decide import Refuse
from veen.hub.api.access import Principal
from veen.hub.process import logs
from veen.hub.process.config import HubConfig, load
from veen.hub.process.logs import MAX_PER_CALLER, MAX_PER_KIND, MAX_REFUSED, WINDOW_SEC, EventLog, LineBudget
from veen.hub.process.observe import GAUGES, HubObserver, NullObserver, Observer
from veen.hub.process.runtime import Hub
from veen.hub.sequencer.sequencer import Sequencer
from veen.io.metrics_text import Histogram
from veen.storage.state import Admitted, Label
from veen.storage.store import Store
from veen.testing.memfs import MemFs

LOCAL = Principal(local=True)
LABEL, CLIENT, LEAF = b"\x11" * 32, b"\x22" * 32, b"\x33" * 32
ALWAYS = {"ts", "level", "component", "role", "operation"}
OBS_03 = {
    "label",
    "client_id_prefix",
    "stream_seq",
    "leaf_hash_prefix",
    "bytes_in",
    "bytes_out",
    "verify_ms",
    "commit_ms",
}


def envelope_of(reply):
    if reply.content_type == "application/json":
        return ErrorEnvelope.from_json(json.loads(reply.body))
    return ErrorEnvelope.from_bytes(reply.body)


def admitted(seq):
    label = Label(1, LABEL, 0, None, Mmr())
    return Admitted(
        label=label,
        stream_seq=seq,
        leaf_hash=LEAF,
        mmr_root=LEAF,
        hub_ts=0,
        nodes=[LEAF],
        client_id=CLIENT,
        client_row=1,
        client_seq=seq,
        prev_ack=0,
        spent=(),
    )


def observed(log=None):
    """An observer that saw a bit of everything."""
    observer = HubObserver(log)
    for seq in range(1, 4):
        observer.on_accepted(700, 176, 0.0002, 0.001, 0.0013, admitted(seq))
    observer.on_refused(Refuse(Refusal.CAP_RATE, {"field": "auth_ref"}), 700, 0.0002, 0.0004, LABEL, CLIENT)
    observer.on_refused(Refusal.CBOR_INVALID, 3, total_s=0.00001)
    observer.on_refused(ApiCode.UNAVAILABLE, 700)
    observer.on_group(3, 0.0004)
    observer.on_sealed(1_024)
    observer.on_retired(0.01)
    observer.on_proved(0.0001)
    observer.on_anchor_failed()
    return observer


def families(text):
    return {family.name: family for family in parser.text_string_to_metric_families(text.decode())}


def value(found, name, **labels):
    (sample,) = [
        sample
        for family in found.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return sample.value


@pytest.mark.req("OBS-01")
def test_the_counters_of_obs0():
    rendered = families(observed().render({}))
    assert value(rendered, "veen_submit_ok_total") == 3
    assert value(rendered, "veen_submit_err_total", code="E.RATE") == 1
    assert value(rendered, "veen_submit_err_total", code="E.FORMAT") == 1
    assert value(rendered, "veen_submit_err_total", code="E.UNAVAILABLE") == 1
    assert value(rendered, "veen_submit_err_total", code="E.SIG") == 0
    assert value(rendered, "veen_rate_limited_total") == 1
    assert value(rendered, "veen_anchor_fail_total") == 1


@pytest.mark.req("OBS-02")
def test_the_histograms_and_the_gauge_of_obs0():
    rendered = families(observed().render({"veen_queue_depth": 7}))
    for name, count in (
        ("veen_verify_latency_ms", 4),
        ("veen_commit_latency_ms", 3),
        ("veen_end_to_end_latency_ms", 6),
        ("veen_checkpoint_interval", 1),
    ):
        assert rendered[name].type == "histogram"
        assert value(rendered, f"{name}_count") == count
    assert value(rendered, "veen_verify_latency_ms_bucket", le="0.25") == 4
    assert value(rendered, "veen_verify_latency_ms_bucket", le="0.1") == 0
    assert value(rendered, "veen_commit_latency_ms_sum") == pytest.approx(3.0)
    assert rendered["veen_queue_depth"].type == "gauge"
    assert value(rendered, "veen_queue_depth") == 7


def test_each_latency_has_a_twin_in_seconds():
    rendered = families(observed().render({}))
    for name in ("verify", "commit", "end_to_end"):
        ms = [sample for sample in rendered[f"veen_{name}_latency_ms"].samples if sample.name.endswith("_bucket")]
        seconds = [sample for sample in rendered[f"veen_{name}_seconds"].samples if sample.name.endswith("_bucket")]
        assert [sample.value for sample in ms] == [sample.value for sample in seconds]
        assert [float(sample.labels["le"]) for sample in ms] == pytest.approx(
            [1000 * float(sample.labels["le"]) for sample in seconds]
        )


@pytest.mark.req("OPS-03")
def test_admission_proof_and_sync_time_are_measured():
    rendered = families(observed().render({}))
    for name in ("veen_end_to_end_seconds", "veen_proof_seconds", "veen_fsync_seconds"):
        assert value(rendered, f"{name}_count") > 0


def test_the_text_is_well_formed_by_the_stricter_grammar_too():
    """promtool is not at hand; the OpenMetrics parser refuses what it refuses: order, duplicates, broken histograms."""
    text = observed().render(dict.fromkeys(GAUGES, 1), openmetrics=True)
    names = [family.name for family in openmetrics.text_string_to_metric_families(text.decode())]
    assert len(names) == len(set(names))
    assert {"veen_submit_ok", "veen_queue_depth", "veen_build_info", "process_cpu_seconds"} <= set(names)


def test_every_metric_says_what_it_is_and_no_label_can_grow():
    text = observed().render(dict.fromkeys(GAUGES, 1)).decode()
    rendered = families(text.encode())
    for family in rendered.values():
        assert family.documentation
        assert re.fullmatch(r"[a-z_]+", family.name)
    labels = {name for family in rendered.values() for sample in family.samples for name in sample.labels}
    assert labels == {"code", "detail", "kind", "result", "le", "version", "stream"}
    assert LABEL.hex() not in text
    assert CLIENT.hex()[:8] not in text


def test_a_histogram_counts_each_value_once():
    histogram = Histogram((1, 2, 4))
    for number in (0, 1, 1.5, 2, 3, 4, 5, 100):
        histogram.observe(number)
    samples = dict(histogram.samples("h"))
    assert samples['h_bucket{le="1"}'] == 2
    assert samples['h_bucket{le="2"}'] == 4
    assert samples['h_bucket{le="4"}'] == 6
    assert samples['h_bucket{le="+Inf"}'] == samples["h_count"] == 8
    assert samples["h_sum"] == 116.5


def test_nobody_watching_is_an_observer():
    watching: list[Observer] = [NullObserver(), HubObserver()]
    for observer in watching:
        observer.on_accepted(1, 1, 0.0, 0.0, 0.0, admitted(1))
        observer.on_refused(ApiCode.UNAVAILABLE, 1)


def test_dashboard_and_alerts_name_metrics_that_exist(request):
    root = Path(request.config.rootpath) / "deploy"
    exposed = {
        sample.name
        for family in families(observed().render(dict.fromkeys(GAUGES, 1))).values()
        for sample in family.samples
    }
    dashboard = json.loads((root / "dashboards" / "veen-hub.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    alerts = yaml.safe_load((root / "alerts" / "veen-hub.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    expressions += [rule["expr"] for rule in rules]
    for expression in expressions:
        for name in re.findall(r"(?:veen|process)_[a-z_]+", expression):
            assert name in exposed, name
    assert all(rule["annotations"]["action"] for rule in rules)
    assert all(panel["type"] in ("stat", "timeseries") for panel in panels)  # core panels only
    assert all(panel["description"] for panel in panels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    watched = {name for expression in expressions for name in re.findall(r"veen_[a-z_]+", expression)}
    assert {"veen_evidence_files", "veen_scrub_findings_total", "veen_anchor_age_seconds", "process_open_fds"} <= (
        watched | set(re.findall(r"process_[a-z_]+", " ".join(expressions)))
    )
    judged = {panel["title"] for panel in panels if panel["fieldConfig"]["defaults"].get("thresholds")}
    assert {"Ready", "Proofs against this hub", "Damage found", "Last anchor", "Last checkpoint"} <= judged


def test_panels_do_not_overlap(request):
    dashboard = json.loads((Path(request.config.rootpath) / "deploy" / "dashboards" / "veen-hub.json").read_text())
    cells = Counter(
        (x, y)
        for panel in dashboard["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert set(cells.values()) == {1}
    assert max(x for x, _ in cells) < 24


def test_the_example_for_prometheus_names_the_job_that_the_alerts_expect(request):
    root = Path(request.config.rootpath) / "deploy"
    scrape = yaml.safe_load((root / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in scrape["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', (root / "alerts" / "veen-hub.yml").read_text())) == jobs


def test_a_hub_exposes_every_gauge_and_counts_what_is_evidence(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "hub", anchor__every="1h") as hub:
            assert hub.gauges().keys() == GAUGES.keys()
            who = person("alice")
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "home") as client:
                label = (await client.send("orders", b"one")).receipt.label
            reply = await hub.api.call(
                "anchor", json.dumps({"ver": 1, "label": label.hex()}).encode(), form="json", principal=LOCAL
            )
            assert reply.status == 200, reply.body
            return families(hub.metrics_text())

    rendered = run(scenario())
    assert value(rendered, "veen_anchors_total") == 1
    assert value(rendered, "veen_evidence_files") == 0
    assert value(rendered, "veen_equivocation_reports_total") == 0


@pytest.mark.req("K8S-20")
def test_the_six_metrics_of_a_hub_in_a_cluster(tmp_path):
    """Two streams of which one is watched, a seal, a revocation that comes 40 seconds late, and a refusal by it."""
    clock = Clock()
    carol = StreamKeys.create("carol's", random=seeded("carol's"))

    async def scenario():
        settings = {"admission__kex1_plus": True, "limits__max_checkpoint_interval": 2, "metrics__streams": "orders"}
        async with hub_at(tmp_path / "hub", clock=clock, settings=GATED, **settings) as hub:
            who = person("alice", clock.now)
            token = token_for(who.client_id, ORDERS.stream_id, carol.stream_id)
            keys = {"ring": RING.with_keys(carol), "clock": clock}
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "home", **keys) as client:
                await client.authorize(token)
                for number in range(3):
                    await client.send("orders", b"%d" % number)
                await client.send("carol's", b"one")
                late = Revocation(kind="client-id", target=who.client_id, ts=clock.now - 40)
                ahead = Revocation(kind="client-id", target=CLIENT, ts=clock.now + 40)
                for _ in range(2):  # what the hub knows already is not late again
                    request = PolicyRequest(revocations=(late, ahead))
                    reply = await hub.api.call("policy", request.to_bytes(), principal=LOCAL)
                    assert reply.status == 200, reply.body
                clock.now += 1
                with pytest.raises(HubRefused):
                    await client.send("orders", b"too late")
            return families(hub.metrics_text()), hub.fs.bytes_in_use()

    rendered, used_bytes = run(scenario())
    assert value(rendered, "veen_appends_total", stream="orders") == 3
    assert value(rendered, "veen_appends_total", stream="") == 1
    assert value(rendered, "veen_commit_seconds_count") == 4
    assert value(rendered, "veen_checkpoint_interval_count") == 1
    assert value(rendered, "veen_capability_checks_total", result="OK") == 4
    assert value(rendered, "veen_admission_refusals_total", detail="CLIENT_REVOKED") == 1
    assert value(rendered, "veen_revocation_lag_seconds_count") == 2
    assert value(rendered, "veen_revocation_lag_seconds_sum") == 40
    assert value(rendered, "veen_used_bytes") == pytest.approx(used_bytes, rel=0.2)
    assert value(rendered, "veen_free_bytes") > 0
    assert "carol" not in str(rendered)


def test_streams_that_the_operator_names_are_counted_by_name_id_or_label_and_no_name_breaks_the_text():
    odd = 'quo"te, back\\slash, new\nline'
    observer = HubObserver(streams=[odd, LABEL.hex(), "quiet"])
    observer.on_accepted(1, 1, 0.0, 0.0, 0.0, admitted(1))  # of a hub that knows no streams, only labels
    of_stream = admitted(2)._replace(label=Label(1, CLIENT, 0, stream_id_of(odd), Mmr()))
    observer.on_accepted(1, 1, 0.0, 0.0, 0.0, of_stream)
    unnamed = admitted(3)._replace(label=Label(1, CLIENT, 0, LEAF, Mmr()))
    for _ in range(2):
        observer.on_accepted(1, 1, 0.0, 0.0, 0.0, unnamed)
    text = observer.render({}, openmetrics=True).decode()
    strict = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    for family in (strict["veen_appends"], families(observer.render({}))["veen_appends"]):
        appends = {sample.labels["stream"]: sample.value for sample in family.samples}
        assert appends == {odd: 1, LABEL.hex(): 1, "quiet": 0, "": 2}


def test_requests_that_fail_outside_admission_leave_a_line_with_their_id_and_are_counted(tmp_path):
    """Also before anybody is known: a missing token, and bytes that are no request."""
    file = tmp_path / "log"

    async def scenario():
        settings = {"log__level": "info", "log__file": file, "log__format": "json"}
        async with hub_at(tmp_path / "hub", **settings) as hub:
            closed = await hub.api.call("rotate_key", b"{}", form="json", principal=Principal(address="198.51.100.7"))
            broken = await hub.api.call("stream", b"nonsense", principal=Principal(address="198.51.100.7"))
            absent = await hub.api.call("no_such_operation")
            envelope = hub.api.submits.begin(b"\xa2nonsense", print, principal=Principal(address="198.51.100.8"))
            rendered = families(hub.metrics_text())
            for code in ("E.FORBIDDEN", "E.BAD_REQUEST"):
                assert value(rendered, "veen_request_errors_total", code=code) >= 1
            return [closed, broken, absent, envelope]

    closed, broken, absent, envelope = [envelope_of(reply) for reply in run(scenario())]
    lines = {line["request_id"]: line for line in map(json.loads, file.read_text().splitlines()) if "code" in line}
    assert lines[closed.request_id]["request"] == "rotate_key"
    assert lines[closed.request_id]["status"] == 403
    assert lines[broken.request_id]["code"] == "E.BAD_REQUEST"
    assert lines[envelope.request_id]["request"] == "submit"
    assert absent.request_id not in lines
    assert "198.51.100" not in file.read_text()  # addresses are counted, never written


def test_a_message_that_is_refused_before_its_signature_leaves_the_client_it_claims(tmp_path):
    file = tmp_path / "log"

    async def scenario():
        denied = {"log__level": "info", "log__file": file, "log__format": "json"}
        message = w.msg(token=None).to_bytes()
        client_id = w.msg(token=None).client_id
        async with hub_at(tmp_path / "hub", admission__denied_clients=client_id.hex(), **denied) as hub:
            refused = hub.api.submits.begin(b"\xa2\x01\x01\x02" + message, print)
            return envelope_of(refused), client_id

    answer, client_id = run(scenario())
    (line,) = [line for line in map(json.loads, file.read_text().splitlines()) if "code" in line]
    assert line["request_id"] == answer.request_id
    assert line["client_id_prefix"] == client_id.hex()[:8]
    assert (line["detail"], line["field"]) == ("PREFILTER_REJECT", "client_id")


@pytest.mark.parametrize("raw", [b"", b"\x8a", bytes(200), b"\x8a" + bytes(200)])
def test_bytes_that_do_not_begin_as_a_message_claim_no_client(raw):
    assert read_claimed_client(raw) is None


# --- log -------------------------------------------------------------------------------------------------


def logged(tmp_path, act, **flags):
    """The lines that `act(log)` leaves."""
    file = tmp_path / "log"
    config = load(None, {}, {"data_dir": str(tmp_path), "log.file": str(file), "log.format": "json", **flags})
    log = EventLog(config)
    act(log)
    log.close()
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.req("OBS-03")
def test_a_submit_leaves_one_line_with_exactly_these_fields(tmp_path):
    accepted, rate, cbor, unavailable = [
        line for line in logged(tmp_path, lambda log: observed(log)) if line.get("stream_seq") in (None, 1)
    ]
    assert set(accepted) == ALWAYS | OBS_03
    assert accepted["label"] == LABEL.hex()
    assert accepted["client_id_prefix"] == "22222222"
    assert accepted["leaf_hash_prefix"] == "33333333"
    assert (accepted["stream_seq"], accepted["bytes_in"], accepted["bytes_out"]) == (1, 700, 176)
    assert (accepted["verify_ms"], accepted["commit_ms"]) == (0.2, 1.0)
    assert accepted["operation"] == "submit"
    assert set(rate) == ALWAYS | {
        "label",
        "client_id_prefix",
        "code",
        "detail",
        "field",
        "request_id",
        "bytes_in",
        "bytes_out",
        "verify_ms",
        "commit_ms",
    }
    assert (rate["code"], rate["detail"], rate["field"]) == ("E.RATE", "CAP_RATE", "auth_ref")
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", rate["request_id"])
    assert set(cbor) == ALWAYS | {"code", "detail", "bytes_in", "bytes_out", "verify_ms", "commit_ms"}
    assert unavailable["code"] == "E.UNAVAILABLE"


def test_no_line_holds_a_whole_client_id_or_leaf(tmp_path):
    text = json.dumps(logged(tmp_path, lambda log: observed(log)))
    assert CLIENT.hex() not in text
    assert LEAF.hex() not in text


def test_every_line_names_time_level_component_and_role(tmp_path):
    def act(log):
        observed(log)
        log.event("warning", "disk", "too little free space", free_bytes=1)

    lines = logged(tmp_path, act, role="authority", tenant_id="acme")
    for line in lines:
        assert ALWAYS | {"tenant_id"} <= set(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert (line["component"], line["role"], line["tenant_id"]) == ("hub", "authority", "acme")
    assert lines[-1]["level"] == "warn"
    assert lines[-1]["free_bytes"] == 1


@pytest.mark.parametrize(
    ("flags", "accepted", "refused"),
    [
        ({"log.submits": "all"}, 3, 3),
        ({"log.submits": "sampled"}, 0, 3),
        ({"log.submits": "errors"}, 0, 3),
        ({"log.submits": "off"}, 0, 0),
        ({"log.level": "warning"}, 0, 0),
    ],
)
def test_who_wants_fewer_lines_gets_fewer(tmp_path, flags, accepted, refused):
    lines = logged(tmp_path, lambda log: observed(log), **flags)
    assert (sum("code" not in line for line in lines), sum("code" in line for line in lines)) == (accepted, refused)


def test_one_in_a_hundred_is_a_sample(tmp_path):
    def act(log):
        observer = HubObserver(log)
        for seq in range(1, 1_001):
            observer.on_accepted(1, 1, 0.1, 0.1, 0.1, admitted(seq))

    assert len(logged(tmp_path, act, **{"log.submits": "sampled"})) == 10


def test_text_for_people(tmp_path):
    file = tmp_path / "log"
    log = EventLog(load(None, {}, {"data_dir": "d", "log.file": str(file), "log.format": "text"}))
    observed(log)
    log.event("info", "start", "ready", url="http://127.0.0.1:1")
    log.close()
    text = file.read_text()
    assert "submit: accepted 11111111… seq 1, 700 bytes" in text
    assert re.search(r"refused E.RATE CAP_RATE auth_ref client 22222222 request [0-9a-f]{8}-[0-9a-f]+, 700 bytes", text)
    assert "start: ready url=http://127.0.0.1:1" in text


def test_a_refusal_is_written_at_once(tmp_path, monkeypatch):
    """Who was refused looks for the reason: `veen hub log --refused` after a failed command must show it."""
    monkeypatch.setattr(logs, "_WAIT_S", 3600)
    file = tmp_path / "log"
    log = EventLog(load(None, {}, {"data_dir": "d", "log.file": str(file), "log.format": "text"}))
    log.log_refused("E.RATE", 700, 0.1, 0.1, LABEL, None)
    until(lambda: "refused E.RATE" in file.read_text())
    log.close()


def test_a_log_that_cannot_be_written_does_not_stop_the_hub(tmp_path):
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        log = EventLog(HubConfig(data_dir=tmp_path), fd)
        log.event("info", "start", "ready")
        log.close()
        assert log.dropped == 1
        assert value(families(HubObserver(log).render({})), "veen_log_lines_dropped_total") == 1
    finally:
        os.close(fd)


@pytest.mark.req("OP0-10")
def test_a_clock_that_runs_away_shows_as_an_error_a_metric_and_an_alert(tmp_path, request):
    """The client's idea of time is an epoch behind: E.TIME, which it mends by itself and which the operator sees."""
    hub_clock, own_clock = Clock(1_800_000_000), Clock(1_800_000_000)
    settings = {**GATED, "admission.profiles": "rotating"}

    async def scenario():
        async with hub_at(tmp_path / "hub", clock=hub_clock, settings=settings) as hub:
            who = person("alice", 1_800_000_000)
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "home", clock=own_clock) as client:
                await client.authorize(token_for(client.client_id))
                await client.send("orders", b"in time")
                before = value(families(hub.metrics_text()), "veen_submit_err_total", code="E.TIME")
                hub_clock.now += 2 * 3600
                await client.send("orders", b"late")
                return before, value(families(hub.metrics_text()), "veen_submit_err_total", code="E.TIME")

    assert run(scenario()) == (0, 1)
    rules = yaml.safe_load((Path(request.config.rootpath) / "deploy" / "alerts" / "veen-hub.yml").read_text())
    watched = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert any('veen_submit_err_total{code="E.TIME"}' in expression for expression in watched)


# Accepted and refused: in order, a duplicate, a gap, an acknowledgement of the future, one that goes back.
PLAN = [(1, 0), (2, 1), (2, 1), (9, 1), (3, 7), (3, 2), (4, 0), (4, 3), (5, 4), (6, 5)]


@pytest.mark.req("GEN-13")
def test_who_watches_changes_nothing(tmp_path):
    """The same messages get the same answers to the byte, and leave the same files."""

    async def served(observer):
        fs = MemFs()
        policy = w.policy(preloaded={w.TOKEN.auth_ref(): w.TOKEN})
        store = Store.open(fs, DEFAULT_LIMITS, w.seal)
        line = Sequencer(
            store, w.Signer(), policy, w.resolver(), workers=w.WORKERS, clock=lambda: w.NOW, observer=observer
        )
        answers = [await line.submit(w.msg(seq=seq, ack=ack).to_bytes()) for seq, ack in PLAN]
        await line.close()
        return answers, {path: data for path, data in fs.files().items() if path.startswith("log/")}

    watched = []
    lines = logged(tmp_path, lambda log: watched.append(run(served(HubObserver(log)))))
    assert len(lines) >= len(PLAN)
    assert watched == [run(served(NullObserver()))]
    assert {type(answer) for answer in watched[0][0]} == {bytes, Refuse}


# --- how many lines strangers can cause ------------------------------------------------------------------


def flood(budget, code, address, count):
    return sum(budget.allows_refusal(code, address) for _ in range(count))


def test_refusals_are_bounded_by_caller_by_code_and_all_together():
    now = [0.0]
    budget = LineBudget(lambda: now[0])
    assert flood(budget, "E.FORMAT", "192.0.2.1", 10_000) == MAX_PER_CALLER
    assert flood(budget, "E.FORMAT", "192.0.2.2", 1) == 1  # one caller does not silence the others
    assert sum(flood(budget, "E.FORMAT", f"10.0.0.{n}", 100) for n in range(200)) == MAX_PER_KIND - MAX_PER_CALLER - 1
    assert sum(flood(budget, f"E.{n}", f"10.0.0.{n}", 1) for n in range(2 * MAX_REFUSED)) == MAX_REFUSED - MAX_PER_KIND
    assert len(budget._lines) <= 3 * MAX_REFUSED + 1
    assert budget.turn() == {}  # the window is not over
    now[0] += WINDOW_SEC
    left_out = budget.turn()
    assert left_out["E.FORMAT"] == 10_000 + 1 + 200 * 100 - MAX_PER_KIND
    assert budget.suppressed["E.FORMAT"] == left_out["E.FORMAT"]
    assert budget.turn(end=True) == {}
    assert flood(budget, "E.FORMAT", "192.0.2.1", 100) == MAX_PER_CALLER  # a new window
    assert budget.suppressed["E.FORMAT"] == left_out["E.FORMAT"] + 100 - MAX_PER_CALLER


def test_events_of_one_operation_are_bounded_and_others_are_not_touched(tmp_path):
    def act(log):
        for _ in range(5_000):
            log.event("error", "equivocation", "somebody proved something")
        log.event("info", "start", "ready")

    lines = logged(tmp_path, act)
    assert Counter(line["operation"] for line in lines) == {"equivocation": MAX_PER_KIND, "start": 1, "suppressed": 1}
    (summary,) = [line for line in lines if line["operation"] == "suppressed"]
    assert (summary["kind"], summary["lines"], summary["level"]) == ("equivocation", 5_000 - MAX_PER_KIND, "warn")


def test_a_flood_of_refused_requests_leaves_a_bounded_log_and_a_count(tmp_path):
    """61 bytes of request wrote 204 bytes of log, for as long as somebody sent them."""

    async def scenario():
        flags = {"engine.workers": "0", "listen.port": "0", "log.file": str(tmp_path / "log"), "log.format": "json"}
        config = load(None, {}, {"data_dir": str(tmp_path / "hub"), **flags})
        async with Hub.serve(config) as hub:
            address = Principal(address="192.0.2.7")
            for _ in range(2_000):
                reply = await hub.api.call("submit", b"\xa2\x01\x01\x02\x80", principal=address)
                assert reply.status == 400
            hub.log.budget._until = 0.0  # as if the window was over: the hub says so by itself
            await eventually(lambda: "suppressed" in (tmp_path / "log").read_text())
            return hub.metrics_text()

    metrics = families(asyncio.run(scenario()))
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(line["operation"] == "submit" for line in lines) == MAX_PER_CALLER
    (summary,) = [line for line in lines if line["operation"] == "suppressed"]
    assert (summary["kind"], summary["lines"]) == ("E.FORMAT", 2_000 - MAX_PER_CALLER)
    assert value(metrics, "veen_log_lines_suppressed_total", kind="E.FORMAT") == 2_000 - MAX_PER_CALLER
    assert value(metrics, "veen_submit_err_total", code="E.FORMAT") == 2_000
    assert "192.0.2.7" not in (tmp_path / "log").read_text()
