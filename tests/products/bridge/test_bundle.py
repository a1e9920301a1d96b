"""The bundle: one encoding, one id, and no byte of it that may differ (AGB-04 … AGB-07)."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.products.bridge.signer import EXPORTER, SmallLog, head_of, judged, packed, read

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.products.bridge import bundle as bundles
from veen.products.bridge.bundle import ORDER, BundleAttachment, BundleReader, Header, Rejected, Trailer
from veen.products.bridge.verify import OutOfOrder

LOG = SmallLog(3)
OTHER = SmallLog(3, seed=2)


@pytest.mark.req("AGB-04", "AGB-05")
def test_a_bundle_has_header_events_and_trailer_and_comes_back_as_it_was():
    data = LOG.bundle()
    header, events, trailer = read(data)
    assert header == LOG.header(1, 3)
    assert events == LOG.events
    assert (trailer.count, trailer.withheld) == (3, 0)
    assert header.to_bytes() + b"".join(event.to_bytes() for event in events) + trailer.to_bytes() == data
    verdict, crossings = judged(data, LOG.trust())
    assert verdict.target == "import/z1/security/auth"
    assert [crossing.origin_body for crossing in crossings] == [b"body 1", b"body 2", b"body 3"]
    assert [crossing.position for crossing in crossings] == [0, 1, 2]


def test_compression_wraps_the_file_and_changes_no_hash():
    plain, small = LOG.bundle(), LOG.bundle(compress=True)
    assert small[0] == 0x78
    assert read(plain) == read(small)
    assert judged(small, LOG.trust())[0] == judged(plain, LOG.trust())[0]
    for tail in (b"\0", b"more"):
        with pytest.raises(Rejected, match=r"AGB\.FORMAT"):
            judged(small + tail, LOG.trust())


@pytest.mark.req("AGB-06", "AGB-19")
@pytest.mark.long
@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_byte_is_refused_with_one_code(compress):
    """Also every bit of the first byte of each item; nothing passes, nothing else is raised."""
    data = LOG.bundle(1, 2, compress=compress)
    trust = LOG.trust()
    codes = set()
    for at in range(len(data)):
        for mask in (0x01, 0xFF):
            forged = data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]
            with pytest.raises(Rejected) as refusal:
                judged(forged, trust)
            assert refusal.value.code in ORDER
            codes.add(refusal.value.code)
    assert codes <= {"AGB.FORMAT", "AGB.VERSION", "AGB.ID", "AGB.SIG_EXPORTER"}
    assert compress or codes == {"AGB.FORMAT", "AGB.VERSION", "AGB.ID", "AGB.SIG_EXPORTER"}


@pytest.mark.req("AGB-06")
def test_every_truncation_is_refused():
    data = LOG.bundle(1, 1)
    for size in range(0, len(data), 7):
        with pytest.raises(Rejected) as refusal:
            judged(data[:size], LOG.trust())
        assert refusal.value.code == "AGB.FORMAT"


@given(st.binary(max_size=600))
def test_no_input_gets_past_the_reader_with_another_error(data):
    with pytest.raises(Rejected):
        list(BundleReader(io.BytesIO(data)).events())


@pytest.mark.req("AGB-05", "AGB-13")
def test_withheld_events_keep_the_tree_whole():
    """Receipt without message: the roots fold, so nothing can be withheld in silence."""
    events = list(LOG.events)
    events[1] = bundles.BundleEvent(seq=2, receipt=events[1].receipt, withheld_reason="personal")
    _, crossings = judged(LOG.bundle(events=events), LOG.trust())
    assert [type(crossing).__name__ for crossing in crossings] == ["ImportedEvent", "WithheldEvent", "ImportedEvent"]
    assert crossings[1].reason == "personal"
    header = replace(LOG.header(1, 3), export_seq_to=2)
    left_out = packed(header, [LOG.events[0], LOG.events[2]], LOG.checkpoint(2))
    with pytest.raises(Rejected, match=r"AGB\.LABEL_SEQ"):
        judged(left_out, LOG.trust())


def test_sealed_events_cross_without_an_opening():
    events = [replace(event, opening=None) for event in LOG.events]
    _, crossings = judged(LOG.bundle(events=events), LOG.trust())
    assert [crossing.origin_msg for crossing in crossings] == [event.msg for event in LOG.events]
    assert not any(crossing.is_opened for crossing in crossings)


def test_a_heartbeat_has_no_event_and_a_checkpoint():
    first, _ = judged(LOG.bundle(), LOG.trust())
    header = LOG.header(4, 3, 2, first.trailer.bundle_id)
    beat = packed(replace(header, size_before=3), [], LOG.checkpoint(3))
    verdict, crossings = judged(beat, LOG.trust(), head_of(first))
    assert (crossings, verdict.head.seq, verdict.head.bundle_seq) == ([], 3, 2)


def forged_by_the_exporter():
    """Whatever the exporter may sign that is not so, and the code that names it."""
    first, second, third = LOG.events
    header, check = LOG.header(1, 3), LOG.checkpoint(3)
    foreign = OTHER.events[0]

    def made(header=header, events=LOG.events, check=check, key=EXPORTER):
        return packed(header, events, check, key=key)

    trailer = Trailer.from_bytes(list(cbor.sequence(made()))[-1])
    other_header = cbor.encode({**cbor.decode(header.to_bytes()), "ver": 2})
    wrong = replace(check, checkpoint=LOG.checkpoint(2).checkpoint)
    msg = LOG.messages[0]
    swapped = replace(msg, ciphertext=msg.ciphertext[:-1] + bytes((msg.ciphertext[-1] ^ 1,)))
    from veen.core.objects.msg import Msg

    resigned = replace(swapped, sig=b"\0" * 64)
    signed_again = Msg.compose(
        SigningKey(b"\x66" * 32),
        profile_id=msg.profile_id,
        label=msg.label,
        client_seq=9,
        prev_ack=0,
        auth_ref=None,
        ciphertext=msg.ciphertext,
    )
    return {
        "version": ("AGB.VERSION", other_header + made()[len(header.to_bytes()) :]),
        "foreign exporter": ("AGB.SIG_EXPORTER", made(key=SigningKey(b"\x01" * 32))),
        "signature of another id": (
            "AGB.SIG_EXPORTER",
            made()[: -len(trailer.to_bytes())] + replace(trailer, signature=b"\1" * 64).to_bytes(),
        ),
        "unknown bridge": ("AGB.SOURCE", made(replace(header, bridge_id=bytes(32)))),
        "foreign hub": ("AGB.SOURCE", made(OTHER.header(1, 3))),
        "other hub_id": ("AGB.SOURCE", made(replace(header, source_hub_id=bytes(32)))),
        "identity of another hub": ("AGB.SOURCE", made(replace(header, identity=OTHER.hub.identity.to_bytes()))),
        "identity not signed": ("AGB.SOURCE", made(replace(header, identity_sig=bytes(64)))),
        "label of another stream": ("AGB.SOURCE", made(replace(header, export_stream_id=bytes(32)))),
        "number of the chain": ("AGB.CHAIN", made(replace(header, bundle_seq=2))),
        "predecessor": ("AGB.CHAIN", made(replace(header, prev_bundle_id=bytes(32)))),
        "first": ("AGB.RANGE", made(replace(header, export_seq_from=2))),
        "last": ("AGB.RANGE", made(replace(header, export_seq_to=4))),
        "size before": ("AGB.RANGE", made(replace(header, size_before=1))),
        "peaks before": ("AGB.RANGE", made(replace(header, peaks_before=(bytes(32),)))),
        "receipt of another hub": (
            "AGB.RECEIPT_SIG",
            made(events=[replace(first, receipt=foreign.receipt), second, third]),
        ),
        "no receipt": ("AGB.RECEIPT_SIG", made(events=[replace(first, receipt=b"\x01"), second, third])),
        "reordered": ("AGB.LABEL_SEQ", made(events=[second, first, third])),
        "doubled": ("AGB.LABEL_SEQ", made(events=[first, first, third])),
        "message unsigned": ("AGB.MSG_SIG", made(events=[replace(first, msg=resigned.to_bytes()), second, third])),
        "no message": ("AGB.MSG_SIG", made(events=[replace(first, msg=b"\x01"), second, third])),
        "other message": ("AGB.LEAF", made(events=[replace(first, msg=signed_again.to_bytes()), second, third])),
        "checkpoint ends elsewhere": ("AGB.CHECKPOINT", made(check=wrong)),
        "checkpoint of another hub": ("AGB.CHECKPOINT", made(check=OTHER.checkpoint(3))),
        "other hub_public": ("AGB.CHECKPOINT", made(check=replace(check, hub_public=bytes(32)))),
        "no checkpoint": ("AGB.CHECKPOINT", made(check=replace(check, checkpoint=b"\x01"))),
        "times of the header": ("AGB.CHECKPOINT", made(replace(header, export_time_from=1))),
        "other opening": ("AGB.OPENING", made(events=[replace(first, opening=bytes(32)), second, third])),
        "no name": ("AGB.MAPPING", made(replace(header, stream_name=None))),
        "another name": ("AGB.MAPPING", made(replace(header, stream_name="record/app"))),
    }


FORGED = forged_by_the_exporter()


@pytest.mark.req("AGB-06", "AGB-07", "AGB-19")
@pytest.mark.parametrize("case", FORGED)
def test_what_an_exporter_forges_and_signs_is_named(case):
    code, data = FORGED[case]
    with pytest.raises(Rejected) as refusal:
        judged(data, LOG.trust())
    assert refusal.value.code == code


def test_what_author_and_hub_forge_together_is_named_too():
    """Every code is reached: a false ct_hash that the author signed, a false root that the hub signed, a false body."""
    from veen.core.crypto.ed25519 import SigningKey as Key
    from veen.core.objects.receipt import Receipt
    from veen.overlays.recorder import events as sdr

    author, msg = Key(b"\x66" * 32), LOG.messages[0]
    hashed = replace(msg, ct_hash=bytes(32), sig=b"")
    hashed = replace(hashed, sig=author.sign(hashed.signing_digest()))
    first, second, third = LOG.events
    receipt = Receipt.from_bytes(second.receipt)
    rooted = Receipt.issue(
        LOG.hub.key,
        label=receipt.label,
        stream_seq=2,
        leaf_hash=receipt.leaf_hash,
        mmr_root=bytes(32),
        hub_ts=receipt.hub_ts,
    )
    schema = SmallLog(1, schema=sdr.EVENT.id)
    cases = {
        "AGB.CT_HASH": LOG.bundle(events=[replace(first, msg=hashed.to_bytes()), second, third]),
        "AGB.ROOT": LOG.bundle(events=[first, replace(second, receipt=rooted.to_bytes()), third]),
        "AGB.SCHEMA": schema.bundle(),
        "AGB.ATTACHMENT": LOG.bundle(
            events=[replace(first, attachments=(bytes(32),)), BundleAttachment(att=0, data=b"x"), second, third]
        ),
    }
    for code, data in cases.items():
        with pytest.raises(Rejected) as refusal:
            judged(data, LOG.trust())
        assert refusal.value.code == code
    assert set(ORDER) == {"AGB.FORMAT", "AGB.ID", *cases, *(code for code, _ in FORGED.values())}


@pytest.mark.req("AGB-07")
def test_the_first_failure_in_the_order_wins():
    """A false opening in the first event, a false receipt in the last: the receipt ranks higher."""
    first, second, third = LOG.events
    events = [replace(first, opening=bytes(32)), second, replace(third, receipt=OTHER.events[2].receipt)]
    with pytest.raises(Rejected) as refusal:
        judged(LOG.bundle(events=events), LOG.trust())
    assert (refusal.value.code, refusal.value.position) == ("AGB.RECEIPT_SIG", 2)


@pytest.mark.req("AGB-06", "AGB-19")
def test_the_chain_knows_missing_and_repeated_bundles():
    first, _ = judged(LOG.bundle(1, 1), LOG.trust())
    second = LOG.bundle(2, 3, bundle_seq=2, prev=first.trailer.bundle_id)
    with pytest.raises(OutOfOrder) as early:
        judged(second, LOG.trust())
    assert early.value.is_early
    verdict, _ = judged(second, LOG.trust(), head_of(first))
    assert verdict.head.seq == 3
    with pytest.raises(OutOfOrder) as late:
        judged(LOG.bundle(1, 1), LOG.trust(), head_of(verdict))
    assert not late.value.is_early


@pytest.mark.req("AGB-08")
def test_streams_are_mapped_by_the_longest_rule():
    trust = LOG.trust(map={"record/*": "import/z1/*", "record/security/*": "import/high/*"})
    assert judged(LOG.bundle(), trust)[0].target == "import/high/auth"
    with pytest.raises(Rejected, match=r"AGB\.MAPPING"):
        judged(LOG.bundle(), LOG.trust(map={"export/*": "import/z1/*"}))


@pytest.mark.req("AGB-07")
def test_a_wrong_trust_list_lets_nothing_in():
    for changes, code in (
        ({"exporters": ["00" * 32]}, "AGB.SIG_EXPORTER"),
        ({"hub": f"ed25519:{OTHER.hub.key.public.hex()}"}, "AGB.SOURCE"),
        ({"hub_id": "00" * 32}, "AGB.SOURCE"),
        ({"bridge": "another"}, "AGB.SOURCE"),
    ):
        with pytest.raises(Rejected) as refusal:
            judged(LOG.bundle(), LOG.trust(**changes))
        assert refusal.value.code == code


def test_a_file_that_changes_between_the_readings_is_refused():
    class Changing(io.BytesIO):
        reads = 0

        def seek(self, offset, whence=0):
            if offset == 0:
                self.reads += 1
            return super().seek(offset, whence)

        def read(self, size=-1):
            data = super().read(size)
            return data.replace(b"body", b"body") if self.reads < 3 else data[:-1] + b"\0" if data else data

    from veen.products.bridge.verify import verify

    with pytest.raises(Rejected):
        verify(Changing(LOG.bundle()), LOG.trust(), {})


def test_a_header_is_bounded():
    with pytest.raises(Rejected, match=r"AGB\.FORMAT"):
        BundleReader(io.BytesIO(cbor.encode({"ver": 1, "kind": "veen.bundle", "x": bytes(3 << 20)})))
    tree = cbor.decode(LOG.header(1, 3).to_bytes())
    assert Header.from_tree(tree) == LOG.header(1, 3)
