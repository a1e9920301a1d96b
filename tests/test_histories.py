"""The published histories: our readers and folds agree with every one of them (docs/vectors.md)."""

import copy
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import history_vectors
import veen_verify
import veen_verify_histories
from history_subjects import SUBJECTS
from tests.overlays.by_the_letter import Wallets, last_writers, state0
from tests.overlays.test_letter import SCHEMA_TEXTS, messages
from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.event import Event
from veen.core.labels import hub_id_of, label_of, routing_key_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Pair, Rule, RunCheck, check_signatures
from veen.core.sealing.ciphertext import open_msg
from veen.core.tree.mmr import Mmr
from veen.overlays.framework.registry import BUILTIN

FILES = {path.stem: path for path in sorted(history_vectors.DIRECTORY.iterdir())}
VECTORS = {name: json.loads(path.read_text("utf-8")) for name, path in FILES.items()}
BY_NAME = {subject.name: subject for subject in SUBJECTS}
PROGRAM = Path(veen_verify_histories.__file__)
SAMPLE = ("kv", "operation.agreement", "airgap")  # of which each run makes the files again
WRONG = (veen_verify.Failed, ValueError, LookupError, TypeError, AttributeError)


def unhex(text):
    return bytes.fromhex(text)


def read(vectors, history):
    """Read a log as our readers do: the events up to the first fault, and the fault."""
    hub_pk, reader_sk = unhex(vectors["hub_pk"]), unhex(vectors["reader"]["secret"])
    identity = HubIdentity.first(hub_pk, valid_from=0)
    places = {unhex(label): (unhex(stream_id), epoch) for label, stream_id, epoch in history["labels"]}
    checks = {label: RunCheck(label, Mmr()) for label in places}
    latest = dict.fromkeys(places, 0)
    events: list[Event] = []
    for number, (raw_msg, raw_receipt) in enumerate(history["log"], start=1):
        try:
            msg, receipt = Msg.from_bytes(unhex(raw_msg)), Receipt.from_bytes(unhex(raw_receipt))
        except FormatError:
            return events, {"entry": number, "rules": ["FORMAT"]}
        label = receipt.label
        faults = checks[label].append(msg, receipt) + check_signatures([Pair(msg, receipt)], identity)[0][0]
        rules = [fault.rule.name for fault in faults if fault.rule is not Rule.TIME]
        if rules:
            return events, {"entry": number, "rules": rules}
        opened = open_msg(reader_sk, msg)
        latest[label] = max(latest[label], receipt.hub_ts)
        stream_id, epoch = places[label]
        events.append(
            Event.from_message(
                opened.hdr,
                opened.body,
                stream_id=stream_id,
                label=label,
                epoch=epoch,
                stream_seq=receipt.stream_seq,
                leaf_hash=receipt.leaf_hash,
                client_id=msg.client_id,
                auth_ref=msg.auth_ref,
                hub_ts=receipt.hub_ts,
                ts=latest[label],
            )
        )
    return events, None


def expected(history, result):
    numbers = {unhex(label): number for number, (label, _, _) in enumerate(history["labels"])}
    return {
        "state_tag": result.tag,
        "state": result.state.hex(),
        "state_hash": result.state_hash.hex(),
        "faults": [[numbers[label], seq, code] for label, seq, code in result.faults],
    }


# The files


def test_there_is_a_file_for_every_fold_and_for_the_products_without_one():
    tags = {e["state_tag"] for v in VECTORS.values() for h in v["histories"] for e in h["expect"].values()}
    folds = {f"veen/state-{name}" for name in [*BUILTIN.folds, "wallet.ledger.letter", "id.letter"]}
    assert folds <= tags
    assert tags - folds == {"sdr/profile", "veen/state-airgap.crossed"}
    assert set(FILES) == set(BY_NAME)


def test_at_least_300_histories_half_of_them_with_faults():
    histories = [history for vectors in VECTORS.values() for history in vectors["histories"]]
    faulty = [h for h in histories if "wire_fault" in h or h["expect"]["default"]["faults"]]
    assert len(histories) >= 300
    assert len(faulty) * 2 == len(histories)
    assert len({history["name"] for history in histories}) == len(histories)
    assert {rule for h in faulty if "wire_fault" in h for rule in h["wire_fault"]["rules"]} == set(
        veen_verify_histories.RULES
    )
    assert sum(path.stat().st_size for path in FILES.values()) < 3_000_000


@pytest.mark.parametrize(
    "subject", [pytest.param(s, id=s.name, marks=() if s.name in SAMPLE else pytest.mark.slow) for s in SUBJECTS]
)
def test_the_file_is_what_the_generator_writes_byte_for_byte(subject):
    assert FILES[subject.name].read_text("utf-8") == history_vectors.render(subject)


# Our implementation


@pytest.mark.req("GEN-03", "TS0-06")
@pytest.mark.parametrize("name", FILES)
def test_our_readers_and_folds_come_to_the_listed_states_and_faults(name):
    """Any log reproduces the same state in any implementation; so it must here, from the bytes and the keys alone."""
    subject, vectors = BY_NAME[name], VECTORS[name]
    routing_key = routing_key_of(hub_id_of(unhex(vectors["hub_pk"])))
    for history in vectors["histories"]:
        for label, stream_id, epoch in history["labels"]:
            assert label_of(routing_key, unhex(stream_id), epoch).hex() == label
        Profile.from_bytes(unhex(history["profile"]))
        events, fault = read(vectors, history)
        assert fault == history.get("wire_fault"), history["name"]
        shuffled = random.Random(1).sample(events, len(events))
        for policy, listed in history["expect"].items():
            assert expected(history, subject.read(history["settings"], events, policy)) == listed, history["name"]
            assert expected(history, subject.read(history["settings"], shuffled, policy)) == listed, history["name"]


@pytest.mark.req("WAL-15", "ID-12")
def test_states_of_the_letter_are_those_of_a_reading_of_the_text_alone():
    """A second implementation, tests/overlays/by_the_letter.py, where the text says all that decides (D-180)."""
    compared = 0
    for history in VECTORS["wallet"]["histories"]:
        if history["settings"] not in ({}, {"bridges": [VECTORS["wallet"]["keys"]["bridge"]["public"]]}):
            continue  # the text knows neither grants nor owners
        events, _ = read(VECTORS["wallet"], history)
        places = {(history["labels"][label][0], seq) for label, seq, _ in history["expect"]["letter"]["faults"]}
        good = [e for e in events if (e.label.hex(), e.stream_seq) not in places and e.hdr.schema in SCHEMA_TEXTS]
        bridge = unhex(VECTORS["wallet"]["keys"]["bridge"]["public"])
        ordered = sorted(good, key=lambda event: event.order)
        rows = [row | {"bridge": e.client_id == bridge} for row, e in zip(messages(good), ordered, strict=True)]
        state = cbor.decode(unhex(history["expect"]["letter"]["state"]))
        shown = {wallet_id: dict(zip(state0(), row, strict=False)) for wallet_id, row in state["wallets"].items()}
        if not any(row["bridge"] and not history["settings"] for row in rows):
            assert {key: row for key, row in shown.items() if row != state0()} == Wallets().fold(rows), history["name"]
            compared += 1
    assert compared > 10
    for history in VECTORS["id"]["histories"]:
        if history["settings"]:
            continue
        events, _ = read(VECTORS["id"], history)
        places = {(history["labels"][label][0], seq) for label, seq, _ in history["expect"]["letter"]["faults"]}
        good = [e for e in events if (e.label.hex(), e.stream_seq) not in places and e.hdr.schema in SCHEMA_TEXTS]
        result = cbor.decode(unhex(history["expect"]["letter"]["state"]))
        contexts = {("ctx", *key): row.get("display_name") for key, row in result["contexts"]}
        assert contexts == {key: value for key, value in last_writers(messages(good)).items() if key[0] == "ctx"}


@pytest.mark.parametrize("name", ["wallet", "id"])
def test_each_row_in_which_the_letter_and_the_default_part_has_a_history(name):
    """docs/compliance.md, "Where the defaults part from the text"."""
    scripts = BY_NAME[name].scripts
    histories = VECTORS[name]["histories"][-len(scripts) :]
    for script, history in zip(scripts, histories, strict=True):
        assert history["name"].endswith(script.__name__.removeprefix("script_"))
        default, letter = (history["expect"][policy] for policy in ("default", "letter"))
        assert default["state"] != letter["state"], history["name"]
        assert letter["faults"] == []


# The independent program


def test_the_independent_program_agrees_and_imports_nothing_of_veen(tmp_path):
    script = f"""
import runpy, sys
sys.argv = ["veen_verify_histories.py", *{[str(path) for path in FILES.values()]!r}]
sys.modules["veen"] = None  # any import of it fails
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[:4] for line in done.stdout.splitlines()] == ["OK: "] * len(FILES)


def altered(history):
    """Yield what the history claims, each claim changed in turn: bytes of the log, faults, places, states."""
    fault = history.get("wire_fault")
    read_entries = fault["entry"] - 1 if fault else len(history["log"])
    for entry in range(read_entries):
        for part in (0, 1):
            changed = copy.deepcopy(history)
            text = changed["log"][entry][part]
            middle = len(text) // 2
            changed["log"][entry][part] = text[:middle] + ("1" if text[middle] == "0" else "0") + text[middle + 1 :]
            yield f"log {entry} {part}", changed
    if fault:
        yield "no fault", {name: value for name, value in history.items() if name != "wire_fault"}
        yield "fault entry", {**history, "wire_fault": {**fault, "entry": fault["entry"] + 1}}
        yield "fault rules", {**history, "wire_fault": {**fault, "rules": [*fault["rules"], "SEQ"]}}
    else:
        yield "a fault", {**history, "wire_fault": {"entry": 1, "rules": ["SEQ"]}}
    for policy, listed in history["expect"].items():
        for name, value in (
            ("state_tag", listed["state_tag"] + "x"),
            ("state", listed["state"] + "00"),
            ("state_hash", listed["state_hash"][::-1]),
            ("faults", [*listed["faults"], [0, 99, "OVL.CBOR"]]),
        ):
            yield f"{policy} {name}", {**history, "expect": {**history["expect"], policy: {**listed, name: value}}}
    label, stream_id, epoch = history["labels"][0]
    yield "label", {**history, "labels": [[label, stream_id, epoch + 1], *history["labels"][1:]]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.slow) for n in FILES])
def test_the_independent_program_notices_every_altered_claim(name):
    unnoticed = []
    for history in VECTORS[name]["histories"]:
        for what, changed in altered(history):
            try:
                veen_verify_histories.check_file({**VECTORS[name], "histories": [changed]})
                unnoticed.append(f"{history['name']}: {what}")
            except WRONG:
                pass
    assert unnoticed == []


def test_a_file_that_is_wrong_or_missing_has_its_status(tmp_path, capsys):
    path = tmp_path / "kv.json"
    path.write_text(FILES["kv"].read_text("utf-8").replace('"format_version":1', '"format_version":2'), "utf-8")
    assert veen_verify_histories.main([str(FILES["kv"]), str(path)]) == 1
    assert [line[:7] for line in capsys.readouterr().out.splitlines()] == ["OK: 12 ", "FAILED:"]
    assert veen_verify_histories.main([str(tmp_path / "missing")]) == 2
    assert veen_verify_histories.main([]) == 2
