"""Writes tests/vectors/histories/*.json: complete histories of every overlay, operation profile and product.

    python tools/history_vectors.py           write the files
    python tools/history_vectors.py --check   exit 1 if a file on disk is not what this program writes

All draws come from the name of a history, so the files are a function of this program and
the code. docs/vectors.md says what each member means; tools/veen_verify_histories.py checks what needs no keys.

Logs and states are computed. Which rules of the log a wire fault breaks is written here by hand. Content faults are
those that the folds report; in a history without faults they report none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

from history_subjects import KEYS, SUBJECTS, Scene, Script, Step, Subject, draw_step
from make_vectors import OUTPUT, READER_IKM, READER_PK, READER_SK, _to_hex
from veen.core.crypto.ed25519 import SigningKey
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.labels import epoch_at, hub_id_of, label_of, routing_key_of
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Binding, seal
from veen.core.tree.mmr import Mmr
from veen.core.wire import Wire
from veen.overlays.framework.schema import Draft
from veen.overlays.framework.state import Free

DIRECTORY: Final = OUTPUT.parent / "histories"
HUB: Final = KEYS["hub"]
ROUTING_KEY: Final = routing_key_of(hub_id_of(HUB.public))
START: Final = 1_700_000_040  # a multiple of 60
MAX_DRAWS: Final = 60  # messages that are tried for one entry
BEST: Final = 3  # rank of a message after which no other is tried


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the histories among the conformance vectors.")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    args = parser.parse_args(argv)
    DIRECTORY.mkdir(exist_ok=True)
    status = 0
    for subject in SUBJECTS:
        path, text = DIRECTORY / f"{subject.name}.json", render(subject)
        if not args.check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.stderr.write(f"{path.name} is not what tools/history_vectors.py writes\n")
            status = 1
    return status


# --- a log ----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """An entry, and how it was made."""

    msg: Msg
    receipt: Receipt
    event: Event
    step: Step


@dataclass
class Log:
    """The log of a hub: labels in the order of their first entries, entries in the order of admission."""

    name: str
    profile: Profile
    labels: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    sealed: int = 0

    def of_label(self, label: bytes) -> list[Entry]:
        return [entry for entry in self.entries if entry.receipt.label == label]

    def seal(self, step: Step, label: bytes, client_seq: int, prev_ack: int) -> Msg:
        """Seal and sign a message; the ephemeral key follows from the name of the history and a counter."""
        self.sealed += 1
        binding = Binding(
            profile_id=self.profile.profile_id(),
            label=label,
            client_id=step.key.public,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=None,
        )
        ikm = H(f"veen/histories {self.name} {self.sealed}".encode())
        sealed = seal(READER_PK, binding, _header(step.draft), step.draft.body, ikm=ikm, pad_block=0)
        return Msg.compose(
            step.key,
            profile_id=binding.profile_id,
            label=label,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=None,
            ciphertext=sealed.ciphertext,
        )

    def receipt(self, label: bytes, leaf_hash: bytes, hub_ts: int, key: SigningKey = HUB) -> Receipt:
        """Sign the receipt of the next leaf of a label."""
        tree = Mmr()
        for entry in self.of_label(label):
            tree.append(entry.receipt.leaf_hash)
        tree.append(leaf_hash)
        return Receipt.issue(
            key, label=label, stream_seq=tree.size, leaf_hash=leaf_hash, mmr_root=tree.root(), hub_ts=hub_ts
        )

    def draw(self, step: Step, hub_ts: int) -> Entry:
        """Make the next entry; `entries` stays as it is."""
        epoch = epoch_at(hub_ts, self.profile.epoch_sec)
        label = label_of(ROUTING_KEY, step.stream_id, epoch)
        before = self.of_label(label)
        client_seq = 1 + sum(entry.msg.client_id == step.key.public for entry in before)
        msg = self.seal(step, label, client_seq, len(before))
        receipt = self.receipt(label, msg.leaf_hash(), hub_ts)
        event = Event.from_message(
            _header(step.draft),
            step.draft.body,
            stream_id=step.stream_id,
            label=label,
            epoch=epoch,
            stream_seq=receipt.stream_seq,
            leaf_hash=receipt.leaf_hash,
            client_id=msg.client_id,
            auth_ref=None,
            hub_ts=hub_ts,
            ts=max([hub_ts, *(entry.receipt.hub_ts for entry in before)]),
        )
        return Entry(msg, receipt, event, step)

    def add(self, entry: Entry) -> None:
        self.labels.setdefault(entry.receipt.label, (entry.event.stream_id, entry.event.epoch))
        self.entries.append(entry)


def _header(draft: Draft) -> PayloadHdr:
    return PayloadHdr(schema=draft.schema, parent_id=draft.parent_id, expires_at=draft.expires_at)


# --- one history ------------------------------------------------------------------------------------------------


def make_log(subject: Subject, name: str, settings: Any, fault_codes: set[str] | None = None) -> Log:
    """Return a log in which every event is accepted; with `fault_codes`, one or two of its events are refused.

    Codes that are not among `fault_codes` are preferred, and added to them.
    """
    rng = Random(f"veen/histories {name}")  # noqa: S311 - draws that anyone can repeat
    log = Log(name, Profile(epoch_sec=60 if rng.randrange(5) == 0 else 0, pad_block=0))
    scene = Scene(rng, settings, START)
    entries = rng.randrange(subject.shortest, subject.longest + 1)
    refused = () if fault_codes is None else {rng.randrange(1, entries), rng.randrange(1, entries), entries - 1}
    parts_ways = subject.has_letter and rng.randrange(2) == 0
    for place in range(entries):
        hub_ts = scene.now + rng.choice((-1, 0, 1, 1, 2, 7, 30))
        scene.place = place
        is_last = place == entries - 1
        choice: Entry | None = None
        best = 0
        for _ in range(MAX_DRAWS):
            entry = log.draw(draw_step(subject, scene, may_break=place in refused), hub_ts)
            events = [*scene.events, entry.event]
            if place in refused:
                rank = rank_of_fault(subject, scene, events, fault_codes or set())
            else:
                rank = rank_of_good(subject, scene, events, parts_ways=parts_ways and is_last)
            if rank > best:
                choice, best = entry, rank
            if best == BEST:
                break
        if choice is not None:
            log.add(choice)
            scene.events.append(choice.event)
            scene.now = max(scene.now, hub_ts)
    if fault_codes is not None:
        fault_codes.update(codes_of(subject, settings, scene.events))
    return log


def play(script: Script, name: str, settings: Any) -> Log:
    """Return the log that a script writes."""
    log = Log(name, Profile(epoch_sec=0, pad_block=0))
    scene = Scene(Random(name), settings, START)  # noqa: S311 - scripts draw nothing
    for step, seconds in script(scene):
        log.add(log.draw(step, scene.now + seconds))
        scene.events.append(log.entries[-1].event)
        scene.now += max(0, seconds)
    return log


def rank_of_fault(subject: Subject, scene: Scene, events: Sequence[Event], known: set[str]) -> int:
    """Rank a message that is to be refused: best for a code of the overlay that no other history has yet."""
    before, after = (Counter(codes_of(subject, scene.settings, some)) for some in (scene.events, events))
    gained = set(after - before)
    own = {code for code in gained if not code.startswith("OVL.")}
    return bool(gained) + bool(own or gained - known) + bool(own - known)


def rank_of_good(subject: Subject, scene: Scene, events: Sequence[Event], *, parts_ways: bool) -> int:
    """Rank a message that is to count; with `parts_ways` the default and the letter should differ after it."""
    if len(codes_of(subject, scene.settings, events)) > len(codes_of(subject, scene.settings, scene.events)):
        return 0
    if not parts_ways:
        return BEST
    default, letter = (subject.read(scene.settings, events, policy) for policy in ("default", "letter"))
    return BEST if default.state != letter.state else 1


def codes_of(subject: Subject, settings: Any, events: Sequence[Event]) -> list[str]:
    return [code for _, _, code in subject.read(settings, events, "default").faults]


def history(subject: Subject, log: Log, settings: Any, broken: Broken | None = None) -> dict[str, Any]:
    """Return the JSON form of a history."""
    pairs = [(entry.msg.to_bytes(), entry.receipt.to_bytes()) for entry in log.entries]
    events = [entry.event for entry in log.entries]
    fault = {}
    if broken is not None:
        pairs, events = broken.pairs, events[: broken.entry - 1]
        fault = {"wire_fault": {"entry": broken.entry, "rules": broken.rules}}
    numbers = {label: number for number, label in enumerate(log.labels)}
    expect = {}
    for policy in ("default", "letter") if subject.has_letter else ("default",):
        result = subject.read(settings, events, policy)
        expect[policy] = {
            "state_tag": result.tag,
            "state": result.state,
            "state_hash": result.state_hash,
            "faults": [[numbers[label], seq, code] for label, seq, code in result.faults],
        }
    return {
        "name": log.name,
        "settings": settings,
        "profile": log.profile,
        "labels": [[label, stream_id, epoch] for label, (stream_id, epoch) in log.labels.items()],
        "log": pairs,
        **fault,
        "expect": expect,
    }


# --- faults of the wire -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    """A log as a bad writer or a bad hub shows it: the first faulty entry, and the rules that it breaks."""

    pairs: list[tuple[bytes, bytes]]
    entry: int  # from 1
    rules: list[str]


def break_log(log: Log, kind: str, rng: Random) -> Broken | None:
    """Return the log with this fault; None if it has no place for it."""
    places = [n for n in range(len(log.entries)) if _followers(log, n) >= _FOLLOWERS.get(kind, 0)]
    if kind == "ack_back":
        places = [n for n in places if any(e.msg.prev_ack for e in _earlier_of_author(log, n))]
    if kind in ("repeated_seq", "replayed"):
        places = [n for n in places if _earlier_of_author(log, n)]
    if not places:
        return None
    at = rng.choice(places)
    return _FAULTS[kind](log, at)


def _followers(log: Log, at: int) -> int:
    """Count the later entries of the same label."""
    label = log.entries[at].receipt.label
    return sum(entry.receipt.label == label for entry in log.entries[at + 1 :])


def _earlier_of_author(log: Log, at: int) -> list[Entry]:
    entry = log.entries[at]
    place = entry.receipt.label, entry.msg.client_id
    return [e for e in log.entries[:at] if (e.receipt.label, e.msg.client_id) == place]


def _pairs(log: Log, at: int, *changed: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the entries up to `at`, which `changed` replaces, and one more."""
    pairs = [(entry.msg.to_bytes(), entry.receipt.to_bytes()) for entry in log.entries]
    return [*pairs[:at], *changed, *pairs[at + 1 : at + 2]]


def _flip(data: bytes) -> bytes:
    return data[:9] + bytes([data[9] ^ 1]) + data[10:]


def _upto(log: Log, at: int) -> Log:
    return replace(log, entries=log.entries[:at])


def _with_msg(log: Log, at: int, msg: Msg, *rules: str) -> Broken:
    """Admit this message in place of the entry, with a RECEIPT that is true for it."""
    entry = log.entries[at]
    receipt = _upto(log, at).receipt(entry.receipt.label, msg.leaf_hash(), entry.receipt.hub_ts)
    return Broken(_pairs(log, at, (msg.to_bytes(), receipt.to_bytes())), at + 1, list(rules))


def _with_receipt(log: Log, at: int, rule: str, key: SigningKey = HUB, **changes: bytes) -> Broken:
    entry = log.entries[at]
    receipt = replace(entry.receipt, **changes)  # type: ignore[arg-type]  # of the fields that are bytes
    receipt = replace(receipt, hub_sig=key.sign(receipt.signing_digest()))
    return Broken(_pairs(log, at, (entry.msg.to_bytes(), receipt.to_bytes())), at + 1, [rule])


def _reseal(log: Log, at: int, *, label: bytes | None = None, seq: int = 0, ack: int | None = None) -> Msg:
    entry = log.entries[at]
    prev_ack = entry.msg.prev_ack if ack is None else ack
    return log.seal(entry.step, label or entry.msg.label, entry.msg.client_seq + seq, prev_ack)


def _author_sig(log: Log, at: int) -> Broken:
    entry = log.entries[at]
    msg = replace(entry.msg, sig=_flip(entry.msg.sig))
    return Broken(_pairs(log, at, (msg.to_bytes(), entry.receipt.to_bytes())), at + 1, ["AUTHOR_SIG"])


def _ct_hash(log: Log, at: int) -> Broken:
    """Let the author sign another ct_hash than that of the ciphertext."""
    entry = log.entries[at]
    msg = replace(entry.msg, ct_hash=_flip(entry.msg.ct_hash))
    msg = replace(msg, sig=entry.step.key.sign(msg.signing_digest()))
    return _with_msg(log, at, msg, "CT_HASH")


def _swap(log: Log, at: int) -> Broken:
    """Exchange the receipts of an entry and of the next one in its label."""
    pairs = [(entry.msg.to_bytes(), entry.receipt.to_bytes()) for entry in log.entries]
    label = log.entries[at].receipt.label
    other = next(n for n in range(at + 1, len(pairs)) if log.entries[n].receipt.label == label)
    pairs[at], pairs[other] = (pairs[at][0], pairs[other][1]), (pairs[other][0], pairs[at][1])
    return Broken(pairs[: other + 1], at + 1, ["SEQ", "LEAF", "ROOT"])


def _leave_out(log: Log, at: int) -> Broken:
    """Leave out an entry."""
    label, author = log.entries[at].receipt.label, log.entries[at].msg.client_id
    following = next(n for n in range(at + 1, len(log.entries)) if log.entries[n].receipt.label == label)
    msg = log.entries[following].msg
    rules = ["SEQ"]
    rules += ["ACK_AHEAD"] if msg.prev_ack >= log.entries[at].receipt.stream_seq else []
    rules += ["CLIENT_SEQ"] if msg.client_id == author else []
    rules += ["ROOT"]
    pairs = [(entry.msg.to_bytes(), entry.receipt.to_bytes()) for entry in log.entries[: following + 1]]
    return Broken(pairs[:at] + pairs[at + 1 :], following, rules)


def _replay(log: Log, at: int) -> Broken:
    """Admit an earlier message of the author again."""
    return _with_msg(log, at, _earlier_of_author(log, at)[-1].msg, "CLIENT_SEQ")


def _another_label(log: Log, at: int) -> Broken:
    return _with_msg(log, at, _reseal(log, at, label=H(b"another label")), "LABEL")


def _another_leaf(log: Log, at: int) -> Broken:
    """Sign a leaf that is not that of the message, and the root with it."""
    entry = log.entries[at]
    receipt = _upto(log, at).receipt(entry.receipt.label, H(b"another leaf"), entry.receipt.hub_ts)
    return Broken(_pairs(log, at, (entry.msg.to_bytes(), receipt.to_bytes())), at + 1, ["LEAF"])


def _format(log: Log, at: int) -> Broken:
    """Add a byte after the message."""
    entry = log.entries[at]
    return Broken(_pairs(log, at, (entry.msg.to_bytes() + b"\x00", entry.receipt.to_bytes())), at + 1, ["FORMAT"])


_FAULTS: Final[dict[str, Callable[[Log, int], Broken]]] = {
    "author_sig": _author_sig,
    "ct_hash": _ct_hash,
    "root": lambda log, at: _with_receipt(log, at, "ROOT", mmr_root=H(b"another root")),
    "swapped_receipts": _swap,
    "repeated_seq": lambda log, at: _with_msg(log, at, _reseal(log, at, seq=-1), "CLIENT_SEQ"),
    "hub_sig": lambda log, at: _with_receipt(log, at, "HUB_SIG", KEYS["stranger"]),
    "left_out": _leave_out,
    "seq_gap": lambda log, at: _with_msg(log, at, _reseal(log, at, seq=1), "CLIENT_SEQ"),
    "ack_ahead": lambda log, at: _with_msg(
        log, at, _reseal(log, at, ack=log.entries[at].receipt.stream_seq), "ACK_AHEAD"
    ),
    "replayed": _replay,
    "another_label": _another_label,
    "ack_back": lambda log, at: _with_msg(log, at, _reseal(log, at, ack=0), "ACK_BACK"),
    "another_leaf": _another_leaf,
    "format": _format,
}
_FOLLOWERS: Final = {"swapped_receipts": 1, "left_out": 1}  # entries of the label that must follow


# --- the form of states ---


def shape_of(value: Any) -> Any:
    """Return the form of a state: names of fields, and kinds of values. docs/vectors.md has the notation."""
    if value is None:
        return None
    if isinstance(value, Free | bytes | Wire):
        return "cbor" if isinstance(value, Free) else "wire" if isinstance(value, Wire) else "bytes"
    if isinstance(value, bool | int | str):
        return {bool: "bool", int: "int", str: "text"}[type(value)]
    if is_dataclass(value):
        return {f.name: shape_of(getattr(value, f.name)) for f in fields(value) if not f.metadata}
    if isinstance(value, Mapping):
        keys, values = (merge_shapes(map(shape_of, some)) for some in (value.keys(), value.values()))
        return {"each": keys, "to": values}
    if hasattr(value, "_fields"):
        return [{name: shape_of(part)} for name, part in zip(value._fields, value, strict=True)]
    if isinstance(value, tuple | list) and len({type(part) for part in value}) > 1:
        return [shape_of(part) for part in value]
    return ["each", merge_shapes(map(shape_of, value))]


def merge_shapes(shapes: Iterable[Any]) -> Any:
    """Return what several values of one place have in common; None if there are none."""
    merged: Any = None
    for shape in shapes:
        if merged is None or shape is None:
            merged = shape if merged is None else merged
        elif isinstance(merged, dict) and isinstance(shape, dict):
            names = [*merged, *(name for name in shape if name not in merged)]
            merged = {name: merge_shapes([merged.get(name), shape.get(name)]) for name in names}
        elif isinstance(merged, list) and isinstance(shape, list) and len(merged) == len(shape):
            merged = [merge_shapes(pair) for pair in zip(merged, shape, strict=True)]
        elif merged != shape:
            merged = f"{merged} or {shape}" if isinstance(merged, str) and shape not in merged else merged
    return merged


# --- the files ------------------------------------------------------------------------------------------------------


def histories(subject: Subject, kinds: Sequence[str]) -> tuple[list[dict[str, Any]], Any]:
    """Return the histories of a subject and the form of their states.

    Half of them are good, a quarter has refused events, a quarter has faults of these kinds. Scripts come in addition.
    """
    rows, codes, logs = [], set[str](), list[tuple[Any, Log]]()
    numbers = count(1)

    def next_name(what: str) -> tuple[str, Any]:
        number = next(numbers)
        return f"{subject.name}/{number:02} {what}", subject.settings[number % len(subject.settings)]

    for _ in range(2 * subject.quarter):
        name, settings = next_name("good")
        logs.append((settings, make_log(subject, name, settings)))
        rows.append(history(subject, logs[-1][1], settings))
    for _ in range(subject.quarter):
        name, settings = next_name("refused")
        logs.append((settings, make_log(subject, name, settings, codes)))
        rows.append(history(subject, logs[-1][1], settings))
    left = list(kinds)
    for _ in range(subject.quarter):
        name, settings = next_name("broken")
        log = make_log(subject, name, settings)
        rng = Random(f"veen/histories {name} fault")  # noqa: S311 - as above
        kind, broken = next((k, b) for k in left if (b := break_log(log, k, rng)) is not None)
        left.remove(kind)
        log.name = name.replace("broken", kind)
        rows.append(history(subject, log, settings, broken))
    for script in subject.scripts:
        settings = subject.settings[0]
        name = f"{subject.name}/{next(numbers):02} {script.__name__.removeprefix('script_')}"
        logs.append((settings, play(script, name, settings)))
        rows.append(history(subject, logs[-1][1], settings))
    views = [subject.read(settings, [e.event for e in log.entries], "default").view for settings, log in logs]
    return rows, merge_shapes(map(shape_of, views))


def build(subject: Subject, first: int) -> dict[str, Any]:
    """Return the file of a subject. `first` turns the list of wire faults: all subjects together have each."""
    kinds = list(_FAULTS)
    turned = kinds[first % len(kinds) :] + kinds[: first % len(kinds)]
    rows, state_shape = histories(subject, turned)
    return {
        "format": "veen-histories",
        "format_version": 1,
        "spec": "v0.0.1",
        "subject": subject.name,
        "hub_pk": HUB.public,
        "reader": {"ikm": READER_IKM, "secret": READER_SK, "public": READER_PK},
        "keys": {name: {"seed": key.seed, "public": key.public} for name, key in KEYS.items()},
        "state_shape": state_shape,
        "histories": rows,
    }


def render(subject: Subject) -> str:
    """Return the text of a file: one history a line, byte strings in lower-case hex."""
    first = sum(other.quarter for other in SUBJECTS[: SUBJECTS.index(subject)])
    whole: Any = _to_hex(build(subject, first))
    rows = whole.pop("histories")
    dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    members = "".join(f"{dumps(name)}:{dumps(value)},\n" for name, value in whole.items())
    return "{" + members + '"histories":[\n' + ",\n".join(map(dumps, rows)) + "\n]}\n"


if __name__ == "__main__":
    sys.exit(main())
