"""Evidence files: what they prove, and that nothing in them can be changed unnoticed (docs/evidence.md)."""

import pickle
from dataclasses import replace

import pytest
from tests.core.twokeys import seal_for_both
from tests.evidence_builders import (
    ALICE,
    HOSTILE,
    NEW,
    OLD,
    READER_PK,
    READER_SK,
    STRANGER,
    World,
    alterations,
    body_bounds,
    pinned,
    resealed,
)
from tests.examples import spread

from veen.core import cbor, evidence_file
from veen.core.catalogue import catalogue
from veen.core.crypto import x25519
from veen.core.errors import MalformedError, OpenError
from veen.core.evidence_check import check_evidence
from veen.core.evidence_file import MAGIC, EvidenceFault, EvidenceFile, OutsideProof
from veen.core.hashing import H
from veen.core.objects.msg import Msg
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.sealing.ciphertext import Binding, open_with_opening, opening_of

WORLD = World()


def fault(data, trusted=None):
    """The code with which a file is refused; None if it is accepted."""
    try:
        raw = data if isinstance(data, bytes) else data.to_file()
        check_evidence(EvidenceFile.from_file(raw), trusted or pinned())
    except EvidenceFault as exc:
        refused = exc
    else:
        return None
    assert refused.code in catalogue()
    assert pickle.loads(pickle.dumps(refused)).code == refused.code  # noqa: S301 - our own error
    return refused.code.removeprefix("E.EVIDENCE.")


# --- what it shows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contents", ["sealed", "openings", "plaintext"])
def test_a_file_shows_every_entry_with_its_author_place_and_content(contents):
    data = WORLD.evidence((2, 6), contents=contents, head=7).to_file()
    report = check_evidence(EvidenceFile.from_file(data), pinned())
    assert [entry.seq for entry in report.entries] == [2, 3, 4, 5, 6]
    assert report.entries[0].author == ALICE.public
    assert {entry.hub_pk for entry in report.entries} == {OLD.public, NEW.public}
    kind = {"sealed": "sealed", "openings": "opened", "plaintext": "stated"}[contents]
    assert report.contents()[kind] == 5
    bodies = [entry.body for entry in report.entries]
    assert bodies == ([None] * 5 if contents == "sealed" else [b'{"n":%d}' % n for n in range(2, 7)])
    assert (report.stream_name, report.pinned) == ("orders", True)
    [log] = report.logs
    assert (log.runs, log.checkpoint.upto_seq, log.latest.upto_seq, log.is_whole) == (((2, 6),), 6, 7, False)
    claims, limits = " ".join(report.proves()), " ".join(report.limits())
    assert "2 to 6 of the first 6 entries" in claims
    assert ("what the signed ciphertext decrypts to" in claims) == (contents == "openings")
    assert ("the exporter says so" in limits) == (contents == "plaintext")
    assert "clock is not" in limits


def test_a_whole_log_is_said_to_be_whole_and_a_selection_is_not():
    whole = check_evidence(WORLD.evidence(), pinned())
    assert whole.logs[0].is_whole
    assert "all of the first 7 entries" in " ".join(whole.proves())
    chosen = check_evidence(WORLD.evidence((1, 2), (5, 5)), pinned())
    assert chosen.logs[0].runs == ((1, 2), (5, 5))
    assert "left out" in " ".join(chosen.proves())


def test_the_same_evidence_has_the_same_bytes():
    longer = World()
    longer.send(ALICE, b"later", BEGIN_OF_LATER)
    assert longer.evidence((2, 6)).to_file() == World().evidence((2, 6)).to_file()
    data = WORLD.evidence((2, 6), contents="openings").to_file()
    assert EvidenceFile.from_file(data).to_file() == data


BEGIN_OF_LATER = WORLD.entries[-1][1].hub_ts + 100


def test_an_opening_opens_its_message_and_no_other():
    (first, _, body), (second, _, _) = WORLD.entries[:2]
    opening = opening_of(READER_SK, first)
    assert open_with_opening(opening, first).body == body
    with pytest.raises(OpenError):
        open_with_opening(opening, second)


def test_no_key_of_a_stream_or_an_identity_is_in_a_file():
    for contents in ("sealed", "openings", "plaintext"):
        data = WORLD.evidence(contents=contents).to_file()
        for secret in (READER_SK, ALICE.seed, OLD.seed, NEW.seed):
            assert secret not in data


def test_a_second_opening_must_have_a_well_formed_header_and_the_report_names_the_limit():
    """D-170: both keys decrypt it. The header of the second is noise, so its opening is refused; an author who tries
    some 2^32 times would find one that is not."""
    world = World([b"first"], rotated=False)
    other_sk = b"\x06" * 32
    msg = world.entries[0][0]
    sealed = seal_for_both(
        READER_PK, x25519.public_key(other_sk), Binding.of(msg), schema=b"s" * 32, body=b"what the first reader sees"
    )
    two_faced = Msg.compose(
        ALICE,
        profile_id=msg.profile_id,
        label=msg.label,
        client_seq=1,
        prev_ack=0,
        auth_ref=None,
        ciphertext=sealed,
    )
    assert open_with_opening(opening_of(READER_SK, two_faced), two_faced).body.startswith(b"what the first")
    with pytest.raises(MalformedError):
        open_with_opening(opening_of(other_sk, two_faced), two_faced)
    limits = check_evidence(world.evidence(contents="openings"), pinned()).limits()
    assert any("two openings" in line for line in limits)


# --- whose it is --------------------------------------------------------------------------------------------------


def test_the_first_key_leads_to_all_keys_and_the_newest_only_to_itself():
    file = WORLD.evidence()
    assert fault(file, pinned(OLD)) is None
    assert fault(file, pinned(NEW)) == "HUB"  # the first entries are signed by the key before it
    assert fault(file, pinned(NEW, WORLD.identity.hub_id)) is None
    assert fault(WORLD.evidence((6, 7)), pinned(NEW)) is None
    assert fault(file, pinned(STRANGER)) == "HUB"
    assert fault(file, TrustedKeys(hub_pks=(OLD.public,), hub_id=b"x" * 32)) == "HUB"
    assert fault(replace(file, rotations=()), pinned(OLD)) == "HUB"


def test_a_root_vouches_for_the_keys_of_the_identity_that_it_signed():
    root = TrustedKeys(root_pk=STRANGER.public)
    assert fault(WORLD.evidence(), root) == "KEYS"
    assert fault(WORLD.evidence(identity_sig=WORLD.identity.sign(STRANGER)), root) is None


def test_without_a_pin_the_report_says_that_it_shows_nobody():
    report = check_evidence(WORLD.evidence(), None)
    assert not report.pinned
    assert report.limits()[0].startswith("Whose log this is")


def test_the_log_of_another_hub_is_refused():
    other = World(rotated=False)
    assert fault(other.evidence(), pinned(NEW)) == "HUB"


# --- altered on purpose: the digest is right --------------------------------------------------------------------------


def test_each_kind_of_alteration_has_its_own_code():
    cases = alterations(WORLD)
    assert {name: fault(altered) for name, (altered, _) in cases.items()} == {
        name: code for name, (_, code) in cases.items()
    }


def test_an_author_whose_numbers_have_a_hole_is_a_gap():
    """A hub that drops a message of an author and signs the rest."""
    world = World([b"1", b"2"], rotated=False)
    world.sent[ALICE] = 5
    world.send(ALICE, b"6", BEGIN_OF_LATER)
    assert fault(world.evidence()) == "GAP"


# --- every byte -------------------------------------------------------------------------------------------------------


SMALL = World([b"a", b"b", b"c"])


@pytest.mark.parametrize("contents", ["openings", "plaintext"])
def test_a_damaged_file_is_refused_whichever_byte_is_damaged(contents):
    data = SMALL.evidence((2, 2), contents=contents, head=3).to_file()
    codes = set()
    for pos in range(len(data)):
        damaged = data[:pos] + bytes([data[pos] ^ 1 << pos % 8]) + data[pos + 1 :]
        code = fault(damaged)
        assert code is not None, pos
        codes.add(code)
    assert codes >= {"KIND", "DAMAGED", "FORM", "TRUNCATED"}


@pytest.mark.long
@pytest.mark.parametrize("part", spread(range(3), 1))
def test_a_byte_that_is_altered_on_purpose_is_refused_wherever_it_stands(part):
    """With the digest made right: every byte of evidence with openings is bound by a signature, a hash or its form."""
    data = SMALL.evidence((2, 2), contents="openings", head=3).to_file()
    start, end = body_bounds(data)
    codes: dict[str | None, list[int]] = {}
    for pos in range(start + part, end, 3):
        for bit in {0, pos % 8}:
            altered = resealed(data[:pos] + bytes([data[pos] ^ 1 << bit]) + data[pos + 1 :])
            codes.setdefault(fault(altered), []).append(pos)
    assert None not in codes, [pos - start for pos in codes[None]]
    assert codes.keys() >= {
        "FORM", "KEYS", "STREAM", "CHECKPOINT", "PROOF", "AUTHOR", "RECEIPT", "OPENING", "GAP",
    }  # fmt: skip


def test_only_what_is_marked_as_stated_can_be_altered_in_a_file_with_plaintext():
    data = SMALL.evidence((2, 2), contents="plaintext").to_file()
    start, end = body_bounds(data)
    accepted = []
    for pos in range(start, end):
        altered = resealed(data[:pos] + bytes([data[pos] ^ 1]) + data[pos + 1 :])
        if fault(altered) is None:
            accepted.append(pos)
    stated = data.index(b"s" * 32)
    assert accepted == [*range(stated, stated + 32), data.index(b"\x41b") + 1]


def test_every_shorter_file_is_truncated_and_every_longer_one_refused():
    data = SMALL.evidence().to_file()
    assert {fault(data[:size]) for size in range(1, len(data))} == {"TRUNCATED"}
    assert fault(b"") == "KIND"
    assert fault(data + b"\0") == "FORM"
    assert fault(data + data) == "FORM"


# --- bounds and other files ---------------------------------------------------------------------------------------


def test_other_files_are_told_apart():
    entry = SMALL.entries[0]
    for other in (entry[0].to_bytes(), entry[1].to_bytes(), b"{}", b"\x89PNG\r\n", b"%PDF-1.7", cbor.encode([1, 2])):
        assert fault(other) == "KIND"
    assert fault(MAGIC + b"\x02" + b"\x40" + bytes(34)) == "VERSION"


def test_sizes_are_judged_before_anything_is_decoded(monkeypatch):
    data = SMALL.evidence().to_file()
    monkeypatch.setattr(evidence_file, "MAX_FILE_BYTES", len(data) - 1)
    monkeypatch.setattr(cbor, "decode", lambda *_, **__: pytest.fail("decoded"))
    assert fault(data) == "SIZE"
    with pytest.raises(EvidenceFault, match="at most"):
        SMALL.evidence().to_file()


def test_a_file_of_many_tiny_items_is_refused_before_it_is_built():
    body = b"\x9a" + (4_000_000).to_bytes(4, "big") + b"\x01" * 4_000_000
    assert fault(resealed(MAGIC + b"\x01" + cbor.bstr_head(len(body)) + body)) == "FORM"


def test_more_entries_than_a_file_may_have_are_refused(monkeypatch):
    monkeypatch.setattr(evidence_file, "MAX_ENTRIES", 2)
    with pytest.raises(EvidenceFault, match="at most 2"):
        SMALL.evidence().to_file()


def test_proofs_of_others_are_carried_and_reported_as_not_checked():
    [raw] = SMALL.evidence().logs[0].checkpoints
    proof = OutsideProof(kind="tlog-proof", checkpoint_hash=H(raw), data=b"c2sp.org/tlog-proof@v1\n")
    file = EvidenceFile.from_file(SMALL.evidence(outside=(proof,)).to_file())
    report = check_evidence(file, pinned())
    assert report.outside == ("tlog-proof",)
    assert "tlog-proof" in report.limits()[-1]
    assert fault(SMALL.evidence(outside=(replace(proof, checkpoint_hash=b"x" * 32),))) == "FORM"
    with pytest.raises(EvidenceFault):
        SMALL.evidence(outside=(replace(proof, data=bytes(70_000)),)).to_file()


def test_hostile_text_travels_as_it_is():
    world = World([HOSTILE.encode()], stream=HOSTILE)
    report = check_evidence(EvidenceFile.from_file(world.evidence(contents="openings").to_file()), pinned())
    assert report.stream_name == HOSTILE
    assert report.entries[0].body == HOSTILE.encode()
    assert isinstance(Msg.from_bytes(world.evidence().logs[0].runs[0].entries[0].msg), Msg)
