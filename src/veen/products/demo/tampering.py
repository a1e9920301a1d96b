"""The second half of the demo: a bit flips on disk, and a hub signs two histories. Both are found and proven."""

import shutil
import time
from pathlib import Path
from typing import Final

from veen.client.client import Client
from veen.client.errors import Equivocated
from veen.client.home import Home, PrivateFs
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring
from veen.client.verify.pin import HubPin
from veen.core.objects.evidence import Equivocation
from veen.hub.process.forking import verify_all
from veen.io.local import OsFs
from veen.products.demo.story import BODIES, STREAM, TARGET, Story, connect, expect, run_hub, shorten
from veen.storage.copies.copying import clone

_INTO_CIPHERTEXT: Final = 100


def tamper_and_repair(story: Story) -> None:
    """Run steps 5 to 7, with the hub stopped."""
    hub, copy = story.root / "hub", PrivateFs(story.root / "copy")
    copy.make_dir("")
    clone(OsFs(hub), copy, with_keys=True)
    path, offset = place_of(hub, story.ciphertext)
    at = offset + _INTO_CIPHERTEXT
    flip(path, at)
    name = str(path.relative_to(hub))
    story.step(5, "tamper", f"with the hub at rest, one bit of message {TARGET} is flipped in its files:")
    story.more(f"byte {at} of {shorten(name)}")

    reports = verify_all(OsFs(hub))
    errors = [finding for report in reports for finding in report.errors]
    damage = next((finding for finding in errors if finding.path == name), None)
    expect(damage, "the flipped bit was not found")
    assert damage is not None  # noqa: S101 - just seen
    story.step(6, "detect", "every entry checked against what was signed: FAILED")
    story.more(f"{shorten(damage.path)}, byte {damage.offset}: {damage.message}")
    story.facts |= {
        "tampered": {"path": name, "offset": at, "seq": TARGET},
        "finding": {"path": damage.path, "offset": damage.offset, "code": damage.code, "message": damage.message},
    }

    shutil.rmtree(hub)
    restored = PrivateFs(hub)
    restored.make_dir("")
    clone(copy, restored, with_keys=True)
    shutil.rmtree(copy.root)
    (report,) = verify_all(OsFs(hub))
    entries = sum(label.size for label in report.labels.values())
    expect(report.ok and entries == len(BODIES), "the restored hub does not verify")
    signatures = report.counts.get("signatures", 0)
    story.step(
        7, "repair", f"restored from a copy and checked again: {entries} entries, {signatures} signatures, all good"
    )
    story.facts["restored"] = {"entries": entries, "signatures": signatures}


def flip(path: Path, at: int) -> None:
    """Change one bit of a file; a second call restores it."""
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 0x01]))


def place_of(hub: Path, ciphertext: bytes) -> tuple[Path, int]:
    """Return the file and the offset of a message in the log."""
    for path in sorted((hub / "log").iterdir()):
        offset = path.read_bytes().find(ciphertext)
        if offset >= 0:
            return path, offset
    expect(False, "the message is not in the log")
    raise AssertionError


async def fork(story: Story) -> None:
    """Run step 8: start the older copy of the hub, which signs another history."""
    seq = len(BODIES)
    async with run_hub(story.root / "earlier") as hub:
        await _write_other_story(story, hub.url, seq)
        story.step(8, "fork", f"the hub is started from a copy made before message {seq}, and signs another one")
        caught: Equivocated | None = None
        async with await connect(story, hub.url, "bob") as reader:
            try:
                async for _ in reader.read(STREAM):
                    pass
            except Equivocated as exc:
                caught = exc
    shutil.rmtree(story.root / "earlier")
    expect(caught, "the second story was not noticed")
    assert caught is not None  # noqa: S101 - just seen
    data = caught.evidence.to_bytes()
    PrivateFs(story.root).replace("evidence.cbor", data)
    evidence = Equivocation.from_bytes((story.root / "evidence.cbor").read_bytes())
    evidence.verify()
    expect(evidence.hub_pks == (story.hub_pk,), "the evidence is against another hub")
    story.more(f"bob, who has read the first: {caught.what} (seq {caught.seq})")
    story.more(f"two receipts for one place: {len(data)} bytes that convict it, verified with its public key alone")
    story.facts |= {"evidence_bytes": len(data), "caught": caught.code, "forked_seq": caught.seq}


async def _write_other_story(story: Story, url: str, seq: int) -> None:
    """Write to the copy as Carol, who never saw the first history."""
    carol = Identity.create("carol", now=int(time.time()))
    stream_keys = story.people["alice"].secrets.keyring.for_stream(STREAM)
    keys = Keyring().with_keys(stream_keys.for_writers())
    pin, home = HubPin.of_key(story.hub_pk), Home.at(story.root / "carol")
    async with await Client.connect(url, pin=pin, identity=carol, keyring=keys, home=home) as writer:
        sent = await writer.send(STREAM, b"transfer 4000 to mallory")
        expect(sent.seq == seq, "the other story does not fork the first")
    shutil.rmtree(home.data)
