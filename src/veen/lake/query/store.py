"""Results on disk: stored once, fetched any number of times, page by page (QRY-23, QRY-26).

    queries/QUERY_ID.json       the descriptor, canonical; created exclusively, so a query_id is used once (QRY-02)
    results/RESULT_ID/          pending as soon as it exists
        query                   the query_id
        running                 created when execution begins
        rows.ndjson, rows.idx   canonical rows, one per line, and the offset of each (u64be)
        rows.tree               the nodes of the tree over the rows (`mmr.node_position`), for proofs of pages
        evidence.ndjson         the verified entries
        coverage.json           the coverage of the result
        digest.json             the digest to be recorded, where it is recorded in a log first
        final.json              completed with its digest, or failed with the reason; created exclusively, immutable

State files are linked into place complete: a crash leaves the state before or the state after, and of two processes
that would end an execution one finds it ended. A result is removed by renaming it to .removed-RESULT_ID first, so it
exists completely or not at all.

Rows are checked against the digest before they leave the store (D-190): a page by its proof, or by the hash of all rows
if the digest is of an earlier release. The log proves the digest itself: `api.verify`.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple, Self

from veen.core import canonical
from veen.core.canonical import Json
from veen.core.tree.mmr import Mmr, node_position
from veen.io.inside import FileRefused, check_inside, read_path
from veen.lake.query.control import Progress
from veen.lake.query.descriptor import QueryDescriptor, check_id
from veen.lake.query.digest import (
    Coverage,
    EvidenceHash,
    PageProof,
    ResultDigest,
    RowsHash,
    RowsTree,
    hash_of,
    row_leaf,
)
from veen.lake.query.errors import (
    DuplicateQuery,
    InvalidDescriptor,
    NotReady,
    QueryNotFound,
    ResultDamaged,
    ResultForged,
)

State = Literal["pending", "running", "completed", "failed"]
DEFAULT_LIMIT: Final = 1000
MAX_LIMIT: Final = 10_000
_MADE: Final = ("rows.ndjson", "rows.idx", "rows.tree", "evidence.ndjson", "coverage.json")  # by an execution
_OFFSET_BYTES: Final = 8
_NODE_BYTES: Final = 32
_MAX_ID_BYTES: Final = 256
_MAX_JSON_BYTES: Final = 256 << 20  # a coverage lists the labels of a query
_MAX_LINE_BYTES: Final = 16 << 20  # a body has at most a sixteenth of that
_REMOVED: Final = ".removed-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    query_id: str
    result_id: str
    state: State
    error_code: str | None = None
    message: str | None = None
    progress: Progress | None = None  # of an execution in this process

    def to_json(self) -> dict[str, Json]:
        return {
            "query_id": self.query_id,
            "result_id": self.result_id,
            "status": self.state,
            "error_code": self.error_code,
            "message": self.message,
            "progress": None if self.progress is None else self.progress._asdict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPage:
    """Some rows of a result, in its order; the digest is always that of all rows.

    `proof` shows that the rows match the digest; None if the digest is of an earlier release or there is no row.
    """

    digest: ResultDigest
    rows: tuple[Json, ...]
    offset: int
    limit: int
    proof: PageProof | None = None

    @property
    def has_more(self) -> bool:
        return self.offset + len(self.rows) < self.digest.row_count

    def to_json(self) -> dict[str, Json]:
        page = {"offset": self.offset, "limit": self.limit, "total": self.digest.row_count, "has_more": self.has_more}
        value = {"result_digest": self.digest.to_json(), "rows": list(self.rows), "page": page}
        return value if self.proof is None else {**value, "proof": self.proof.to_json()}


class StoredResult(NamedTuple):
    """A result that has ended: the time, in seconds, and its size in bytes."""

    result_id: str
    ended_at: float
    size: int


class ResultStore:
    """A directory of queries and results."""

    def __init__(self, root: Path) -> None:
        self._queries, self._results = root / "queries", root / "results"
        self.history_path = root / "history.sqlite"  # of the service that has this store

    # --- the way of an execution -------------------------------------------------------------------------

    def submit(self, descriptor: QueryDescriptor, result_id: str) -> None:
        """Create a pending result. Raise DuplicateQuery if the query_id or the result_id was used before."""
        for directory in (self._queries, self._results):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not create_once(self._queries / f"{descriptor.query_id}.json", descriptor.to_bytes()):
            raise DuplicateQuery(f"query_id {descriptor.query_id} was used before")
        directory = self._results / check_id(result_id, "result_id")
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError as exc:
            raise DuplicateQuery(f"result_id {result_id} was used before") from exc
        create_once(directory / "query", descriptor.query_id.encode())

    def adopt(self, descriptor: QueryDescriptor, result_id: str) -> None:
        """Create a pending result unless it exists: for queries whose ids are unique by a log, also after a crash."""
        for directory in (self._queries, self._results / check_id(result_id, "result_id")):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = create_once(self._queries / f"{descriptor.query_id}.json", descriptor.to_bytes())
        if not is_new and self.descriptor(descriptor.query_id) != descriptor:
            raise DuplicateQuery(f"query_id {descriptor.query_id} is another query in this store")
        create_once(self._results / result_id / "query", descriptor.query_id.encode())

    def start(self, result_id: str) -> "RowsWriter":
        """Start a pending result."""
        directory = self._directory(result_id)
        if self._final(result_id) is not None or not create_once(directory / "running", b""):
            raise NotReady(f"result {result_id} is {self.status(result_id).state}: it cannot be started")
        return RowsWriter(directory)

    def prepare(self, result_id: str, digest: ResultDigest, coverage: Coverage) -> None:
        """Store coverage and digest durably. The result keeps running until the digest is recorded, then `complete`."""
        directory = self._directory(result_id)
        if not (directory / "running").exists():
            raise NotReady(f"result {result_id} is pending: it cannot be completed")
        # The digest comes last: it says that rows, evidence and coverage are all there.
        create_once(directory / "coverage.json", canonical.encode(coverage.value))
        create_once(directory / "digest.json", digest.to_bytes())

    def load_prepared(self, result_id: str) -> ResultDigest | None:
        """Return the digest of `prepare`; None if the execution did not get there."""
        try:
            return ResultDigest.from_bytes(_read_small(self._directory(result_id) / "digest.json", _MAX_JSON_BYTES))
        except FileNotFoundError:
            return None

    def complete(self, result_id: str, digest: ResultDigest, coverage: Coverage) -> None:
        """Complete a running result; this is final."""
        self.prepare(result_id, digest, coverage)
        self.complete_prepared(result_id)

    def complete_prepared(self, result_id: str) -> None:
        """Complete a result with the digest of `prepare`."""
        digest = self.load_prepared(result_id)
        if digest is None:
            raise NotReady(f"result {result_id} is {self.status(result_id).state}: it has no digest yet")
        self._end(result_id, {"state": "completed", "digest": digest.to_json()})

    def reset(self, result_id: str) -> None:
        """Make a result pending again, without the files of an interrupted execution.

        Only for the process that executes: another one cannot know that nobody writes these files.
        """
        directory = self._directory(result_id)
        # With a digest the execution is over: the digest may be in the log already, and a second one would differ in
        # `executed_at` under the same result_id (D-136).
        if self._final(result_id) is not None or (directory / "digest.json").exists():
            raise NotReady(f"result {result_id} is {self.status(result_id).state}: it is not executed again")
        self._remove(directory, *_MADE, "running")

    def fail(self, result_id: str, error_code: str, message: str) -> None:
        """Fail a pending or running result; this is final, and leaves neither digest nor rows (QRY-26)."""
        self._end(result_id, {"state": "failed", "error_code": error_code, "message": message})
        self.discard_failed(result_id)

    def discard_failed(self, result_id: str) -> None:
        """Remove the rows of a failed execution, if a crash left them."""
        final = self._final(result_id)
        if final is not None and final["state"] == "failed":
            self._remove(self._directory(result_id), *_MADE, "digest.json")

    def _remove(self, directory: Path, *names: str) -> None:
        for name in names:
            (directory / name).unlink(missing_ok=True)
        _sync(directory)

    def _end(self, result_id: str, final: Json) -> None:
        if not create_once(self._directory(result_id) / "final.json", canonical.encode(final)):
            raise NotReady(f"result {result_id} is {self.status(result_id).state}: that does not change any more")

    # --- removal -------------------------------------------------------------------------------------------

    def list_ended(self) -> list[StoredResult]:
        """Return the results that have ended, the oldest first. Skip files of others in the directory."""
        results = []
        for path in self._results.glob("[!.]*/final.json"):
            with contextlib.suppress(InvalidDescriptor, QueryNotFound):
                results.append(self.measure(path.parent.name))
        return sorted(results, key=lambda stored: (stored.ended_at, stored.result_id))

    def measure(self, result_id: str) -> StoredResult:
        """Return the time at which a result ended, and its size."""
        files = {path.name: path.lstat() for path in self._directory(result_id).iterdir()}
        size = sum(about.st_size for about in files.values())
        return StoredResult(result_id, files["final.json"].st_mtime, size)

    def remove(self, result_id: str) -> None:
        """Remove a result that has ended, with its query. A crash leaves all of the result, or unnamed remains."""
        status = self.status(result_id)
        if status.state not in ("completed", "failed"):
            raise NotReady(f"result {result_id} is {status.state}: only completed or failed results can be removed")
        # Renamed before anything in it is removed: readers find the whole result or none. The query goes last but one,
        # so that a crash leaves no result whose descriptor is missing.
        remains = self._results / f"{_REMOVED}{result_id}"
        self._directory(result_id).rename(remains)
        _sync(self._results)
        (self._queries / f"{check_id(status.query_id, 'query_id')}.json").unlink(missing_ok=True)
        shutil.rmtree(remains)

    def remove_remains(self) -> None:
        """Finish removals that a crash interrupted."""
        for path in self._results.glob(f"{_REMOVED}*"):
            shutil.rmtree(path)

    # --- what there is -------------------------------------------------------------------------------------

    def status(self, result_id: str) -> Status:
        directory = self._directory(result_id)
        query_id = _read_small(directory / "query", _MAX_ID_BYTES).decode("ascii", "replace")
        final = self._final(result_id)
        if final is None:
            state: State = "running" if (directory / "running").exists() else "pending"
            return Status(query_id=query_id, result_id=result_id, state=state)
        return Status(
            query_id=query_id,
            result_id=result_id,
            state=final["state"],
            error_code=final.get("error_code"),
            message=final.get("message"),
        )

    def result_ids(self) -> list[str]:
        """Return the ids of all results, ended or not."""
        return sorted(path.parent.name for path in self._results.glob("[!.]*/query"))

    def has_result(self, result_id: str) -> bool:
        return (self._results / check_id(result_id, "result_id") / "query").exists()

    def descriptor(self, query_id: str) -> QueryDescriptor:
        path = self._queries / f"{check_id(query_id, 'query_id')}.json"
        try:
            return QueryDescriptor.from_bytes(_read_small(path, _MAX_JSON_BYTES))
        except FileNotFoundError as exc:
            raise QueryNotFound(f"there is no query {query_id}") from exc

    def digest(self, result_id: str) -> ResultDigest:
        """Return the digest. Raise NotReady unless the result is completed."""
        final = self._final(result_id)
        if final is None or final["state"] != "completed":
            status = self.status(result_id)
            why = f": {status.message}" if status.message else ""
            raise NotReady(f"result {result_id} is {status.state}{why}")
        digest = ResultDigest.from_bytes(canonical.encode(final["digest"]))
        if digest.result_id != result_id:
            raise ResultForged(f"result {result_id}: the stored digest is of result {digest.result_id}")
        return digest

    def coverage(self, result_id: str) -> Json:
        """Return the coverage. Raise ResultForged unless it matches the digest."""
        digest = self.digest(result_id)
        coverage = canonical.parse(_read_small(self._directory(result_id) / "coverage.json", _MAX_JSON_BYTES))
        if hash_of(coverage) != digest.coverage_hash:
            raise ResultForged(f"result {result_id}: the stored coverage is not that of the digest")
        return coverage

    def page(self, result_id: str, offset: int = 0, limit: int = DEFAULT_LIMIT) -> ResultPage:
        """Return rows offset … offset + limit - 1. Raise ResultForged unless they match the digest.

        No other rows are read, unless the digest is of an earlier release: then all of them.
        """
        if offset < 0 or not 1 <= limit <= MAX_LIMIT:
            raise InvalidDescriptor("page", f"offset is 0 or more, limit 1 to {MAX_LIMIT}")
        digest = self.digest(result_id)
        if digest.rows_root is None:
            lines, proof = self._page_by_hash(result_id, digest, offset, limit), None
        else:
            lines, proof = self._page_by_proof(result_id, digest, min(offset, digest.row_count), limit)
        rows = tuple(canonical.parse(line) for line in lines)
        return ResultPage(digest=digest, rows=rows, offset=offset, limit=limit, proof=proof)

    def _page_by_proof(
        self, result_id: str, digest: ResultDigest, offset: int, limit: int
    ) -> tuple[list[bytes], PageProof]:
        directory, end = self._directory(result_id), min(offset + limit, digest.row_count)
        lines: list[bytes] = []
        try:
            with _open_file(directory / "rows.idx") as index, _open_file(directory / "rows.ndjson") as data:
                index.seek(offset * _OFFSET_BYTES)
                data.seek(min(int.from_bytes(index.read(_OFFSET_BYTES), "big"), os.fstat(data.fileno()).st_size))
                lines += (line for line, _ in zip(_read_lines(data), range(end - offset), strict=False))
            with _open_file(directory / "rows.tree") as tree:

                def node_at(height: int, number: int) -> bytes:
                    tree.seek(node_position(height, number) * _NODE_BYTES)
                    return tree.read(_NODE_BYTES)

                proof = PageProof.of(node_at, offset, end, digest.row_count)
        except FileNotFoundError as exc:
            raise ResultForged(f"result {result_id}: rows {offset} to {end} are not all in the store") from exc
        if len(lines) != end - offset:
            raise ResultForged(
                f"result {result_id}: {len(lines)} of the {end - offset} rows from {offset} on are there"
            )
        proof.check(digest, offset, lines)
        return lines, proof

    def _page_by_hash(self, result_id: str, digest: ResultDigest, offset: int, limit: int) -> list[bytes]:
        return [
            line for at, line in enumerate(self._check_rows(result_id, digest)) if offset <= at < offset + limit
        ]  # all of them are read before one is returned

    def _check_rows(self, result_id: str, digest: ResultDigest) -> Iterator[bytes]:
        """Yield all rows. Raise ResultForged, at the end at the latest, unless they have the hash of the digest."""
        rows_hash = RowsHash()
        for line in self._lines(result_id, "rows.ndjson"):
            rows_hash.add(line)
            if rows_hash.count > digest.row_count:
                break
            yield line
        if (rows_hash.count, rows_hash.hexdigest()) != (digest.row_count, digest.rows_hash):
            raise ResultForged(f"result {result_id}: the stored rows are not those of the digest")

    def rows(self, result_id: str) -> Iterator[bytes]:
        """Yield all rows in canonical JSON, each checked against the digest first."""
        return self._rows(result_id, self.digest(result_id))

    def _rows(self, result_id: str, digest: ResultDigest) -> Iterator[bytes]:
        if digest.rows_root is None:
            for _ in self._check_rows(result_id, digest):  # first all of them, then again as they are given
                pass
            yield from self._check_rows(result_id, digest)
            return
        for offset in range(0, digest.row_count, DEFAULT_LIMIT):
            yield from self._page_by_proof(result_id, digest, offset, DEFAULT_LIMIT)[0]

    def evidence(self, result_id: str) -> Iterator[bytes]:
        """Yield the entries of the evidence summary in canonical JSON; check all of them first."""
        digest = self.digest(result_id)
        for _ in self._check_evidence(result_id, digest):
            pass
        return self._check_evidence(result_id, digest)

    def _check_evidence(self, result_id: str, digest: ResultDigest) -> Iterator[bytes]:
        evidence_hash = EvidenceHash(self.descriptor(digest.query_id), result_id)
        for entry in self._lines(result_id, "evidence.ndjson"):
            evidence_hash.add(entry)
            yield entry
        if evidence_hash.hexdigest() != digest.evidence_hash:
            raise ResultForged(f"result {result_id}: the stored evidence is not that of the digest")

    def check(self, result_id: str) -> None:
        """Read all of a result. Raise ResultForged unless rows, evidence and coverage match its digest."""
        digest = self.digest(result_id)
        self.coverage(result_id)
        tree = RowsTree()
        for line in self._check_rows(result_id, digest):
            tree.add(line)
        if digest.rows_root not in (None, tree.root()):
            raise ResultForged(f"result {result_id}: rows_hash and rows_root of the digest are of different rows")
        for _ in self._check_evidence(result_id, digest):
            pass

    def _lines(self, result_id: str, name: str) -> Iterator[bytes]:
        with _open_file(self._directory(result_id) / name) as file:
            yield from _read_lines(file)

    def _directory(self, result_id: str) -> Path:
        directory = self._results / check_id(result_id, "result_id")
        if not (directory / "query").exists():
            raise QueryNotFound(f"there is no result {result_id}")
        return directory

    def _final(self, result_id: str) -> Json:
        try:
            return canonical.parse(_read_small(self._directory(result_id) / "final.json", _MAX_JSON_BYTES))
        except FileNotFoundError:
            return None


class RowsWriter:
    """The files of a result in progress; a `ResultSink`. Durable when the context ends without an exception."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows, self._index, self._tree, self._evidence = (
            _create_private(directory / name) for name in ("rows.ndjson", "rows.idx", "rows.tree", "evidence.ndjson")
        )
        self._at, self._mmr = 0, Mmr()

    def row(self, row: bytes) -> None:
        self._index.write(self._at.to_bytes(_OFFSET_BYTES, "big"))
        self._rows.write(row + b"\n")
        self._tree.writelines(self._mmr.append(row_leaf(row)))
        self._at += len(row) + 1

    def evidence(self, entry: bytes) -> None:
        self._evidence.write(entry + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in (self._rows, self._index, self._tree, self._evidence):
            if kind is None:
                file.flush()
                os.fsync(file.fileno())
            file.close()
        if kind is None:
            _sync(self._directory)


def _read_small(path: Path, at_most: int) -> bytes:
    """Read a small file of the store. Raise ResultDamaged if it is a link, a device, or too large."""
    try:
        check_inside(path.parent, path.name)
        return read_path(path, at_most)
    except FileRefused as exc:
        raise ResultDamaged(str(exc)) from exc


def _open_file(path: Path) -> IO[bytes]:
    """Open a file of the store that is read piece by piece."""
    try:
        return check_inside(path.parent, path.name).open("rb")
    except FileRefused as exc:
        raise ResultDamaged(str(exc)) from exc


def _read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines without their ends. Raise ResultDamaged if one is longer than a row can be."""
    while line := file.readline(_MAX_LINE_BYTES + 1):
        if len(line) > _MAX_LINE_BYTES:
            raise ResultDamaged(f"{file.name}: a line has more than {_MAX_LINE_BYTES} bytes")
        yield line.removesuffix(b"\n")


def _create_private(path: Path) -> IO[bytes]:
    """Create a new file. Never write to an existing one, such as a link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def create_once(path: Path, data: bytes) -> bool:
    """Create a file with all of `data`, durably; return False if it exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with _create_private(temporary) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # A link fails if the name exists; a rename would replace what another process has put there (QRY-02, QRY-26).
    # The file is whole and on disk before it has its name, so a crash never leaves half a state.
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    _sync(path.parent)
    return True


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
