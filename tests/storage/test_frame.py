"""Frames: the header of spec §4.8.1, and a CorruptError with the byte for everything else."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.io.errors import CorruptError
from veen.storage import frame

LABEL = b"L" * 32


@pytest.mark.req("STOR-01", "STOR-02", "STOR-03")
def test_the_header_is_the_one_of_the_spec():
    framed = frame.encode(LABEL, 7, b"message", b"receipt!")
    entry_hash = hashlib.sha256(b"veen/entry" + b"message" + b"receipt!").digest()
    header = struct.pack(">BB", 1, 0) + LABEL + struct.pack(">QII", 7, 7, 8) + entry_hash
    assert framed.to_bytes() == header + b"messagereceipt!"
    assert frame.HEADER_BYTES == len(header) == 82
    assert framed.size == len(framed.to_bytes())
    assert frame.pack(LABEL, 7, b"message", b"receipt!") == (framed.to_bytes(), entry_hash)  # what a hub writes


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=6))
def test_a_run_of_frames_reads_back_with_offsets(pairs):
    written = [frame.encode(LABEL, seq, msg, receipt) for seq, (msg, receipt) in enumerate(pairs, start=1)]
    data = b"".join(framed.to_bytes() for framed in written)
    read = list(frame.frames(data, base=100))
    assert [framed for _, framed in read] == written
    offset = 100
    for place, framed in read:
        assert place == offset
        offset += framed.size


@pytest.mark.req("STOR-04")
def test_every_flipped_bit_of_what_the_frame_covers_is_found():
    data = frame.encode(LABEL, 1, b"message", b"receipt").to_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        if 2 <= bit // 8 < 42:
            continue  # label and stream_seq: compared with the RECEIPT and the place, by the reader and fsck
        with pytest.raises(CorruptError):
            list(frame.frames(bytes(flipped)))


@pytest.mark.req("STOR-04")
def test_a_cut_frame_names_the_file_and_the_byte():
    whole = frame.encode(LABEL, 1, b"message", b"receipt").to_bytes()
    for size in range(1, len(whole)):
        with pytest.raises(CorruptError) as caught:
            list(frame.frames(whole + whole[:size], path="log/x", base=50))
        assert (caught.value.path, caught.value.offset) == ("log/x", 50 + len(whole))


def test_an_impossible_length_is_not_believed():
    header = struct.pack(">BB32sQII32s", 1, 0, LABEL, 1, 0xFFFFFFFF, 7, bytes(32))
    with pytest.raises(CorruptError, match="impossible"):
        frame.read(header + b"x" * 100, 0)
