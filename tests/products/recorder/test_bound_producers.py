"""Producers whose client keys are bound to principals, instead of naming their successors (D-179, SDR0)."""

from typing import Any, NamedTuple

from tests.overlays.speaking_builders import KEYS, PRINCIPALS, STREAM, KeyLog, bind, end

from veen.core.event import Event
from veen.overlays.framework.schema import Draft
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.config import Configuration, History
from veen.products.recorder.verify import _Judge

P = PRINCIPALS[0].public
K1, K2 = KEYS[0].public, KEYS[1].public


class Read(NamedTuple):
    """What the judge asks of an entry."""

    event: Event
    seq: int
    error: str | None = None


def recorded(log, key, **where):
    fields: dict[str, Any] = {"subject_id": "s", "event_type": "tick", "event_time": 1, "origin": "o"}
    return log.send(sdr.event(principal_id=key.public, **fields), key, **where)


def findings(log, *, producers, withdrawn=None):
    own = frozenset([STREAM])
    configuration = Configuration(
        producers=dict.fromkeys(producers, own), withdrawn=dict.fromkeys(withdrawn or (), own)
    )
    judge = _Judge(History(((0, configuration),), ()), False)
    for event in log.all():
        entry: Any = Read(event, event.stream_seq)
        judge.entry("record/app/web", STREAM, entry)
    return [(finding.code, finding.seq) for finding in judge.findings]


def rotated():
    """Two keys of one principal, one after the other, and a stranger's."""
    log = KeyLog()
    log.send(bind(0, 0), KEYS[0])
    recorded(log, KEYS[0])
    log.send(bind(0, 1), KEYS[1])
    recorded(log, KEYS[1])
    recorded(log, KEYS[2])
    return log


def test_the_keys_of_a_principal_that_is_a_producer_are_producers():
    assert findings(rotated(), producers=[P]) == [("SDR.PRODUCER", 5)]


def test_a_binding_stands_for_a_rotation_that_the_old_key_named():
    """The configuration names the first key: the next one speaks for it."""
    assert findings(rotated(), producers=[K1]) == [("SDR.PRODUCER", 5)]


def test_a_principal_that_was_withdrawn_is_no_producer_with_any_key():
    assert findings(rotated(), producers=[K1], withdrawn=[P]) == [("SDR.PRODUCER", seq) for seq in (2, 4, 5)]
    assert findings(rotated(), producers=[P], withdrawn=[K2]) == [("SDR.PRODUCER", seq) for seq in (4, 5)]


def test_void_statements_and_keys_without_a_voice_are_findings():
    log = KeyLog()
    log.send(bind(0, 0), KEYS[0])
    log.send(bind(1, 0), KEYS[0])
    log.send(end(0, 0), KEYS[0])
    recorded(log, KEYS[0])
    log.send(Draft(schema=bind(0, 0).schema, body=b"\xff"), KEYS[0])
    assert findings(log, producers=[P]) == [("SPEAKS.BOUND", 2), ("SPEAKS.ENDED", 4), ("OVL.CBOR", 5)]
