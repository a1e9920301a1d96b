"""A log that a hub signs, with rotated keys, and evidence files made from it without a client: every part can be
chosen, also wrong ones."""

from dataclasses import replace
from hashlib import sha256

from veen.core import cbor
from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.evidence_file import MAGIC, EntryEvidence, EvidenceFile, LogEvidence, Plaintext, RunEvidence
from veen.core.hashing import Ht
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.sealing.ciphertext import Binding, opening_of, seal
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import RangeProof, prove_consistency, prove_range

ALICE, BOB = (SigningKey(bytes([n]) * 32) for n in (1, 2))
OLD, NEW, STRANGER = (SigningKey(bytes([n]) * 32) for n in (3, 4, 9))
READER_SK = b"\x05" * 32
READER_PK = x25519.public_key(READER_SK)
NAME = "orders"
BEGIN, ROTATION, OVERLAP = 1_700_000_000, 1_700_000_400, 1_700_000_450
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>\u202egnp.exe'


class World:
    """A hub, a stream, and its entries; `entries` are pairs of MSG and RECEIPT."""

    def __init__(self, bodies=None, *, rotated=True, pad_block=0, stream=NAME):
        self.profile = Profile(epoch_sec=0, pad_block=pad_block)
        identity = HubIdentity.first(OLD.public, valid_from=BEGIN)
        self.records: tuple[ControlRecord, ...] = ()
        if rotated:
            identity = identity.with_rotation(NEW.public, valid_from=ROTATION, overlap_until=OVERLAP)
            self.records = (ControlRecord.issue(OLD, None, identity.rotations()[0], hub_ts=ROTATION - 10),)
        self.identity, self.newest = identity, NEW if rotated else OLD
        self.stream_id, self.stream = stream_id_of(stream), stream
        self.label = label_of(routing_key_of(identity.hub_id), self.stream_id, 0)
        self.tree, self.entries, self.sent = MmrTree(), [], {}
        for number, body in enumerate(bodies or [b'{"n":%d}' % n for n in range(1, 8)]):
            self.send(BOB if number % 3 == 2 else ALICE, body, BEGIN + 100 * number)

    def key_at(self, hub_ts):
        public = self.identity.signing_key_at(hub_ts).hub_pk
        return next(key for key in (OLD, NEW) if key.public == public)

    def send(self, author, body, hub_ts):
        self.sent[author] = self.sent.get(author, 0) + 1
        binding = Binding(
            profile_id=self.profile.profile_id(),
            label=self.label,
            client_id=author.public,
            client_seq=self.sent[author],
            prev_ack=0,
            auth_ref=None,
        )
        ikm = sha256(b"ikm%d" % self.tree.size).digest()
        hdr = PayloadHdr(schema=b"s" * 32)
        sealed = seal(READER_PK, binding, hdr, body, ikm=ikm, pad_block=self.profile.pad_block)
        msg = Msg.compose(
            author,
            profile_id=binding.profile_id,
            label=self.label,
            client_seq=binding.client_seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed.ciphertext,
        )
        self.tree.append(msg.leaf_hash())
        receipt = Receipt.issue(
            self.key_at(hub_ts),
            label=self.label,
            stream_seq=self.tree.size,
            leaf_hash=msg.leaf_hash(),
            mmr_root=self.tree.root(),
            hub_ts=hub_ts,
        )
        self.entries.append((msg, receipt, body))

    def checkpoint(self, size, **changes):
        key = self.key_at(self.entries[size - 1][1].hub_ts)
        fields = {
            "label_prev": self.label,
            "label_curr": self.label,
            "upto_seq": size,
            "mmr_root": self.tree.root(size),
            "epoch": 0,
        }
        return Checkpoint.issue(key, **{**fields, **changes})

    def content(self, msg, body, contents):
        if contents == "openings":
            return opening_of(READER_SK, msg)
        if contents == "plaintext":
            return Plaintext(payload_hdr=PayloadHdr(schema=b"s" * 32).to_bytes(), body=body)
        return None

    def run(self, first, last, size, contents="sealed"):
        return RunEvidence(
            proof=prove_range(self.tree.node_at, first, last, size).to_bytes(),
            entries=tuple(
                EntryEvidence(msg=msg.to_bytes(), receipt=receipt.to_bytes(), content=self.content(msg, body, contents))
                for msg, receipt, body in self.entries[first - 1 : last]
            ),
        )

    def evidence(self, *runs, contents="sealed", head=None, **changes):
        runs = runs or ((1, self.tree.size),)
        size = runs[-1][1]
        checkpoints, consistency = [self.checkpoint(size)], []
        if head is not None:
            checkpoints.append(self.checkpoint(head))
            consistency.append(prove_consistency(self.tree.node_at, size, head).to_bytes())
        log = LogEvidence(
            label=self.label,
            epoch=0,
            checkpoints=tuple(checkpoint.to_bytes() for checkpoint in checkpoints),
            consistency=tuple(consistency),
            runs=tuple(self.run(first, last, size, contents) for first, last in runs),
        )
        file = EvidenceFile(
            identity=self.identity.to_bytes(),
            identity_sig=self.identity.sign(self.newest),
            rotations=tuple(record.to_bytes() for record in self.records),
            stream_id=self.stream_id,
            stream_name=self.stream,
            profiles=(self.profile.to_bytes(),),
            logs=(log,),
        )
        return replace(file, **changes)


def pinned(key=OLD, hub_id=None):
    return TrustedKeys(hub_pks=(key.public,), hub_id=hub_id)


def body_bounds(data):
    """Where the body of a file begins and ends."""
    _, pos = cbor.uint_at(data, len(MAGIC))
    length, start = cbor.uint_at(data, pos, 0x40)
    return start, start + length


def resealed(data):
    """The same file with the digest of what it holds now: what somebody does who alters it on purpose."""
    start, end = body_bounds(data)
    return data[:end] + b"\x58\x20" + Ht("veen/evidence", data[start:end])


def log_of(file):
    return file.logs[0]


def with_log(file, **changes):
    return replace(file, logs=(replace(log_of(file), **changes),))


def with_run(file, number=0, **changes):
    runs = list(log_of(file).runs)
    runs[number] = replace(runs[number], **changes)
    return with_log(file, runs=tuple(runs))


def with_entry(file, number=0, **changes):
    entries = list(log_of(file).runs[0].entries)
    entries[number] = replace(entries[number], **changes)
    return with_run(file, entries=tuple(entries))


def alterations(world):
    """Files that somebody altered on purpose, by what was altered, and the code with which each is refused."""
    file = world.evidence((1, 5), contents="openings", head=7)
    log, run = log_of(file), log_of(file).runs[0]
    msg, receipt, _ = world.entries[1]
    seven = world.entries[6]
    forged = Receipt.issue(
        STRANGER,
        label=receipt.label,
        stream_seq=2,
        leaf_hash=receipt.leaf_hash,
        mmr_root=receipt.mmr_root,
        hub_ts=receipt.hub_ts,
    ).to_bytes()
    proof = RangeProof.from_bytes(run.proof)
    checkpoint = Checkpoint.from_bytes(log.checkpoints[0])
    other_root = world.checkpoint(5, mmr_root=b"r" * 32).to_bytes()
    stranger = Checkpoint.issue(
        STRANGER, label_prev=world.label, label_curr=world.label, upto_seq=5, mmr_root=checkpoint.mmr_root, epoch=0
    ).to_bytes()
    jumping = World([b"1", b"2"])
    jumping.sent[ALICE] = 3  # one number more than there are entries
    jumping.send(ALICE, b"4", BEGIN + 300)
    return {
        "an author's number beyond the entries that are left out": (jumping.evidence((1, 1), (3, 3)), "GAP"),
        "an author's number beyond the entries before": (jumping.evidence((3, 3)), "GAP"),
        "a message by another signature": (with_entry(file, 1, msg=replace(msg, sig=bytes(64)).to_bytes()), "AUTHOR"),
        "another ciphertext": (
            with_entry(file, 1, msg=replace(msg, ciphertext=msg.ciphertext + b"\0").to_bytes()),
            "AUTHOR",
        ),
        "a receipt of a stranger": (with_entry(file, 1, receipt=forged), "RECEIPT"),
        "a receipt for another message": (with_entry(file, 1, msg=seven[0].to_bytes()), "RECEIPT"),
        "an entry left out": (with_run(file, entries=run.entries[:1] + run.entries[2:]), "GAP"),
        "the last entry left out": (with_run(file, entries=run.entries[:-1]), "GAP"),
        "entries in another order": (with_run(file, entries=run.entries[::-1]), "GAP"),
        "an entry twice": (with_run(file, entries=(run.entries[0], *run.entries)), "GAP"),
        "a proof of other hashes": (
            with_run(file, proof=replace(proof, after=(b"x" * 32,)).to_bytes()),
            "PROOF",
        ),
        "a root that was not reached": (with_log(file, checkpoints=(other_root,), consistency=()), "PROOF"),
        "a checkpoint of a stranger": (with_log(file, checkpoints=(stranger,), consistency=()), "CHECKPOINT"),
        "a checkpoint of another log": (
            with_log(file, checkpoints=(world.checkpoint(5, label_curr=b"o" * 32).to_bytes(),), consistency=()),
            "CHECKPOINT",
        ),
        "checkpoints that do not grow": (with_log(file, consistency=()), "FORM"),
        "checkpoints in another order": (with_log(file, checkpoints=log.checkpoints[::-1]), "FORM"),
        "the opening of another message": (
            with_entry(file, 0, content=opening_of(READER_SK, world.entries[1][0])),
            "OPENING",
        ),
        "another name": (replace(file, stream_name="refunds"), "STREAM"),
        "another stream": (replace(file, stream_name=None, stream_id=b"o" * 32), "STREAM"),
        "another label": (with_log(replace(file, stream_id=None, stream_name=None), label=b"o" * 32), "CHECKPOINT"),
        "another epoch": (with_log(file, epoch=1), "STREAM"),
        "a name without an id": (replace(file, stream_id=None), "FORM"),
        "another profile": (replace(file, profiles=(Profile(epoch_sec=0, pad_block=1).to_bytes(),)), "STREAM"),
        "a profile that nobody uses": (
            replace(
                file,
                profiles=tuple(
                    profile.to_bytes()
                    for profile in sorted(
                        (world.profile, Profile(epoch_sec=0, pad_block=1)), key=lambda profile: profile.profile_id()
                    )
                ),
            ),
            "FORM",
        ),
        "an identity of a stranger": (replace(file, identity_sig=bytes(64)), "KEYS"),
        "a rotation of a stranger": (
            replace(
                file,
                rotations=(ControlRecord.issue(STRANGER, None, world.identity.rotations()[0], hub_ts=1).to_bytes(),),
            ),
            "KEYS",
        ),
    }
