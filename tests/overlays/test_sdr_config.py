"""sdr.config.v1 and sdr.checkpoint.v1: the configuration as a fold, and one root over all streams (D-105, D-122)."""

import pytest

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.event import Event
from veen.core.hashing import Ht, u64be
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays.framework.schema import InvalidBody
from veen.overlays.recorder import config
from veen.overlays.recorder.checkpoint import (
    EMPTY_ROOT,
    RecorderCheckpoint,
    StreamHead,
    checkpoint,
    log_root_of,
)

ADMIN, OTHER = b"\x01" * 32, b"\x02" * 32
A, B, C = (bytes([n]) * 32 for n in (10, 11, 12))
HUB = SigningKey(b"\x05" * 32)


def at(seq, draft, *, ts=100, client=ADMIN):
    return Event(
        stream_id=bytes(32), label=bytes(32), epoch=0, stream_seq=seq, leaf_hash=bytes([seq]) * 32, client_id=client,
        auth_ref=None, hub_ts=ts, ts=ts, hdr=PayloadHdr(schema=draft.schema), body=draft.body,
    )  # fmt: skip


def mapped(kind, stream_id, stream, ts=1):
    return config.change("map", ts=ts, event_type=kind, stream_id=stream_id, stream=stream)


def test_the_mapping_at_a_moment_is_that_of_the_records_before_it():
    history = config.history_of(
        [at(1, mapped("login", A, "a"), ts=100), at(2, mapped("login", B, "b"), ts=200)], admins=[ADMIN]
    )
    assert [history.at(ts).mapping.get("login") for ts in (99, 100, 199, 200, 999)] == [None, A, A, B, B]
    assert not history.at(99).is_closed
    assert history.now.is_closed


@pytest.mark.req("SDR-04")
def test_a_rename_moves_every_type_of_the_stream_and_stays_in_the_history():
    move = config.change("rename", ts=3, stream_id=A, stream="a", to=(C,), to_names=("c",), reason="new team")
    history = config.history_of(
        [at(1, mapped("x", A, "a")), at(2, mapped("y", B, "b")), at(3, move, ts=300)], admins=None
    )
    assert history.now.mapping == {"x": C, "y": B}
    assert history.at(299).mapping == {"x": A, "y": B}
    assert history.now.streams == {A: "a", B: "b", C: "c"}


@pytest.mark.req("SDR-05")
def test_a_record_of_anyone_but_the_admin_is_reported_and_counts_for_nothing():
    history = config.history_of([at(1, mapped("x", A, "a"), client=OTHER)], admins=[ADMIN])
    assert [issue.code for issue in history.issues] == ["SDR.ADMIN"]
    assert history.now == config.Configuration()


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "map", "stream_id": A, "stream": "a"},
        {"kind": "checkpoint"},
        {"kind": "checkpoint", "every_sec": 0},
        {"kind": "producer", "stream_id": A, "stream": "a"},
        {"kind": "rename", "stream_id": A, "stream": "a", "to": (B, C), "to_names": ("b",)},
    ],
)
def test_a_record_needs_the_fields_of_its_change(fields):
    with pytest.raises(InvalidBody) as caught:
        config.change(ts=1, **fields)
    assert caught.value.code == "SDR.CHANGE"


@pytest.mark.req("SDR-06")
def test_the_profile_id_follows_from_the_configuration_alone():
    mapping = config.history_of([at(1, mapped("x", A, "a")), at(2, mapped("y", B, "b"))], None).now
    two = config.history_of([at(1, mapped("y", B, "b")), at(2, mapped("x", A, "a"))], None).now
    assert mapping.profile_id() == two.profile_id() != config.Configuration().profile_id()
    assert mapping.profile_id() == Ht("sdr/profile", cbor.encode(cbor.sort_keys(mapping.to_tree())))


def head(label, last_seq, root=b"\x07" * 32):
    signed = Checkpoint.issue(HUB, label_prev=label, label_curr=label, upto_seq=last_seq, mmr_root=root, epoch=0)
    return StreamHead(
        stream_id=label, label=label, epoch=0, last_seq=last_seq, mmr_root=root, checkpoint=signed.to_bytes()
    )


FIELDS = {
    "hub_id": bytes(32), "hub_pk": HUB.public, "profile_id": bytes(32), "sdr_profile_id": bytes(32), "ts": 5,
}  # fmt: skip


@pytest.mark.req("SDR-06")
def test_log_root_binds_every_label_its_position_and_its_root():
    empty = StreamHead(stream_id=C, label=C, epoch=0, last_seq=0, mmr_root=EMPTY_ROOT, checkpoint=b"")
    body = RecorderCheckpoint.from_bytes(checkpoint([head(B, 4), head(A, 3), empty], **FIELDS, prev=b"\x09" * 32).body)
    assert [entry.label for entry in body.streams] == [A, B, C]
    assert body.log_root == log_root_of(body.streams)
    assert body.events == 7
    leaves = [Ht("sdr/log-leaf", entry.label + u64be(entry.last_seq) + entry.mmr_root) for entry in body.streams]
    pair = Ht("sdr/log-node", leaves[0] + leaves[1])
    assert body.log_root == Ht("sdr/log-root", leaves[2] + pair)
    assert log_root_of([]) == EMPTY_ROOT


@pytest.mark.req("SDR-06")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda tree: tree.update(log_root=bytes(32)), "SDR.LOG_ROOT"),
        (lambda tree: tree["streams"].reverse(), "SDR.ORDER"),
        (lambda tree: tree["streams"][0].__setitem__(3, 9), "SDR.LOG_ROOT"),
    ],
)
def test_a_checkpoint_that_does_not_add_up_is_refused(change, code):
    tree = cbor.decode(checkpoint([head(A, 3), head(B, 4)], **FIELDS).body)
    change(tree)
    with pytest.raises(InvalidBody) as caught:
        RecorderCheckpoint.from_bytes(cbor.encode(tree))
    assert caught.value.code == code


def test_a_checkpoint_of_another_position_is_refused():
    wrong = head(A, 3)
    moved = StreamHead(stream_id=A, label=A, epoch=0, last_seq=4, mmr_root=wrong.mmr_root, checkpoint=wrong.checkpoint)
    with pytest.raises(InvalidBody) as caught:
        checkpoint([moved], **FIELDS)
    assert caught.value.code == "SDR.CHECKPOINT"
