"""hub_id, routing_key, stream_id, epoch and label: spec §2, §12, D-21 … D-26."""

import ast
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies

import veen.core
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import InvalidKeyError, MalformedError
from veen.core.labels import epoch_at, epoch_window, hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import EMPTY_ATT_ROOT, att_root_of

# --- golden values ------------------------------------------------------------------------------------------


@pytest.mark.req("CRY-12", "CRY-13", "CRY-14")
def test_the_golden_names_of_a_hub_hold():
    """decisions §18: hub_pk = 0x00 × 32."""
    hub_id = hub_id_of(bytes(32))
    routing_key = routing_key_of(hub_id)
    assert hub_id.hex() == "bbffb7fed5790a1b6f45545c11492bed154eee4d8395d0790faabca7dfed2054"
    assert routing_key.hex() == "56585d9211977ba66b6a4d775fecb880d616d623488d4e17a1454a77c3b7acef"
    label = label_of(routing_key, stream_id_of("test"), 0)
    assert label.hex() == "41d2c94ec1a80d20a69ed8765ceaeebc67c0a19b39474534b93adad0f607c12a"


def test_the_golden_att_root_of_no_attachments_holds():
    """decisions §18, D-13"""
    assert EMPTY_ATT_ROOT.hex() == "d8502e2b7365f07d065ff0ef5d1237b733d31554ac4b5e7dd806b6e15552d311"
    assert att_root_of([]) == EMPTY_ATT_ROOT == sha256(b"veen/att-root\x00").digest()


# --- formulas -----------------------------------------------------------------------------------------------


@pytest.mark.req("CRY-12")
@given(strategies.BSTR32, strategies.BSTR32, strategies.UINT)
def test_a_label_is_the_tagged_hash_of_routing_key_stream_and_epoch(routing_key, stream_id, epoch):
    """spec §2"""
    data = b"veen/label\x00" + routing_key + stream_id + epoch.to_bytes(8, "big")
    assert label_of(routing_key, stream_id, epoch) == sha256(data).digest()


@pytest.mark.req("CRY-13", "CRY-14")
@given(strategies.BSTR32)
def test_hub_id_and_routing_key_follow_from_the_first_key(hub_pk):
    """D-21, spec §12: no other input, so nothing can vary across restarts."""
    hub_id = sha256(b"veen/hub-id\x00" + hub_pk).digest()
    assert hub_id_of(hub_pk) == hub_id
    assert routing_key_of(hub_id) == sha256(b"veen/routing_key\x00" + hub_id).digest()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_hub_key_has_32_bytes(size):
    """spec §3.2"""
    with pytest.raises(InvalidKeyError, match=f"found {size}"):
        hub_id_of(bytes(size))


@pytest.mark.req("CRY-14")
def test_the_hub_id_is_not_in_what_a_hub_hands_out():
    """spec-2 §1.2: neither MSG nor RECEIPT nor CHECKPOINT shows it, nor the routing key."""
    hub = SigningKey(b"\x02" * 32)
    hub_id = hub_id_of(hub.public)
    label = label_of(routing_key_of(hub_id), stream_id_of("test"), 0)
    msg = Msg.compose(hub, profile_id=bytes(32), label=label, client_seq=1, prev_ack=0, auth_ref=None, ciphertext=b"ct")
    leaf = msg.leaf_hash()
    receipt = Receipt.issue(hub, label=label, stream_seq=1, leaf_hash=leaf, mmr_root=leaf, hub_ts=1)
    checkpoint = Checkpoint.issue(hub, label_prev=label, label_curr=label, upto_seq=1, mmr_root=leaf, epoch=0)
    for obj in (msg, receipt, checkpoint):
        assert hub_id not in obj.to_bytes()
        assert routing_key_of(hub_id) not in obj.to_bytes()


# --- stream names -------------------------------------------------------------------------------------------


@pytest.mark.req("CRY-15")
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=80))
def test_every_name_has_a_stream_id_of_32_bytes(name):
    """spec §2, D-22: the hash of its UTF-8 form, unless it is an id already."""
    stream_id = stream_id_of(name)
    assert len(stream_id) == 32
    if len(name) != 64:
        assert stream_id == sha256(name.encode()).digest()


@pytest.mark.req("CRY-15")
@given(strategies.BSTR32)
def test_64_hex_digits_are_the_id_itself(stream_id):
    """D-22"""
    assert stream_id_of(stream_id.hex()) == stream_id
    assert stream_id_of(stream_id.hex().upper()) == stream_id


@pytest.mark.req("CRY-15")
@pytest.mark.parametrize(
    "name",
    ["ab " * 21 + " ", " " * 64, "ab" * 31 + " \t", "ab" * 31 + "xy", "\u0661" * 64, "0x" + "ab" * 31],
    ids=["spaced", "spaces", "ends in spaces", "letters", "other digits", "prefixed"],
)
def test_a_name_of_64_characters_that_are_not_all_hex_digits_is_hashed(name):
    """D-22: white space is part of a name."""
    assert len(name) == 64
    assert stream_id_of(name) == sha256(name.encode()).digest()


@pytest.mark.parametrize("name", ["", "\ud800", "a\udc80"], ids=["empty", "surrogate", "undecodable"])
def test_what_is_no_text_is_no_name(name):
    """D-22: nothing, or what has no UTF-8 form (such as undecodable bytes of a command line)."""
    with pytest.raises(MalformedError, match="stream"):
        stream_id_of(name)


def test_names_are_not_normalised():
    """D-22, D-06"""
    assert stream_id_of("é") != stream_id_of("e\u0301")
    assert stream_id_of("Test") != stream_id_of("test")


# --- epochs -------------------------------------------------------------------------------------------------


@pytest.mark.req("CRY-11")
@given(st.integers(0, 2**63), st.integers(0, 10**9))
def test_the_epoch_counts_whole_periods(seconds, epoch_sec):
    """spec §3.2: floor(t / epoch_sec), or 0 where labels do not rotate."""
    epoch = epoch_at(seconds, epoch_sec)
    if epoch_sec == 0:
        assert epoch == 0
    else:
        assert epoch * epoch_sec <= seconds < (epoch + 1) * epoch_sec


@pytest.mark.parametrize(
    ("epoch_sec", "skew", "window"), [(0, 60, 0), (60, 0, 0), (60, 59, 0), (60, 60, 1), (60, 119, 1), (1, 16, 16)]
)
def test_the_window_is_the_skew_in_whole_epochs(epoch_sec, skew, window):
    """spec §12: floor(max_epoch_skew_sec / epoch_sec); with epoch_sec = 0 only epoch 0 is valid."""
    assert epoch_window(epoch_sec, skew) == window


# --- tags ---------------------------------------------------------------------------------------------------


def tags_in(source):
    """The literal tags that a module hands to Ht, tag_prefix and Tags."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            arguments = {
                "Ht": node.args[:1],
                "tag_prefix": node.args[:1],
                "Tags": [keyword.value for keyword in node.keywords if keyword.arg != "hash_single_peak"],
            }.get(node.func.id, [])
            yield from (arg.value for arg in arguments if isinstance(arg, ast.Constant))


@pytest.mark.req("CRY-17")
def test_all_tags_of_the_core_begin_with_veen():
    """spec-1 §18: domain separation from everything else that hashes."""
    sources = [path.read_text("utf-8") for path in Path(veen.core.__path__[0]).rglob("*.py")]
    tags = {tag for source in sources for tag in tags_in(source)}
    assert {"veen/sig", "veen/leaf", "veen/label", "veen/cap", "veen/cap-link", "veen/mmr-node", "veen/aad"} <= tags
    assert [tag for tag in tags if not tag.startswith("veen/")] == ["id/realm"]  # hubs name realms as ID does (AUTH1)
