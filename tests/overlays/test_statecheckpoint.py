"""state.checkpoint.v1: what a checkpoint says, and which of several counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from veen.core import cbor
from veen.core.hashing import H
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.schema import Issue, decode
from veen.overlays.framework.snapshot import Cut
from veen.overlays.kv import KvFold
from veen.overlays.operations.state_checkpoint import (
    CHECKPOINT,
    StateCheckpoint,
    StateCheckpointFold,
    checkpoint,
    state_id_of,
)
from veen.overlays.queue import QueueFold
from veen.testing.events import FakeLog
from veen.testing.laws import check_laws

IDS = [bytes([n]) * 32 for n in range(4)]
CUTS = [Cut(label=IDS[1], upto_seq=9, mmr_root=IDS[3]), Cut(label=IDS[0], upto_seq=4, mmr_root=IDS[2])]


def stated(**changed):
    fields = {"state_id": IDS[0], "state_class": "kv", "state_hash": IDS[1], "cuts": CUTS}
    return checkpoint(**(fields | changed))


@pytest.mark.req("SNAP-01")
def test_a_checkpoint_has_the_fields_of_the_document_in_its_order():
    draft = stated()
    assert draft.schema == H(b"veen/schema:state.checkpoint.v1") == CHECKPOINT.id
    tree = cbor.decode(draft.body)
    assert list(tree) == ["state_id", "upto_stream_seq", "mmr_root", "state_hash", "state_class", "metadata"]
    assert (tree["upto_stream_seq"], tree["mmr_root"]) == (9, IDS[3])
    body = StateCheckpoint.from_bytes(draft.body)
    assert body.cuts_in(IDS[3]) == tuple(sorted(CUTS, key=lambda cut: cut.label))
    assert "state.checkpoint" in BUILTIN.folds


@pytest.mark.req("SNAP-01")
def test_a_checkpoint_without_metadata_is_about_the_label_it_stands_in():
    body = StateCheckpoint(state_id=IDS[0], upto_stream_seq=7, mmr_root=IDS[1], state_hash=IDS[2], state_class="kv")
    assert StateCheckpoint.from_bytes(body.to_bytes()) == body
    assert body.cuts_in(IDS[3]) == (Cut(label=IDS[3], upto_seq=7, mmr_root=IDS[1]),)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"cuts": []}, "STATE.CUTS"),
        ({"cuts": "all"}, "STATE.CUTS"),
        ({"cuts": [[IDS[0], 7]]}, "STATE.CUTS"),
        ({"cuts": [[IDS[0], -1, IDS[1]]]}, "STATE.CUTS"),
        ({"cuts": [[IDS[0], 6, IDS[1]]]}, "STATE.CUTS"),
        ({"cuts": [[IDS[1], 7, IDS[1]], [IDS[0], 7, IDS[1]]]}, "STATE.CUTS"),
        ({"cuts": [[IDS[0], 7, IDS[1]], [IDS[0], 7, IDS[1]]]}, "STATE.CUTS"),
        ({"note": "anything else is free"}, None),
        ("free", None),
    ],
)
def test_cuts_that_say_nothing_are_an_issue_of_the_body(metadata, code):
    fields = {"state_id": IDS[0], "upto_stream_seq": 7, "mmr_root": IDS[1], "state_hash": IDS[2], "state_class": "kv"}
    log = FakeLog()
    event = log.append(type(stated())(schema=CHECKPOINT.id, body=cbor.encode(fields | {"metadata": metadata})))
    result = decode(event, CHECKPOINT)
    assert (result.code if isinstance(result, Issue) else None) == code


def test_a_state_has_a_class_and_a_checkpoint_a_cut():
    fields = {"state_id": IDS[0], "upto_stream_seq": 7, "mmr_root": IDS[1], "state_hash": IDS[2], "state_class": ""}
    event = FakeLog().append(type(stated())(schema=CHECKPOINT.id, body=cbor.encode(fields)))
    result = decode(event, CHECKPOINT)
    assert isinstance(result, Issue)
    assert result.code == "STATE.CLASS"
    with pytest.raises(ValueError, match="at least one label"):
        stated(cuts=[])


@pytest.mark.req("SNAP-05")
def test_of_several_checkpoints_for_one_state_and_position_the_latest_counts():
    log, fold = FakeLog(), StateCheckpointFold()
    log.extend([stated(state_hash=IDS[2]), stated(state_hash=IDS[3]), stated(state_id=IDS[1])])
    view = fold.view(fold.summarize(reversed(log.all())))
    assert {key: item.state_hash for key, item in view.items()} == {(IDS[0], 9): IDS[3], (IDS[1], 9): IDS[1]}


def test_the_id_of_a_state_names_the_fold_its_settings_and_the_streams():
    streams = [IDS[0], IDS[1]]
    ids = {
        state_id_of(KvFold(), streams),
        state_id_of(KvFold(), streams[:1]),
        state_id_of(QueueFold(), streams),
        state_id_of(QueueFold(groups=["a"]), streams),
    }
    assert len(ids) == 4
    assert state_id_of(KvFold(), [*reversed(streams), IDS[0]]) == state_id_of(KvFold(), streams)


@pytest.mark.req("SNAP-05")
@examples(30)
@given(data=st.data())
def test_checkpoints_keep_the_laws_of_folds(data):
    def write(draw, log):
        return stated(state_id=draw(st.sampled_from(IDS)), state_hash=draw(st.sampled_from(IDS)))

    check_laws(data, StateCheckpointFold, write)
