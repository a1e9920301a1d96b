"""Attachments over the bridge: they cross sealed, behind the event that names them, and arrive byte for byte."""

import asyncio
from dataclasses import replace

import pytest
from tests.client.builders import seeded
from tests.client.hubs import GATED, ISSUER
from tests.products.bridge.signer import AUTHOR, KEYS, PROFILE, SmallLog, judged, packed, read
from tests.products.bridge.test_zones import authorized
from tests.products.bridge.zones import SOURCE, TARGET, crossed, phase, zones

from veen.client.identity.keyring import Keyring
from veen.client.send.captokens import issue
from veen.core.errors import OpenError, VerifyError
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.sealing.ciphertext import Binding, seal
from veen.products.bridge import bundle as bundles
from veen.products.bridge import exporting
from veen.products.bridge.bundle import ORDER, BundleAttachment, Rejected
from veen.products.bridge.evidence import links_of
from veen.products.bridge.importing import IMPORTED
from veen.products.bridge.reconciling import reconcile
from veen.products.bridge.sources import Zones, bundle_paths, read_zones
from veen.storage import layout

FILES = [b"picture " * 40, b"", b"log\n" * 1000]


class AttachedLog(SmallLog):
    """A log whose messages have two attachments each."""

    def message(self, number, body):
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
            body,
            ikm=seeded(f"{number}")(32),
            pad_block=0,
            attachments=[b"first of %d" % number, b"second of %d" % number],
        )
        self.sealed = {**getattr(self, "sealed", {}), number: sealed.attachments}
        return Msg.compose(
            AUTHOR,
            profile_id=binding.profile_id,
            label=self.label,
            client_seq=number,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed.ciphertext,
        )

    def attached(self, **changes):
        """The events with their lists; `changes` replaces members of the first."""
        events = [replace(e, attachments=self.sealed[e.seq].coids) for e in self.events]
        return [replace(events[0], **changes), *events[1:]]

    def bytes_of(self, events=None, ciphertexts=None):
        """A signed bundle; `ciphertexts` by seq replace the attachments."""
        events = self.attached() if events is None else events
        items = []
        for event in events:
            items.append(event)
            data = (ciphertexts or {}).get(event.seq, self.sealed[event.seq].ciphertexts if event.attachments else ())
            items += [BundleAttachment(att=index, data=ciphertext) for index, ciphertext in enumerate(data)]
        return packed(self.header(1, len(events)), items, self.checkpoint(len(events)))


LOG = AttachedLog(2)


def refusal(data):
    with pytest.raises(Rejected) as refused:
        judged(data, LOG.trust())
    return refused.value.code, refused.value.position


def test_attachments_follow_their_event_and_come_back_as_they_were():
    data = LOG.bytes_of()
    _, events, trailer = read(data)
    assert [event.attachments for event in events] == [LOG.sealed[1].coids, LOG.sealed[2].coids]
    assert trailer.count == 2
    _, crossings = judged(data, LOG.trust())
    for number, crossing in enumerate(crossings, start=1):
        first, second = LOG.sealed[number].ciphertexts
        assert crossing.open_attachment(0, first) == b"first of %d" % number
        assert crossing.open_attachment(1, second) == b"second of %d" % number
        with pytest.raises(VerifyError):
            crossing.open_attachment(0, second)


def test_sealed_events_carry_attachments_that_only_readers_of_the_stream_open():
    events = [replace(event, opening=None) for event in LOG.attached()]
    _, crossings = judged(LOG.bytes_of(events), LOG.trust())
    assert crossings[0].attachments == LOG.sealed[1].coids
    with pytest.raises(OpenError):
        crossings[0].open_attachment(0, LOG.sealed[1].ciphertexts[0])


@pytest.mark.long
@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_every_flipped_byte_of_a_bundle_with_attachments_is_refused_with_one_code(mask):
    data = LOG.bytes_of([LOG.attached()[0]])
    codes = set()
    for at in range(len(data)):
        code, _ = refusal(data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :])
        assert code in ORDER
        codes.add(code)
    assert codes <= {"AGB.FORMAT", "AGB.VERSION", "AGB.ID", "AGB.SIG_EXPORTER"}


def lies():
    """What an exporter may sign that is not so."""
    first, second = LOG.sealed[1].ciphertexts
    other = LOG.sealed[2]
    changed = bytes((first[0] ^ 1,)) + first[1:]
    return {
        "another ciphertext": ("AGB.ATTACHMENT", 0, {"ciphertexts": {1: (changed, second)}}),
        "two in the wrong order": ("AGB.ATTACHMENT", 0, {"ciphertexts": {1: (second, first)}}),
        "one of another event": (
            "AGB.ATTACHMENT", 0,
            {"events": LOG.attached(attachments=(other.coids[0],)), "ciphertexts": {1: other.ciphertexts[:1]}},
        ),
        "one left out of list and bundle": (
            "AGB.ATTACHMENT", 0,
            {"events": LOG.attached(attachments=LOG.sealed[1].coids[:1]), "ciphertexts": {1: (first,)}},
        ),
        "one that is named and not there": ("AGB.FORMAT", 0, {"ciphertexts": {1: (first,)}}),
        "one too many": ("AGB.FORMAT", 0, {"ciphertexts": {1: (first, second, second)}}),
        "attachments that nobody names": ("AGB.FORMAT", 0, {"events": LOG.attached(attachments=()),
                                                            "ciphertexts": {1: (first, second)}}),
        "none of the last event": ("AGB.FORMAT", 1, {"ciphertexts": {2: ()}}),
    }  # fmt: skip


@pytest.mark.parametrize("name", lies())
def test_a_lie_about_attachments_is_refused_by_name(name):
    code, position, changes = lies()[name]
    assert refusal(LOG.bytes_of(**changes)) == (code, position)


def test_the_attachments_of_one_event_are_bounded(monkeypatch):
    monkeypatch.setattr(bundles, "MAX_ATTACHED_BYTES", 30)
    assert refusal(LOG.bytes_of()) == ("AGB.FORMAT", 0)


# --- hubs ------------------------------------------------------------------------------------------------------


async def cross(world, **options):
    await world.exporter(with_attachments=True, **options).export(SOURCE)
    world.carry()
    return await world.importer().run()


def test_attachments_are_stored_at_the_other_side_and_open_there(tmp_path):
    async def story():
        async with zones(tmp_path) as world:
            await world.producer.send(SOURCE, b"door 7", attachments=FILES)
            await world.producer.send(SOURCE, b"nothing attached")
            (outcome,) = await cross(world)
            assert outcome.result == "imported"
            first, second = [typed.body for typed in await crossed(world)]
            assert second.attachments == ()
            for index, plain in enumerate(FILES):
                ciphertext = await world.reader.attachments.fetch(first.attachments[index])
                assert first.open_attachment(index, ciphertext) == plain

    asyncio.run(story())


def test_a_gated_hub_takes_attachments_under_the_importer_s_token(tmp_path):
    async def story():
        async with zones(tmp_path, settings=GATED) as world:
            await authorized(world)
            await world.producer.send(SOURCE, b"door 7", attachments=FILES)
            await world.exporter(with_attachments=True).export(SOURCE)
            world.carry()
            token = issue(ISSUER, world.importer_client.client_id, [TARGET], ttl=10**6)
            (outcome,) = await world.importer(capability=lambda stream: token).run()
            assert outcome.result == "imported"
            (typed,) = await crossed(world)
            ciphertext = await world.reader.attachments.fetch(typed.body.attachments[2])
            assert typed.body.open_attachment(2, ciphertext) == FILES[2]

    asyncio.run(story())


def test_without_the_option_attachments_stay_behind(tmp_path):
    async def story():
        async with zones(tmp_path) as world:
            await world.producer.send(SOURCE, b"door 7", attachments=FILES)
            await world.exporter().export(SOURCE)
            world.carry()
            await world.importer().run()
            (typed,) = await crossed(world)
            assert typed.body.attachments == ()

    asyncio.run(story())


@pytest.mark.parametrize("why", ["erased", "too large"])
def test_an_event_crosses_without_attachments_that_cannot(tmp_path, monkeypatch, why):
    """One of three is gone at the source, or they are too large together: att_root still names them."""

    async def story():
        async with zones(tmp_path) as world:
            await world.producer.send(SOURCE, b"door 7", attachments=FILES)
            await world.producer.send(SOURCE, b"door 8", attachments=[b"small"])
            if why == "erased":
                (entry,) = [entry async for entry in world.exporter_client.read(SOURCE, to_seq=1)]
                coid = entry.attachments[2].coid
                (tmp_path / "z1" / layout.attachment(coid)).unlink()
            else:
                monkeypatch.setattr(exporting, "MAX_ATTACHED_BYTES", 1000)
            (outcome,) = await cross(world)
            assert (outcome.result, outcome.count) == ("imported", 2)
            first, second = [typed.body for typed in await crossed(world)]
            assert (len(first.attachments), len(second.attachments)) == (0, 1)

    asyncio.run(story())


def test_an_import_that_is_killed_between_attachments_and_events_is_resumed_once(tmp_path):
    class Killed(BaseException):
        pass

    async def story():
        async with zones(tmp_path) as world:
            for number in range(3):
                await world.producer.send(SOURCE, b"door %d" % number, attachments=[b"file %d" % number])
            await world.exporter(with_attachments=True).export(SOURCE)
            world.carry()
            put = world.importer_client.attachments.put
            done: list[bytes] = []

            async def dying(ciphertext, auth_ref=None, **options):
                if len(done) == 2:
                    raise Killed
                done.append(await put(ciphertext, auth_ref, **options))
                return done[-1]

            world.importer_client.attachments.put = dying
            with pytest.raises(Killed):
                await world.importer().run()
            world.importer_client.attachments.put = put
            (outcome,) = await world.importer().run()
            assert (outcome.result, outcome.count) == ("resumed", 3)
            bodies = [typed.body for typed in await crossed(world)]
            for number, body in enumerate(bodies):
                ciphertext = await world.reader.attachments.fetch(body.attachments[0])
                assert body.open_attachment(0, ciphertext) == b"file %d" % number
            assert len(bodies) == 3

    asyncio.run(story())


def test_reconcile_and_evidence_notice_an_attachment_that_is_gone_or_damaged(tmp_path):
    async def work(world):
        sent = await world.producer.send(SOURCE, b"door 7", attachments=FILES)
        await world.producer.send(SOURCE, b"door 8", attachments=[b"other"])
        await cross(world)
        world.options["msg_id"] = sent.receipt.leaf_hash
        world.options["coid"] = (await crossed(world))[0].body.attachments[0]

    world = phase(tmp_path, work)
    online, offline = str(tmp_path / "z1"), str(tmp_path / "z2")
    folder = world.import_files.path(IMPORTED)
    ring = Keyring.of([world.target_keys, world.source_keys, *world.reader.keyring.entries,
                       *world.online.keyring.entries, *world.offline.keyring.entries])  # fmt: skip

    def report():
        zones = Zones(offline=offline, online=online, folders=(folder,))
        result = reconcile(*read_zones(zones, ring, world.trust))
        return result.is_clean, result.data["streams"][0]

    def imported():
        paths = list(bundle_paths([folder]))
        links = links_of(world.options["msg_id"], bundles=paths, trust=world.trust, offline=offline, online=online,
                         keyring=ring)  # fmt: skip
        return links[-1]

    clean, stream = report()
    assert (clean, stream["attachments"], stream["missing_attachments"]) == (True, 4, [])
    assert imported().holds is True
    assert len(imported().facts["attachments"]) == 3
    path = tmp_path / "z2" / layout.attachment(world.options["coid"])
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:-1] + b"!"), path.unlink):
        damage()
        clean, stream = report()
        assert (clean, stream["missing_attachments"]) == (False, [[1, 1]])
        assert imported().holds is False
        assert imported().facts["missing_attachments"] == [world.options["coid"].hex()]
