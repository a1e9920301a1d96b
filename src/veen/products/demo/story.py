"""The demo, step by step: a real hub, two people, and their proofs. Every statement is checked before it is printed.

The second half of the demo: a bit flips on disk, and a hub signs two histories. Both are found and proven.
"""

import asyncio
import contextlib
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from veen.cli.shared.output import Fail, Output
from veen.cli.shared.text import short
from veen.client.client import Client
from veen.client.config.projects import change
from veen.client.errors import Equivocated
from veen.client.home import Home, PrivateFs
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore, create_identity
from veen.client.identity.passphrases import Kdf
from veen.client.read.picture import Picture, text, to_svg
from veen.client.send.sealing import Attach
from veen.client.verify.pin import HubPin
from veen.core.objects.evidence import Equivocation
from veen.hub.process.config import load
from veen.hub.process.forking import verify_all
from veen.hub.process.runtime import Hub
from veen.io.local import OsFs
from veen.storage.copies.copying import clone

STREAM: Final = "demo/control-room"
DOORS: Final = "record/demo/doors"  # of the Spark part
BODIES: Final = (b"hello bob", b"the valve is open", b"transfer 40 to carol", b"the valve is shut", b"good night")
PLAN: Final = b"valve 7: open at 06:00, shut at 22:00, never both\n" * 20
STEPS: Final = 9
MORE_STEPS: Final = 6  # of the Spark part
TARGET: Final = 3  # the entry that is proven, and later tampered with
_KEPT_BEFORE: Final = 5  # a copy of the hub is taken before this entry


@dataclass
class Story:
    """State of the story: people, places, and results so far."""

    root: Path
    output: Output
    tell: Callable[[str], None] = lambda _: None  # what is going on, for the line that shows progress
    steps: int = STEPS
    facts: dict[str, Any] = field(default_factory=dict)
    hub_pk: bytes = b""
    ciphertext: bytes = b""  # of the target, as the hub stores it
    people: dict[str, Keystore] = field(default_factory=dict)

    @property
    def home(self) -> Home:
        return Home.at(self.root / "home")

    def step(self, number: int, name: str, line: str) -> None:
        place = f"{number}/{self.steps} "
        self._say(f"{place:<{self._indent - 8}}{name:<8}{line}")

    def more(self, line: str) -> None:
        self._say(f"{'':<{self._indent}}{line}")

    def _say(self, line: str) -> None:
        bad = next((word for word in ("FAILED", "BAD") if word in line), "")
        self.output.line(line, good="verified" if "verified" in line else "", bad=bad)

    @property
    def _indent(self) -> int:
        return len(f"{self.steps}/{self.steps} ") + 8


def play(
    root: Path,
    output: Output,
    tell: Callable[[str], None],
    *,
    spark: bool = False,
    before_spark: Callable[[], None] = lambda: None,
) -> Story:
    """Run all steps below `root`; the story has the facts of each."""
    from veen.products.demo.recording import record_and_tamper

    root.mkdir(parents=True, exist_ok=True)
    story = Story(root, output, tell, STEPS + MORE_STEPS if spark else STEPS)

    async def all_steps() -> None:
        await _live(story)
        await asyncio.to_thread(tamper_and_repair, story)
        await fork(story)
        await record_and_tamper(story, STEPS)

    asyncio.run(all_steps())
    if spark:
        before_spark()
        from veen.products.demo.spark import on_spark

        on_spark(story)
    return story


def expect(condition: object, what: str) -> None:
    """Raise Fail unless the condition holds: the demo claims nothing that it did not see."""
    if not condition:
        raise Fail("E.DEMO", "the demo went wrong", what, "report this")


@contextlib.asynccontextmanager
async def run_hub(data_dir: Path, *, issuer_pk: bytes | None = None) -> AsyncIterator[Hub]:
    """Run a hub on a free port of loopback, as `veen hub start --dev` does; tokens of `issuer_pk` are accepted."""
    settings = {
        "data_dir": str(data_dir),
        "dev": "true",
        "listen.port": "0",
        "engine.workers": "0",  # five messages need no verifier processes
        "log.level": "error",
        "admission.capability_gating": "false",
        "admission.stream_scope": "open",
    }
    if issuer_pk is not None:
        settings["admission.trusted_issuers"] = issuer_pk.hex()
    async with Hub.serve(load(None, {}, settings)) as hub:
        yield hub


async def _live(story: Story) -> None:
    """Run steps 1 to 4, while the hub runs."""
    async with run_hub(story.root / "hub") as hub:
        story.hub_pk = hub.identity.current_pk
        port = urlsplit(hub.url).port
        story.facts |= {"url": hub.url, "port": port, "hub_pk": f"ed25519:{story.hub_pk.hex()}", "stream": STREAM}
        story.step(1, "hub", f"listens on {hub.url}, key ed25519:{short(story.hub_pk)}")
        await _make_people(story)
        change(
            story.home.config_file,
            {"context.demo.hub": hub.url, "context.demo.hub_pk": story.facts["hub_pk"], "current_context": "demo"},
        )
        await _send(story, hub.url)
        async with await connect(story, hub.url, "bob") as reader:
            await _read(story, reader)
            await _prove(story, reader)


async def connect(story: Story, url: str, name: str) -> Client:
    pin, who = HubPin.of_key(story.hub_pk), story.people[name]
    return await Client.connect(url, pin=pin, identity=who.identity, keyring=who.secrets.keyring, home=story.home)


async def _make_people(story: Story) -> None:
    passphrase = secrets.token_hex(16)
    PrivateFs(story.root).replace("passphrase", f"{passphrase}\n".encode())
    now = int(time.time())
    alice, bob = await asyncio.gather(
        *(asyncio.to_thread(create_identity, story.home, name, passphrase, now=now) for name in ("alice", "bob"))
    )
    story.people = {"alice": alice, "bob": bob}
    keys = StreamKeys.create(STREAM)
    for keystore, granted in ((alice, keys.for_writers()), (bob, keys)):
        with story.home.lock(keystore.identity.name):
            keystore.save(replace(keystore.secrets, keyring=Keyring().with_keys(granted)))
    kdf = Kdf()
    story.step(2, "keys", f"alice {short(alice.identity.client_id)} and bob {short(bob.identity.client_id)}")
    story.more(f"keystores sealed under a passphrase (argon2id, {kdf.memory_kib // 1024} MiB, {kdf.passes} passes)")
    story.more("bob made the keys of the stream; alice has the one that seals, not the one that opens")
    expect(not alice.secrets.keyring.for_stream(STREAM).can_read, "alice can read")


async def _send(story: Story, url: str) -> None:
    """Send Alice's messages; before the last one, copy the running hub."""
    sizes = []
    async with await connect(story, url, "alice") as writer:
        label = writer.label(STREAM)
        for number, body in enumerate(BODIES, start=1):
            if number == _KEPT_BEFORE:
                source, target = OsFs(story.root / "hub"), PrivateFs(story.root / "earlier")
                target.make_dir("")
                await asyncio.to_thread(clone, source, target, with_keys=True)
            files = [Attach(data=PLAN, name="plan.txt", media_type="text/plain")] if number == 2 else []
            sent = await writer.send(STREAM, body, attachments=files)
            expect(sent.seq == number, "the hub gave another number")
            sizes.append(len(sent.raw))
            if number == TARGET:
                story.ciphertext = sent.msg.ciphertext
                PrivateFs(story.root).replace("receipt.cbor", sent.receipt.to_bytes())
    story.facts |= {"messages": len(BODIES), "label": label.hex(), "message_bytes": sizes}
    story.step(3, "send", f"{len(BODIES)} messages and a file from alice, each receipt verified before the next")
    story.more(f"to the hub the stream {STREAM!r} is label {short(label)}")


async def _read(story: Story, reader: Client) -> None:
    story.more("seq  msg_id     bytes  opened by bob")
    count = 0
    async for entry in reader.read(STREAM):
        count += 1
        expect(entry.body == BODIES[entry.seq - 1], "bob read something else")
        line = f"{entry.seq:<3}  {short(entry.msg_id)}  {len(entry.msg.to_bytes()):<5}  {entry.body.decode()!r}"
        for index, declared in enumerate(entry.attachments):
            expect(await reader.attachments.get(entry, index) == PLAN, "the attachment is another one")
            line += f" + {declared.name}, {declared.size} bytes"
        story.more(line)
    expect(count == len(BODIES), "bob did not read everything")
    stored = b"".join(path.read_bytes() for path in sorted((story.root / "hub").rglob("*")) if path.is_file())
    words = (*BODIES, STREAM.encode(), PLAN[:32], b"plan.txt")
    leaked = [word for word in words if word in stored]
    expect(not leaked, "plaintext reached the hub")
    story.facts |= {"hub_bytes": len(stored), "plaintext_at_hub": len(leaked)}
    story.more(f"the hub stored {len(stored)} bytes: no body, no file, no name of the stream is among them")


async def _prove(story: Story, reader: Client) -> None:
    size = len(BODIES)
    proven = await reader.proof(STREAM, TARGET, tree_size=size)
    picture = Picture.of(proven.proof, stream_seq=TARGET, root=proven.root, tree_size=size)
    story.step(4, "proof", f"message {TARGET} of {size}: {picture.hashes} hashes lead to a root that the hub signed")
    for line in text(picture):
        story.more(line)
    await reader.consistency(STREAM, TARGET, size)  # raises unless it holds
    story.more(f"and the log of {size} only adds to the log of {TARGET}: verified")
    PrivateFs(story.root).replace(
        "proof.svg", to_svg(picture, signed_by=f"hub ed25519:{story.hub_pk.hex()[:8]}…").encode()
    )
    story.facts |= {
        "root": proven.root.hex(),
        "proof_hashes": picture.hashes,
        "proof_bytes": len(proven.proof.to_bytes()),
        "tree": list(text(picture)),
    }


def shorten(path: str) -> str:
    """Shorten the labels in a path, which have 64 digits."""
    return re.sub(r"[0-9a-f]{64}", lambda found: short(bytes.fromhex(found[0])), path)


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
