"""The vectorised decoder says what the decoder of the core says, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.errors import FormatError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError
from veen.storage import frame
from veen.verify.vectors import Departs, decode

LABEL = b"L" * 32
MAX = DEFAULT_LIMITS.max_msg_bytes
hashes, signatures = st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64)
seqs = st.one_of(st.integers(0, 30), st.integers(200, 300), st.integers(65_000, 66_000), st.integers(0, 2**63 - 1))


@st.composite
def entries(draw):
    seq = draw(seqs)
    msg = Msg(
        profile_id=draw(hashes),
        label=LABEL,
        client_id=draw(hashes),
        client_seq=draw(seqs),
        prev_ack=draw(seqs),
        auth_ref=draw(st.none() | hashes),
        ct_hash=draw(hashes),
        ciphertext=draw(st.binary(max_size=300)),
        sig=draw(signatures),
    )
    receipt = Receipt(
        label=LABEL,
        stream_seq=seq,
        leaf_hash=draw(hashes),
        mmr_root=draw(hashes),
        hub_ts=draw(seqs),
        hub_sig=draw(signatures),
    )
    return msg, receipt


def framed(pairs):
    return b"".join(frame.encode(LABEL, r.stream_seq, m.to_bytes(), r.to_bytes()).to_bytes() for m, r in pairs)


def rows(vector):
    """What a vector says, as objects of the core."""
    data = vector.data.tobytes()

    def cut(at, size=32):
        return data[at : at + size]

    for i in range(len(vector)):
        auth = int(vector.auth_ref_at[i])
        msg = Msg(
            profile_id=cut(vector.msg_at[i] + 4),
            label=cut(vector.msg_at[i] + 38),
            client_id=cut(vector.msg_at[i] + 72),
            client_seq=int(vector.client_seq[i]),
            prev_ack=int(vector.prev_ack[i]),
            auth_ref=None if auth < 0 else cut(auth),
            ct_hash=cut(vector.ct_hash_at[i]),
            ciphertext=data[vector.ciphertext_at[i] : vector.msg_sig_at[i] - 2],
            sig=cut(vector.msg_sig_at[i], 64),
        )
        receipt = Receipt(
            label=cut(vector.receipt_at[i] + 4),
            stream_seq=int(vector.stream_seq[i]),
            leaf_hash=cut(vector.leaf_at[i]),
            mmr_root=cut(vector.root_at[i]),
            hub_ts=int(vector.hub_ts[i]),
            hub_sig=cut(vector.hub_sig_at[i], 64),
        )
        yield msg, receipt


@given(st.lists(entries(), max_size=8), st.integers(0, 400))
def test_every_entry_comes_back_and_a_cut_one_is_left_out(pairs, cut):
    data = framed(pairs)
    vector = decode(data, LABEL, max_msg_bytes=MAX)
    assert list(rows(vector)) == pairs
    assert vector.end == len(data)
    short = data[: max(0, len(data) - cut)]
    part = decode(short, LABEL, max_msg_bytes=MAX)
    whole = sum(1 for _ in rows(part))
    assert list(rows(part)) == pairs[:whole]
    assert len(framed(pairs[:whole])) == part.end <= len(short)


@given(st.lists(entries(), min_size=1, max_size=4), st.data())
def test_a_changed_byte_is_seen_or_is_what_the_core_reads_too(pairs, data):
    """Whatever the vectorised decoder accepts, the strict one accepts as the same values."""
    good = bytearray(framed(pairs))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    try:
        vector = decode(bytes(good), LABEL, max_msg_bytes=MAX)
    except Departs:
        return
    entries_read = list(rows(vector))
    pos = 0
    for msg, receipt in entries_read:
        raw = good[pos + frame.HEADER_BYTES : pos + frame.HEADER_BYTES + len(msg.to_bytes())]
        assert Msg.from_bytes(bytes(raw)) == msg
        start = pos + frame.HEADER_BYTES + len(raw)
        assert Receipt.from_bytes(bytes(good[start : start + len(receipt.to_bytes())])) == receipt
        pos = start + len(receipt.to_bytes())


@pytest.mark.parametrize("field", ["client_seq", "prev_ack"])
def test_numbers_that_are_not_in_their_shortest_form_depart(field):
    """I10, on whole columns."""
    msg = Msg(
        profile_id=bytes(32),
        label=LABEL,
        client_id=bytes(32),
        client_seq=7,
        prev_ack=9,
        auth_ref=None,
        ct_hash=bytes(32),
        ciphertext=b"",
        sig=bytes(64),
    ).to_bytes()
    receipt = Receipt(label=LABEL, stream_seq=1, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=5, hub_sig=bytes(64))
    at = 104 if field == "client_seq" else 105
    longer = msg[:at] + b"\x18" + msg[at:]
    with pytest.raises(FormatError):
        Msg.from_bytes(longer)
    data = frame.encode(LABEL, 1, longer, receipt.to_bytes()).to_bytes()
    with pytest.raises(Departs):
        decode(data, LABEL, max_msg_bytes=MAX)


def test_another_label_departs_and_nothing_is_nothing():
    assert len(decode(b"", LABEL, max_msg_bytes=MAX)) == 0
    msg = b"\x00"
    with pytest.raises(Departs):
        decode(frame.encode(b"M" * 32, 1, msg, msg).to_bytes(), LABEL, max_msg_bytes=MAX)
    with pytest.raises(CorruptError):
        frame.read(b"\x00" * 200, 0)
