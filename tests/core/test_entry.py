"""The layout of an entry, held to the bytes that the objects write (spec §4.1, §4.3, §4.8.1)."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import veen
from veen.core import entry
from veen.core.cbor import U64_MAX
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.storage import frame

KEY = SigningKey(b"\x07" * 32)
LABEL, PROFILE_ID = H(b"label"), H(b"profile")
NUMBERS = st.integers(0, U64_MAX)


@given(NUMBERS, NUMBERS, st.none() | st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_fields_of_a_msg_lie_where_their_names_say(client_seq, prev_ack, auth_ref, ciphertext):
    msg = Msg.compose(
        KEY,
        profile_id=PROFILE_ID,
        label=LABEL,
        client_seq=client_seq,
        prev_ack=prev_ack,
        auth_ref=auth_ref,
        ciphertext=ciphertext,
    )
    raw = msg.to_bytes()
    assert raw.startswith(entry.MSG_HEAD)
    assert raw[entry.MSG_PROFILE_AT :].startswith(PROFILE_ID + entry.HASH_HEAD)
    assert raw[entry.MSG_LABEL_AT :].startswith(LABEL + entry.HASH_HEAD)
    assert raw[entry.MSG_CLIENT_AT : entry.MSG_SEQ_AT] == KEY.public
    assert raw[-entry.SIG_TAIL :] == entry.SIG_HEAD + msg.sig
    assert Msg.digest_of(raw) == msg.signing_digest()


@given(NUMBERS, NUMBERS)
def test_fields_of_a_receipt_lie_where_their_names_say(stream_seq, hub_ts):
    receipt = Receipt.issue(KEY, label=LABEL, stream_seq=stream_seq, leaf_hash=H(b"l"), mmr_root=H(b"r"), hub_ts=hub_ts)
    raw = receipt.to_bytes()
    assert raw.startswith(entry.RECEIPT_HEAD)
    assert raw[entry.RECEIPT_LABEL_AT : entry.RECEIPT_SEQ_AT] == LABEL
    assert raw[-entry.SIG_TAIL :] == entry.SIG_HEAD + receipt.hub_sig
    assert len(raw) <= entry.MAX_RECEIPT_BYTES


def test_fields_of_a_frame_lie_where_their_names_say():
    data = frame.encode(LABEL, 7, b"message", b"receipt").to_bytes()
    assert data.startswith(entry.FRAME_HEAD)
    assert data[entry.FRAME_LABEL_AT : entry.FRAME_SEQ_AT] == LABEL
    assert int.from_bytes(data[entry.FRAME_SEQ_AT : entry.FRAME_LENGTHS_AT], "big") == 7
    assert entry.FRAME_LENGTHS.unpack_from(data, entry.FRAME_LENGTHS_AT) == (7, 7)
    assert data[entry.FRAME_HASH_AT : entry.FRAME_BYTES] == H(b"veen/entry" + b"messagereceipt")
    assert entry.entry_hash_of(b"messagereceipt") == entry.entry_hash_of(b"message", b"receipt")


@pytest.mark.parametrize(
    "pattern", [r"\\x58\\x[24]0", r"\\x8[7a]\\x01", r"veen/entry\b", r"veen/leaf\b", r">BB32sQII32s"]
)
def test_no_other_module_spells_the_layout(pattern):
    root = Path(veen.__file__).parent
    paths = (path.relative_to(root) for path in root.rglob("*.py"))
    code = {path: (root / path).read_text("utf-8") for path in paths if path.parts[0] not in ("vesn", "native")}
    assert {path.as_posix() for path, text in code.items() if re.search(pattern, text)} <= {"core/entry.py"}
