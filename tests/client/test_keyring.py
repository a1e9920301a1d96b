"""Stream keys, their text form, and how a stream is named (D-10, D-22)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import seeded
from tests.examples import examples

from veen.client.errors import KeyTextInvalid, NoReaderKey, UnknownStream
from veen.client.identity import bech32
from veen.client.identity.keyring import MAX_NAME_BYTES, Keyring, StreamKeys, StreamRef
from veen.core.crypto import x25519
from veen.core.errors import FormatError, MalformedError
from veen.core.hashing import H
from veen.core.labels import label_of

ROOM = StreamKeys.create("room", random=seeded("room"))
BOARD = StreamKeys.create("board", random=seeded("board"))
TEXTS = [ROOM.to_text(), ROOM.for_writers().to_text()]
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda name: not name.startswith(("hex:", "label:"))
)

# --- naming -------------------------------------------------------------------------------------------------


@given(NAMES)
def test_a_name_is_hashed_and_kept(name):
    """D-22"""
    ref = StreamRef.parse(name)
    if ref.name is not None:
        assert ref.stream_id == H(name.encode())
        assert str(ref) == name
    else:
        assert len(name) == 64


def test_sixty_four_hex_digits_are_an_id_with_or_without_hex():
    """D-22, UX: stream argument"""
    stream_id = H(b"room")
    for text in (stream_id.hex(), stream_id.hex().upper(), f"hex:{stream_id.hex()}"):
        assert StreamRef.parse(text) == StreamRef(stream_id=stream_id)
    assert StreamRef.parse(f"label:{stream_id.hex()}") == StreamRef(stream_id=None, label=stream_id)
    assert str(StreamRef.parse(f"hex:{stream_id.hex()}")) == f"hex:{stream_id.hex()}"
    assert str(StreamRef.parse(f"label:{stream_id.hex()}")) == f"label:{stream_id.hex()}"


@pytest.mark.parametrize(
    "text", ["", "hex:", "hex:12", "label:zz", f"hex:{'0' * 63}", f"hex:{'0' * 65}", f"label:{' 0' * 32}"]
)
def test_what_is_no_stream_is_named(text):
    with pytest.raises(MalformedError, match="stream"):
        StreamRef.parse(text)


# --- the keyring --------------------------------------------------------------------------------------------


def test_reading_is_having_the_secret_half():
    """D-10"""
    writer = ROOM.for_writers()
    assert ROOM.can_read
    assert ROOM.secret() == ROOM.reader_sk
    assert not writer.can_read
    assert writer.reader_pk == ROOM.reader_pk == x25519.public_key(ROOM.secret())
    with pytest.raises(NoReaderKey, match="only the write key"):
        writer.secret()


def test_a_stream_is_found_by_name_id_reference_and_by_its_own_keys():
    ring = Keyring.of([ROOM, BOARD])
    for stream in (
        "room",
        ROOM.stream_id,
        ROOM.stream_id.hex(),
        f"hex:{ROOM.stream_id.hex()}",
        StreamRef.parse("room"),
        ROOM,
    ):
        assert ring.for_stream(stream) == ROOM
    with pytest.raises(UnknownStream, match="'cellar'"):
        ring.for_stream("cellar")
    with pytest.raises(UnknownStream, match="label:"):
        ring.for_stream(f"label:{ROOM.stream_id.hex()}")


def test_a_label_is_found_among_the_streams_we_know():
    ring = Keyring.of([ROOM, BOARD])
    routing_key = H(b"routing")
    assert ring.for_label(label_of(routing_key, BOARD.stream_id, 7), routing_key, 7) == BOARD
    with pytest.raises(UnknownStream):
        ring.for_label(label_of(routing_key, BOARD.stream_id, 7), routing_key, 8)


def test_names_match_patterns_because_hashes_cannot():
    """D-22"""
    names = ["record/app/http", "record/app/db", "wallet/eur"]
    ring = Keyring.of([StreamKeys.create(name, random=seeded(name)) for name in names])
    assert [keys.name for keys in ring.find_matching("record/*")] == ["record/app/db", "record/app/http"]
    assert ring.find_matching("nothing/*") == ()


def test_a_new_key_of_a_stream_leads_and_the_old_one_still_opens():
    newer = StreamKeys.create("room", random=seeded("newer"))
    ring = Keyring.of([ROOM, BOARD, newer])
    assert ring.for_stream("room") == newer
    assert ring.readers("room") == (newer, ROOM)
    assert ring.readers(ROOM) == (ROOM, newer)
    assert ring.without("room") == Keyring.of([BOARD])


def test_adding_what_is_known_loses_nothing():
    """A write key that comes back from somebody else must not cost us the read key or the name."""
    ring = Keyring.of([ROOM, replace(ROOM.for_writers(), name=None)])
    assert ring.entries == (ROOM,)
    assert Keyring.of([replace(ROOM.for_writers(), name=None), ROOM]).entries == (ROOM,)


def test_a_keyring_shows_no_secret():
    ring = Keyring.of([ROOM])
    for shown in (repr(ring), str(ring), repr(ROOM), str(ROOM)):
        assert ROOM.secret().hex() not in shown
        assert repr(ROOM.secret()) not in shown
    assert repr(ROOM) == "StreamKeys('room', read)"
    assert repr(ROOM.for_writers()) == "StreamKeys('room', write)"


def test_keys_that_do_not_belong_together_are_refused():
    for forged in (
        replace(ROOM, reader_pk=BOARD.reader_pk),
        replace(ROOM, name="board"),
        replace(ROOM, reader_sk=b"short"),
    ):
        with pytest.raises(FormatError):
            Keyring().with_keys(forged)
    with pytest.raises(MalformedError, match="bytes"):
        StreamKeys.create("é" * MAX_NAME_BYTES)
    with pytest.raises(UnknownStream):
        StreamKeys.create(f"label:{'0' * 64}")


# --- as text ------------------------------------------------------------------------------------------------


@given(NAMES)
def test_keys_come_back_from_their_text(name):
    keys = StreamKeys.create(name, random=seeded(name))
    text = keys.to_text()
    assert text.startswith("veen-stream1")
    assert StreamKeys.from_text(text) == keys
    shared = StreamKeys.from_text(keys.for_writers().to_text())
    assert (shared.reader_pk, shared.reader_sk, shared.name) == (keys.reader_pk, None, keys.name)


def test_the_text_of_a_write_key_does_not_hold_the_secret():
    assert ROOM.secret() not in bech32.from_text("veen-stream", ROOM.for_writers().to_text())
    assert ROOM.secret() in bech32.from_text("veen-stream", ROOM.to_text())


def test_the_longest_name_still_fits_into_a_text():
    keys = StreamKeys.create("n" * MAX_NAME_BYTES, random=seeded("long"))
    assert StreamKeys.from_text(keys.to_text()) == keys


@given(st.sampled_from(TEXTS), st.data())
@examples(400)
def test_one_flipped_character_is_always_detected(text, data):
    place = data.draw(st.integers(0, len(text) - 1))
    char = data.draw(st.characters(min_codepoint=33, max_codepoint=383).filter(lambda char: char != text[place]))
    with pytest.raises(KeyTextInvalid):
        StreamKeys.from_text(text[:place] + char + text[place + 1 :])


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", TEXTS)
def test_at_every_place_every_other_character_of_the_alphabet_is_detected(text, step):
    """Of the alphabet, each place has a third in turn; `make test-slow` all of it."""
    for place in range(len(text)):
        for char in bech32._ALPHABET[place % step :: step]:
            if char != text[place]:
                with pytest.raises(KeyTextInvalid):
                    StreamKeys.from_text(text[:place] + char + text[place + 1 :])


def test_a_good_checksum_around_other_bytes_is_no_key():
    for data in (b"", b"\xa0", b"hello", ROOM.to_bytes()[:-1], ROOM.to_bytes() + b"\x00"):
        with pytest.raises(KeyTextInvalid, match="not stream keys"):
            StreamKeys.from_text(bech32.to_text("veen-stream", data))
