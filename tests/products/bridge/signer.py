"""Bundles head by hand: a small log whose keys the test has, so that any part can be forged and signed again."""

import io
from dataclasses import replace
from typing import Any

from tests.client.builders import HubLog, seeded

from veen.client.identity.keyring import StreamKeys
from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import stream_id_of
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import PRESETS
from veen.core.sealing.ciphertext import Binding, opening_of, seal
from veen.core.tree.mmr import Mmr
from veen.products.bridge.bundle import (
    BundleAttachment,
    BundleEvent,
    BundleReader,
    BundleWriter,
    ExportCheckpoint,
    Header,
    bridge_id_of,
)
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verify import ChainHead, verify

STREAM = "record/security/auth"
BRIDGE = "plant-a"
EXPORTER = SigningKey(b"\x55" * 32)
AUTHOR = SigningKey(b"\x66" * 32)
KEYS = StreamKeys.create(STREAM, random=seeded("bundle"))
PROFILE = PRESETS["messaging"]
SCHEMA = bytes(31) + b"\x07"
START = 1_700_000_000


class SmallLog:
    """One label of one hub; `events` are what an exporter would put into a bundle."""

    def __init__(self, count: int = 3, *, seed: int = 1, body: bytes = b"body", schema: bytes = SCHEMA) -> None:
        self.hub, self.schema = HubLog(seed), schema
        self.label = self.hub.label(STREAM)
        self.events: list[BundleEvent] = []
        self.messages: list[Msg] = []
        self.peaks: list[tuple[bytes, ...]] = [()]
        tree = Mmr()
        for number in range(1, count + 1):
            msg = self.message(number, body)
            receipt = self.hub.admit(msg, START + number)
            tree.append(msg.leaf_hash())
            self.peaks.append(tree.peaks())
            self.messages.append(msg)
            self.events.append(
                BundleEvent(
                    seq=number,
                    receipt=receipt.to_bytes(),
                    msg=msg.to_bytes(),
                    opening=opening_of(KEYS.secret(), msg, reader_pk=KEYS.reader_pk),
                )
            )
        self.trees = {number: Mmr(number, self.peaks[number]) for number in range(1, count + 1)}

    def message(self, number: int, body: bytes) -> Msg:
        binding = Binding(
            profile_id=PROFILE.profile_id(),
            label=self.label,
            client_id=AUTHOR.public,
            client_seq=number,
            prev_ack=0,
            auth_ref=None,
        )
        sealed = seal(
            KEYS.reader_pk,
            binding,
            PayloadHdr(schema=self.schema),
            body + b" %d" % number,
            ikm=seeded(f"{number}")(32),
            pad_block=0,
        )
        return Msg.compose(
            AUTHOR,
            profile_id=binding.profile_id,
            label=self.label,
            client_seq=number,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed.ciphertext,
        )

    def header(self, first: int, last: int, bundle_seq: int = 1, prev: bytes | None = None) -> Header:
        return Header(
            source_hub_id=self.hub.hub_id,
            source_hub_pk=self.hub.key.public,
            identity=self.hub.identity.to_bytes(),
            identity_sig=self.hub.identity.sign(self.hub.key),
            source_profile_id=PROFILE.profile_id(),
            export_stream_id=stream_id_of(STREAM),
            stream_name=STREAM,
            label=self.label,
            epoch=0,
            export_seq_from=first,
            export_seq_to=last,
            export_time_from=START + min(first, last),
            export_time_to=START + last,
            size_before=first - 1,
            peaks_before=self.peaks[first - 1],
            bridge_id=bridge_id_of(BRIDGE),
            bundle_seq=bundle_seq,
            prev_bundle_id=prev,
            created_at=START + 1_000,
        )

    def checkpoint(self, upto: int) -> ExportCheckpoint:
        from veen.core.objects.checkpoint import Checkpoint

        signed = Checkpoint.issue(
            self.hub.key,
            label_prev=self.label,
            label_curr=self.label,
            upto_seq=upto,
            mmr_root=self.trees[upto].root(),
            epoch=0,
        )
        return ExportCheckpoint(checkpoint=signed.to_bytes(), timestamp=START + upto, hub_public=self.hub.key.public)

    def bundle(
        self, first=1, last=None, *, bundle_seq=1, prev=None, compress=False, header=None, events=None, **forged
    ):
        """The bytes of a bundle; `forged` replaces members of the header, `events` the events."""
        last = len(self.events) if last is None else last
        head = replace(header or self.header(first, last, bundle_seq, prev), **forged)
        return packed(
            head,
            self.events[first - 1 : last] if events is None else events,
            self.checkpoint(last) if last else None,
            compress=compress,
        )

    def trust(self, **changes):
        source = {
            "zone": "z1",
            "bridge": BRIDGE,
            "hub": f"ed25519:{self.hub.key.public.hex()}",
            "exporters": [EXPORTER.public.hex()],
            **changes,
        }
        return TrustList.from_json([source])


def packed(header, events, checkpoint, *, key=EXPORTER, compress=False):
    import tempfile

    with tempfile.TemporaryFile() as spool, tempfile.TemporaryFile() as target:
        writer = BundleWriter(spool)
        for item in events:
            if isinstance(item, BundleAttachment):
                writer.attach(item.att, item.data)
            else:
                writer.add(item)
        writer.finish(header, checkpoint, key, target, compress=compress)
        target.seek(0)
        return target.read()


def judged(data, trust, chains=None, emit=None):
    """The verdict, and the crossings."""
    crossings: list[Any] = []
    verdict = verify(io.BytesIO(data), trust, chains or {}, emit or crossings.append)
    return verdict, crossings


def head_of(verdict) -> dict[tuple[bytes, bytes], ChainHead]:
    return {(verdict.header.bridge_id, verdict.header.label): verdict.head}


def read(data):
    reader = BundleReader(io.BytesIO(data))
    return reader.header, list(reader.events()), reader.trailer


def items(data):
    return [cbor.decode(raw) for raw in cbor.sequence(data)]
