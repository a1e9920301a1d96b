"""Draws the pictures of README.md and docs/architecture.md.

    python tools/make_pictures.py            write docs/pictures/*.svg
    python tools/make_pictures.py --check    exit 1 if a file is not what would be written

Every name in a picture that begins with a room of `src/veen` is a module or something in one: tests/test_pictures.py
imports them all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 960
STYLE: Final = """
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1c2430 }
  .name { font-weight: 600; font-size: 14px }
  .code { font-family: ui-monospace, monospace; font-size: 12px; fill: #35506b }
  .head { font-weight: 600; font-size: 15px }
  .box { fill: #eef3f8; stroke: #6b87a3 }
  .mark { fill: #fdf3e3; stroke: #b9822f }
  .back { fill: #ffffff }
  .line { stroke: #6b87a3; stroke-width: 1.5; fill: none }
  .tip { fill: #6b87a3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4eaf1 } .code { fill: #9fc1e3 } .box { fill: #1f2a36 } .mark { fill: #3a2f1c }
    .back { fill: #11161c }
  }
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A box of a picture that is read from top to bottom."""

    name: str
    says: str
    code: Sequence[str]  # names below `veen.`
    marked: bool = False


# From the top down; each room may import from those below it. Rooms of one row do not see each other.
ROOMS: Final[Sequence[Mapping[str, str]]] = (
    {"products": "recorder, bridge, federation, witness, query service, console, kube, vesn …: none imports another"},
    {"cli": "the veen command: commands, options, output, results"},
    {"api": "what import veen offers: connect, streams, evidence"},
    {"lake": "bulk work: tables, folds and queries; in one process, or on Spark; below them the reader of logs"},
    {"client": "identities, send, read, prove", "overlays": "events to state, pure", "hub": "admit, order, answer"},
    {"verify": "what holds of a data directory"},
    {"storage": "journal, chunks, index, copies: what is written"},
    {"io": "every door to the outside: files, buckets, HTTP, TLS, NATS, QUIC"},
    {"core": "the protocol, pure: bytes, keys, objects, tree, errors. No I/O, no clock, no randomness"},
)

MESSAGE: Final[Sequence[Step]] = (
    Step("seal and sign", "HPKE and XChaCha20-Poly1305, then Ed25519: a MSG", ("client.send.sealing",)),
    Step("submit", "kept until a receipt comes; a retry sends the same bytes", ("client.send.submitting",)),
    Step("read the request", "sizes, deny list, proof of work", ("hub.http.connection", "hub.api.submits")),
    Step("verify", "structure, ct_hash, signature: worker threads, no state", ("hub.sequencer.verifier",)),
    Step("admit", "capability, rate, sequence: the ranked table", ("hub.admission.decide", "core.errors.Refusal")),
    Step("order", "position, hub_ts, Merkle root; the RECEIPT is signed", ("hub.sequencer.sequencer", "core.tree.mmr")),
    Step("journal", "all that waits, one write, one sync: durable from here", ("storage.journal",), marked=True),
    Step("answer", "chunks and nodes grow in memory; then the RECEIPT leaves", ("storage.store",)),
    Step("verify the receipt", "root, signature, the view of the label goes on", ("client.verify.view",)),
    Step("open", "whoever has a read key of the stream", ("client.read.reading",)),
)

ROW: Final[Sequence[Step]] = (
    Step("chunk", "frames of MSG and RECEIPT in a file, a bucket or a hub's page", ("storage.frame", "io.places")),
    Step("pinned prefix", "which entries count now, label by label", ("storage.pinned", "lake.log.prefix")),
    Step("entries", "columns of each entry, hashes and signatures checked", ("lake.log.entries", "verify.vectors")),
    Step("events", "opened with read keys, or the reason why not", ("lake.log.decryption", "lake.log.events")),
    Step("records", "fields of a typed body", ("lake.query.fields",)),
    Step("rows", "filtered, grouped, ordered, hashed", ("lake.query.engine", "lake.query.on_spark"), marked=True),
    Step(
        "result",
        "rows with a digest, coverage and evidence",
        ("lake.query.digest", "lake.query.evidence"),
    ),
)


def names() -> Iterator[str]:
    """Everything of the code that the pictures name, below `veen.`."""
    for row in ROOMS:
        yield from row
    for step in (*MESSAGE, *ROW):
        yield from step.code


def _svg(title: str, about: str, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">\n'
        f'<title id="t">{escape(title)}</title>\n<desc id="d">{escape(about)}</desc>\n<style>{STYLE}</style>\n'
        f'<rect class="back" width="{WIDTH}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _arrow(x: int, top: int, bottom: int) -> str:
    return f'<path class="line" d="M{x} {top} V{bottom - 6}"/><path class="tip" d="M{x - 5} {bottom - 8} h10 l-5 8 z"/>'


@dataclass(frozen=True, slots=True)
class Party:
    """A column of the picture of README.md: who does what with a message, from top to bottom."""

    name: str
    steps: Sequence[str]
    says: str


PARTIES: Final = (
    Party("writer", ("seal for the readers", "sign", "verify the receipt"), "trusts no hub"),
    Party("hub", ("check and order", "append to the Merkle tree", "sign the new root"), "cannot open messages"),
    Party(
        "reader, auditor",
        ("verify receipt and proof", "open", "fold: state from the log"),
        "two histories convict the hub",
    ),
)
# From one party to the next, and back.
PASSED: Final = (("MSG", "RECEIPT"), ("entries, proofs", ""))


def parties() -> str:
    """Draw a message from left to right, and its receipt back."""
    width, gap, top, height = 220, 130, 20, 206
    parts = []
    for number, party in enumerate(PARTIES):
        x = 20 + number * (width + gap)
        parts.append(f'<rect class="box" x="{x}" y="{top}" width="{width}" height="{height}" rx="8"/>')
        parts.append(f'<text class="head" x="{x + 16}" y="{top + 28}">{escape(party.name)}</text>')
        for place, step in enumerate(party.steps):
            y = top + 46 + place * 40
            parts.append(f'<rect class="mark" x="{x + 16}" y="{y}" width="{width - 32}" height="30" rx="5"/>')
            parts.append(f'<text x="{x + 28}" y="{y + 20}">{escape(step)}</text>')
        parts.append(f'<text x="{x + 16}" y="{top + height - 16}">{escape(party.says)}</text>')
    for number, (there, back) in enumerate(PASSED):
        left = 20 + number * (width + gap) + width
        right, middle = left + gap, left + gap // 2
        parts.append(_across(left + 4, right - 4, top + 81))
        parts.append(f'<text x="{middle}" y="{top + 72}" text-anchor="middle">{escape(there)}</text>')
        if back:
            parts.append(_across(right - 4, left + 4, top + 141))
            parts.append(f'<text x="{middle}" y="{top + 132}" text-anchor="middle">{escape(back)}</text>')
    about = "; ".join(f"{party.name}: {', '.join(party.steps)} ({party.says})" for party in PARTIES)
    return _svg("A message from a writer over a hub to a reader", about, top + height + 20, parts)


def _across(start: int, end: int, y: int) -> str:
    """Draw an arrow from `start` to `end`, to the right or to the left."""
    step = 8 if end > start else -8
    return (
        f'<path class="line" d="M{start} {y} H{end - step}"/>'
        f'<path class="tip" d="M{end - step} {y - 5} v10 l{step} -5 z"/>'
    )


def rooms() -> str:
    """Draw the rooms on one page."""
    top, height, gap = 52, 58, 12
    parts = ['<text class="head" x="20" y="30">The rooms of src/veen: each imports only from those below it</text>']
    for number, row in enumerate(ROOMS):
        y = top + number * (height + gap)
        width = (WIDTH - 40 - gap * (len(row) - 1)) // len(row)
        for place, (name, says) in enumerate(row.items()):
            x = 20 + place * (width + gap)
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
            parts.append(f'<text class="name" x="{x + 14}" y="{y + 24}">{escape(name)}</text>')
            parts.append(f'<text x="{x + 14}" y="{y + 44}">{escape(says)}</text>')
    about = "; ".join(f"{name}: {says}" for row in ROOMS for name, says in row.items())
    return _svg("The rooms of VEEN", about, top + len(ROOMS) * (height + gap) + 8, parts)


def steps(title: str, path: Sequence[Step]) -> str:
    """Draw a sequence of steps from top to bottom."""
    top, height, gap = 52, 56, 22
    parts = [f'<text class="head" x="20" y="30">{escape(title)}</text>']
    for number, step in enumerate(path):
        y = top + number * (height + gap)
        kind = "mark" if step.marked else "box"
        parts.append(f'<rect class="{kind}" x="20" y="{y}" width="560" height="{height}" rx="6"/>')
        parts.append(f'<text class="name" x="34" y="{y + 23}">{escape(step.name)}</text>')
        parts.append(f'<text x="34" y="{y + 43}">{escape(step.says)}</text>')
        for line, code in enumerate(step.code):
            parts.append(f'<text class="code" x="600" y="{y + 20 + 18 * line}">{escape(code)}</text>')
        if number + 1 < len(path):
            parts.append(_arrow(300, y + height, y + height + gap))
    about = "; ".join(f"{step.name}: {step.says} ({', '.join(step.code)})" for step in path)
    return _svg(title, about, top + len(path) * (height + gap), parts)


def pictures() -> Mapping[str, str]:
    """Every file and what it holds."""
    return {
        "overview.svg": parties(),
        "rooms.svg": rooms(),
        "message.svg": steps("The life of a message", MESSAGE),
        "row.svg": steps("From a chunk to a row of a query", ROW),
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of README.md and docs/architecture.md.")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(words)
    stale = [name for name, text in pictures().items() if not _is(FOLDER / name, text)]
    if options.check:
        for name in stale:
            print(f"docs/pictures/{name} is stale: run python tools/make_pictures.py", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pictures()[name], "utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
