"""Clone and fork: what a data directory lets anyone do (spec §0, D-76, D-77).

A clone is the same hub: same files, same keys, same next receipt. A fork keeps a prefix and goes on as another hub:
the prefix lies in `origin/`, read-only, and verifies under the keys of its origin; `fork-origin.json`, signed by the
new hub, says how much of it there is. Only one of two clones may run: two writers of one identity would
contradict each other, and anyone who holds a receipt of each could prove it.

A running hub is copied without stopping it. The index is copied first, at one of its commits; every file it knows
holds by then at least what the index says. The journal comes after them, so it covers whatever else was copied. Opening
the copy replays the journal over the files, exactly as after a crash. Keys and identity come last, and a mark lies in
the copy until all of it is durable (`unfinished`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import MalformedError, SignatureError, VerifyError
from veen.core.hashing import Ht
from veen.core.objects.identity import canonical_json, read_canonical_json
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError, LinkError, LockedError, StorageError
from veen.io.local import TEMPORARY, File, Fs, OsFs
from veen.storage import frame, layout
from veen.storage import journal as wal
from veen.storage.attachments import copy_records
from veen.storage.copies.unfinished import begin_copy, check_finished, finish_copy
from veen.storage.index import Index, LabelRow
from veen.storage.label_files import index_entry, map_head
from veen.storage.reader import inflate
from veen.storage.scan import read_file

_PIECE: Final = 8 * 1024 * 1024
_ATTEMPTS: Final = 5
# The last one makes a directory a hub's.
_IDENTITY: Final = (layout.KEY_MAP, layout.ROOT, layout.IDENTITY_SIG, layout.IDENTITY)
_PUBLIC: Final = (
    layout.CHECKPOINT_BINDING,
    layout.LIMITS,
    layout.ANCHORS,
    layout.FORK_ORIGIN,
    layout.FORK_ORIGIN_SIG,
)
_OUTER_NOTES: Final = (
    layout.OUTER_PUBLISHED,
    layout.OUTER_SIGNED,
)  # read in this order: never more published than signed
_MAX_CHUNK: Final = 2**40  # `inflate` needs a bound; a valid summary names the true one


class _MovedOn(Exception):
    """The hub advanced too far: the copied files do not belong together."""


@dataclass(frozen=True, slots=True)
class Head:
    """Size and root of a label."""

    label: bytes
    epoch: int
    stream_id: bytes | None
    upto_seq: int
    mmr_root: bytes

    def to_json(self) -> dict[str, Any]:
        fields = {"label": self.label.hex(), "epoch": self.epoch, "upto_seq": self.upto_seq}
        fields["mmr_root"] = self.mmr_root.hex()
        return fields if self.stream_id is None else {**fields, "stream_id": self.stream_id.hex()}


# --- clone ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _resting(fs: Fs) -> Iterator[bool]:
    """Hold the lock if it is free; yield True if no hub runs on the directory."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(fs.lock())
        except LockedError:
            yield False
        except LinkError:
            raise
        except StorageError:  # a read-only copy: nobody can be writing to it
            yield True
        else:
            yield True


def check_apart(source: Path, target: Path) -> None:
    """Raise StorageError for a copy into the copied directory or below it."""
    inside, outside = target.resolve(), source.resolve()
    if inside == outside or outside in inside.parents:
        raise StorageError(f"{target}: is inside {source}; choose a directory outside of it")


def check_empty(target: Fs) -> None:
    check_finished(target, "the target directory")
    if present := [name for name in target.list("") if name != layout.LOCK]:
        raise StorageError(f"the target directory is not empty: it contains {present[0]}")


def clone(source: Fs, target: Fs, *, with_keys: bool, progress: Callable[[str], None] | None = None) -> bool:
    """Copy a data directory into an empty one; return True if no hub ran on the source. A running hub continues."""
    if isinstance(source, OsFs) and isinstance(target, OsFs):
        check_apart(source.root, target.root)
    check_finished(source, "the source directory")
    check_empty(target)
    target.make_dir("")
    with target.lock(), _resting(source) as at_rest:
        begin_copy(target, "clone")
        for _ in range(_ATTEMPTS):
            try:
                _copy_all(source, target, with_keys, progress or (lambda _: None))
            except (_MovedOn, FileNotFoundError):
                _clear(target)
                continue
            finish_copy(target)
            return at_rest
    raise StorageError(
        "the hub wrote too fast to be copied; remove the target directory, then stop the hub for the copy or try"
        " again when it has less load"
    )


def _clear(target: Fs) -> None:
    for directory in layout.DIRECTORIES:
        for name in target.list(directory):
            target.remove(f"{directory}/{name}")
    for name in target.list(layout.OUTER):
        target.remove(f"{layout.OUTER}/{name}")
    for name in (*_PUBLIC, *_IDENTITY):
        target.remove(name)
    target.remove_database(layout.INDEX)
    target.remove_database(layout.ATTACHMENT_RECORDS)


def _copy_all(source: Fs, target: Fs, with_keys: bool, progress: Callable[[str], None]) -> None:
    for directory in layout.DIRECTORIES:
        target.make_dir(directory)
    segment = _copy_index(source, target)
    journal = _Journal(source, segment)
    try:
        for directory in (layout.LOG, layout.NODES, layout.OFFSETS):
            progress(directory)
            for name in source.list(directory):
                _copy_moving(source, target, f"{directory}/{name}", journal.follow)
        for name in _PUBLIC:
            if source.exists(name):
                _copy_file(source, target, name)
        copy_attachments(source, target)
        _copy_outer(source, target)  # before the journal: it lists nothing that the copy lacks
        _copy_origin(source, target)
        # As of before the journal: a rotation that the journal holds and the identity lacks is completed by the start.
        identity = _identity_files(source)
        progress(layout.JOURNAL)
        journal.copy(target)
    finally:
        journal.close()
    for directory in layout.DIRECTORIES:
        target.sync_dir(directory)
    target.sync_dir("")
    if with_keys:  # as of after the journal: each key that it introduces was written before
        for name in source.list(layout.KEYS):
            target.replace(f"{layout.KEYS}/{name}", read_file(source, f"{layout.KEYS}/{name}"), private=True)
    _write_identity(target, identity)


def _identity_files(source: Fs) -> dict[str, bytes]:
    """Return the identity files as of one moment: a rotation may replace them one after the other."""
    while True:
        files = {name: read_file(source, name) for name in _IDENTITY if source.exists(name)}
        if files == {name: read_file(source, name) for name in _IDENTITY if source.exists(name)}:
            return files


def _write_identity(target: Fs, files: Mapping[str, bytes]) -> None:
    for name in _IDENTITY:
        if name in files:
            target.replace(name, files[name])


def copy_identity(source: Fs, target: Fs) -> None:
    """Copy the public identity; from then on the target is a hub's directory."""
    _write_identity(target, _identity_files(source))


def copy_attachments(source: Fs, target: Fs) -> None:
    """Copy the attachments. They are not part of the log, but readers of the copy may request them."""
    for shard in source.list(layout.ATTACHMENTS):
        directory = f"{layout.ATTACHMENTS}/{shard}"
        target.make_dir(directory)
        for name in source.list(directory):
            if not name.endswith(TEMPORARY):
                _copy_file(source, target, f"{directory}/{name}")
        target.sync_dir(directory)
    copy_records(source, target)
    if source.list(layout.ATTACHMENTS):
        target.sync_dir(layout.ATTACHMENTS)


def _copy_outer(source: Fs, target: Fs) -> None:
    """Copy the outer log as of its last signed note. Notes are read before the leaves, which only grow."""
    notes = {name: read_file(source, name) for name in _OUTER_NOTES if source.exists(name)}
    if layout.OUTER_SIGNED not in notes:
        return
    target.make_dir(layout.OUTER)
    for name in (layout.OUTER_LEAVES, layout.OUTER_OFFSETS, layout.OUTER_NODES):
        _copy_file(source, target, name)
    for name, data in notes.items():
        target.replace(name, data)
    target.sync_dir(layout.OUTER)


def _copy_origin(source: Fs, target: Fs, prefix: str = "") -> None:
    """Copy the retained prefix of a fork, and its own origins in turn. They are read-only."""
    origin = f"{prefix}{layout.ORIGIN}"
    if not source.exists(origin):
        return
    for directory in (layout.LOG, layout.JOURNAL):
        target.make_dir(f"{origin}/{directory}")
        for name in source.list(f"{origin}/{directory}"):
            _copy_file(source, target, f"{origin}/{directory}/{name}")
        target.sync_dir(f"{origin}/{directory}")
    for name in (*_PUBLIC, *_IDENTITY):
        if source.exists(f"{origin}/{name}"):
            _copy_file(source, target, f"{origin}/{name}")
    target.sync_dir(origin)
    _copy_origin(source, target, f"{origin}/")


def _copy_index(source: Fs, target: Fs) -> int | None:
    """Copy the index as of one commit; return its journal segment, None before the first retirement."""
    if not source.exists(layout.INDEX):
        return None
    with (
        contextlib.closing(source.peek(layout.INDEX)) as index,
        contextlib.closing(target.database(layout.INDEX)) as copy,
    ):
        index.backup(copy)
        target.on_commit(layout.INDEX, copy)
        row = copy.execute("SELECT value FROM meta WHERE key = 'segment'").fetchone()
    return None if row is None else int(row[0])


class _Journal:
    """The journal segments from one on, held open so that a retirement cannot remove them."""

    def __init__(self, fs: Fs, first: int | None) -> None:
        self._fs = fs
        self._open: dict[int, File] = {}
        self._first = first if first is not None else 1
        self.follow()
        if first is not None and first not in self._open:
            self.close()
            raise _MovedOn

    def follow(self) -> None:
        """Open segments that began meanwhile. Called often: a segment exists for seconds at least."""
        for number in wal.segments(self._fs):
            if number >= self._first and number not in self._open:
                try:
                    self._open[number] = self._fs.open(layout.journal_segment(number))
                except FileNotFoundError as exc:
                    raise _MovedOn from exc

    def copy(self, target: Fs) -> None:
        self.follow()
        numbers = sorted(self._open)
        if numbers and numbers != list(range(self._first, numbers[-1] + 1)):
            raise _MovedOn
        for number in numbers:
            _fill(target, layout.journal_segment(number), self._open[number], lambda: None)

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def _copy_moving(source: Fs, target: Fs, path: str, follow: Callable[[], None]) -> None:
    """Copy a file that a running hub may seal, hence rename, right now."""
    try:
        _copy_file(source, target, path, follow)
        return
    except FileNotFoundError:
        name = layout.log_file(path.removeprefix(f"{layout.LOG}/"))
        if name is None or name.kind != "active":
            raise
    for other in source.list(layout.LOG):
        sealed = layout.log_file(other)
        if sealed and sealed.kind == "chunk" and (sealed.label, sealed.start_seq) == (name.label, name.start_seq):
            # Under its old name: the index says it is still growing, and the journal will seal it again.
            target.replace(path, inflate(read_file(source, f"{layout.LOG}/{other}"), _MAX_CHUNK, other))
            return
    raise _MovedOn


def _copy_file(source: Fs, target: Fs, path: str, follow: Callable[[], None] = lambda: None) -> None:
    file = source.open(path)
    try:
        _fill(target, path, file, follow)
    finally:
        file.close()


def _fill(target: Fs, path: str, file: File, follow: Callable[[], None]) -> None:
    copy = target.open(path, create=True)
    try:
        size, offset = file.size(), 0  # what is appended from now on belongs to the journal's part
        while offset < size:
            data = file.read_at(offset, min(_PIECE, size - offset))
            if not data:
                raise _MovedOn
            copy.write_at(offset, data)
            offset += len(data)
            follow()
        copy.sync()
    finally:
        copy.close()


# --- fork ----------------------------------------------------------------------------------------------


def heads(fs: Fs, cuts: Mapping[bytes, int] | None = None) -> list[Head]:
    """Return the labels of a directory at rest, each up to its cut or its end; omit those cut to nothing."""
    index = Index(fs, read_only=True)
    try:
        rows = sorted(index.labels(), key=lambda row: row.label)
    finally:
        index.close()
    cuts = dict(cuts or {})
    heads = []
    for row in rows:
        upto = cuts.pop(row.label, row.size)
        if upto > row.size:
            raise StorageError(f"label {row.label.hex()} has {row.size} entries, {upto} cannot be kept")
        if upto:
            heads.append(Head(row.label, row.epoch, row.stream_id, upto, _root_at(fs, row, upto)))
    if cuts:
        raise StorageError(f"label {next(iter(cuts)).hex()} does not exist in this directory")
    return heads


def _root_at(fs: Fs, row: LabelRow, upto: int) -> bytes:
    """Return the root after an entry, from its receipt."""
    for name in fs.list(layout.LOG):
        part = layout.log_file(name)
        if part is None or part.label != row.label or part.kind not in ("chunk", "active", "receipts"):
            continue
        end = row.size if part.kind == "active" else part.end_seq
        if not part.start_seq <= upto <= end:
            continue
        path = f"{layout.LOG}/{name}"
        if part.kind == "receipts":
            receipts = list(cbor.sequence(read_file(fs, path), what=path))
            return Receipt.from_bytes(receipts[upto - part.start_seq]).mmr_root
        for entry in _frames(fs, path):
            if entry.stream_seq == upto:
                return Receipt.from_bytes(entry.receipt).mmr_root
    raise CorruptError(layout.LOG, 0, f"entry {upto} of label {row.label.hex()} is missing")


def _frames(fs: Fs, path: str) -> Iterator[frame.Frame]:
    for _, entry in frame.frames(inflate(read_file(fs, path), _MAX_CHUNK, path), path=path):
        yield entry


def copy_prefix(source: Fs, target: Fs, heads: list[Head]) -> None:
    """Copy the entries 1 … upto_seq of each kept label and the control journal, but not the identity.

    The source must be at rest. The kept part of a cut chunk becomes the active chunk of the copy; node
    store, locations and index are left to `rebuild`.
    """
    for directory in (layout.LOG, layout.JOURNAL):
        target.make_dir(directory)
    upto = {head.label: head.upto_seq for head in heads}
    checkpoints: dict[bytes, list[bytes]] = {}
    for name in source.list(layout.LOG):
        part, path = layout.log_file(name), f"{layout.LOG}/{name}"
        if part is None or path == layout.CONTROL:
            continue
        cut = upto.get(part.label, 0)
        if part.kind == "active" or (part.kind == "chunk" and part.start_seq <= cut < part.end_seq):
            if kept_bytes := b"".join(entry.to_bytes() for entry in _frames(source, path) if entry.stream_seq <= cut):
                target.replace(layout.active(part.label, part.start_seq), kept_bytes)
        elif part.kind == "checkpoint-index":
            checkpoints.setdefault(part.label, [])
        elif part.end_seq <= cut:
            _copy_file(source, target, path)
            if part.kind == "summary":
                label, start, end, root, *_ = cbor.decode(read_file(source, path))
                checkpoints.setdefault(part.label, []).append(index_entry(label, start, end, root))
    for label, entries in checkpoints.items():
        if entries:  # names sort by start_seq, so the entries are in order
            target.replace(layout.checkpoint_index(label), map_head(len(entries)) + b"".join(entries))
    if source.exists(layout.CONTROL):
        _copy_file(source, target, layout.CONTROL)
    for public in _PUBLIC:
        if source.exists(public):
            _copy_file(source, target, public)
    _copy_origin(source, target)
    wal.Journal.create(target).close()  # empty: the source was at rest, and nothing may seem to be missing
    target.sync_dir(layout.LOG)
    target.sync_dir("")


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """fork-origin.json: the hub that this one continues, and the length of the kept prefix (D-77)."""

    hub_id: bytes
    forked_at: int
    same_identity: bool
    heads: tuple[Head, ...]

    def to_bytes(self) -> bytes:
        return canonical_json(
            {
                "ver": 1,
                "origin_hub_id": self.hub_id.hex(),
                "forked_at": self.forked_at,
                "same_identity": self.same_identity,
                "labels": [head.to_json() for head in self.heads],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "ForkOrigin":
        value = read_canonical_json(data, layout.FORK_ORIGIN)
        try:
            if value["ver"] != 1 or set(value) != {"ver", "origin_hub_id", "forked_at", "same_identity", "labels"}:
                raise ValueError
            origin = cls(
                hub_id=bytes.fromhex(value["origin_hub_id"]),
                forked_at=int(value["forked_at"]),
                same_identity=bool(value["same_identity"]),
                heads=tuple(
                    Head(
                        bytes.fromhex(head["label"]),
                        int(head["epoch"]),
                        bytes.fromhex(head["stream_id"]) if "stream_id" in head else None,
                        int(head["upto_seq"]),
                        bytes.fromhex(head["mmr_root"]),
                    )
                    for head in value["labels"]
                ),
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise MalformedError("not the description of a fork", layout.FORK_ORIGIN) from exc
        if origin.to_bytes() != data:
            raise MalformedError("not the canonical form of this description", layout.FORK_ORIGIN)
        return origin

    def signing_digest(self) -> bytes:
        return Ht("veen/fork-origin", self.to_bytes())


def origin_of(fs: OsFs) -> OsFs:
    """Return the section of a fork with the prefix it began with: a data directory of its own, without keys."""
    return fs.section(layout.ORIGIN)


def write_fork_origin(fs: Fs, origin: ForkOrigin, key: ed25519.SigningKey) -> None:
    fs.replace(layout.FORK_ORIGIN_SIG, key.sign(origin.signing_digest()))
    fs.replace(layout.FORK_ORIGIN, origin.to_bytes())


def read_fork_origin(fs: Fs, hub_pks: tuple[bytes, ...]) -> ForkOrigin | None:
    """Return the origin of a fork, None for other directories; raise SignatureError unless the hub signed it."""
    if not fs.exists(layout.FORK_ORIGIN):
        return None
    origin = ForkOrigin.from_bytes(read_file(fs, layout.FORK_ORIGIN))
    signature = read_file(fs, layout.FORK_ORIGIN_SIG) if fs.exists(layout.FORK_ORIGIN_SIG) else b""
    if not any(ed25519.verify(hub_pk, origin.signing_digest(), signature) for hub_pk in hub_pks):
        raise SignatureError(f"{layout.FORK_ORIGIN}: the signature is by no key of this hub")
    return origin


def check_heads(origin: ForkOrigin, sizes_and_roots: Mapping[bytes, tuple[int, bytes | None]], *, exact: bool) -> None:
    """Raise VerifyError unless the given sizes and roots of labels match the fork.

    `exact` is for the origin section; a hub that forked under its own identity has continued from there.
    """
    for head in origin.heads:
        size, root = sizes_and_roots.get(head.label, (0, None))
        if size < head.upto_seq or (exact and (size, root) != (head.upto_seq, head.mmr_root)):
            raise VerifyError(f"label {head.label.hex()}: not what {layout.FORK_ORIGIN} says was kept of it")
    labels = {head.label for head in origin.heads}
    if exact and (more := [label for label, (size, _) in sizes_and_roots.items() if size and label not in labels]):
        raise VerifyError(f"label {more[0].hex()}: {layout.FORK_ORIGIN} does not name it")
