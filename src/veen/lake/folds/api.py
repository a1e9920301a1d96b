"""Folds over logs for programs and notebooks.

    from veen.lake import folds
    result = folds.run("./hub", "kv", keys="reader.keys", engine="python")
    result.state_hash, result.view
    result.write("./state")                                                    # later: folds.run(…, since="./state")

`engine="spark"` gives the same bytes, on all cores or a cluster.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from veen.client.identity.keyring import Keyring
from veen.core.labels import stream_id_of
from veen.core.tree.mmr import Span
from veen.io.places import open_fs
from veen.lake.folds import states
from veen.lake.folds.coverage import FoldCoverage, UnopenedCount, all_unopened, check_columns
from veen.lake.folds.errors import NoSuchFold, RootDiffers, RowsMissing
from veen.lake.folds.inputs import LogInput
from veen.lake.folds.on_spark import fold_on_spark, fold_typed
from veen.lake.folds.owners import NO_EMITTERS, by_owner, owner_emitters, streams_without_owner
from veen.lake.folds.planning import PlanName, has_native
from veen.lake.folds.states import EarlierState, FoldResult
from veen.lake.folds.typed import are_typed
from veen.lake.log.decryption import reader_marks
from veen.lake.log.entries import Level
from veen.lake.log.errors import OptionError
from veen.lake.log.events import Mark, Prefix, make_prefix, read_events
from veen.lake.log.keys import KeyFile, keys_for_tasks
from veen.lake.log.prefix import Shortened, heads_at, marks_at, receipt_at
from veen.lake.spark.session import using_session
from veen.overlays.framework.fold import AnyFold, Joined
from veen.overlays.framework.ordered import LateEvent
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.framework.stream import fold_events
from veen.storage.pinned import LogView, pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Engine = Literal["spark", "python"]
ENGINES: Final[tuple[Engine, ...]] = ("spark", "python")
LEVEL: Final[Level] = "hash"  # how far folds check entries as they read them
Keys = KeyFile | Keyring | str | Path
Since = EarlierState | FoldResult | Snapshot | str | Path
Source = Any  # a path or URL, a Prefix, a DataFrame of SILVER or of `typed_rows`, or LogEntry in any order


def fold_named(name: str) -> AnyFold:
    """Return the fold of an installed overlay by name; of an overlay with several folds all of them as one.

    The name of a single fold selects it alone.
    """
    registry = BUILTIN.with_installed()
    chosen = registry.make_fold(name)
    if chosen is None:
        why = registry.why_not(name)
        raise NoSuchFold(f"there is no fold {name!r}" if why is None else f"the overlay {name!r} cannot be used: {why}")
    return chosen


def run(
    source: Source,
    fold: str | AnyFold,
    *,
    keys: Keys | None = None,
    engine: Engine = "spark",
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    upto: Mapping[bytes, int] | int | None = None,
    plan: PlanName = "auto",
    streams: Iterable[str | bytes] | None = None,
    since: Since | None = None,
    cuts: Iterable[Cut] | None = None,
    as_of: int | None = None,
) -> FoldResult:
    """Fold a log and return the state. Equal bytes for every engine, plan and number of parts.

    `source` is a data directory or bucket, of which the streams that `keys` can open are folded, or only `streams`; or
    rows of SILVER, with the `cuts` that bind them to a log. `upto` ends it earlier: at a position of each label, or at
    a time of the hub. `since` is an earlier state: only later entries are read, if the log still has its roots and if
    the same keys would open the same entries of it. Otherwise the whole log is folded, and `refused` says why. Expiry
    is evaluated at `as_of`. Default: the time of the last entry (D-80).

    Of a fold of policy that was made without emitters, the records of the owner of each stream count (D-186): her
    client keys are those that she announced in the stream. `any_emitter=True` of the fold counts everybody's.
    """
    if engine not in ENGINES:
        raise OptionError(f"there is no engine {engine!r}; engines: {', '.join(ENGINES)}")
    chosen = fold_named(fold) if isinstance(fold, str) else fold
    if unowned := streams_without_owner(chosen):
        if keys is None or not isinstance(source, (str, Path, Prefix)):
            raise OptionError(NO_EMITTERS)
        chosen = by_owner(chosen, owner_emitters(source, load_keyring(keys), unowned))
    if not isinstance(source, (str, Path, Prefix)):
        if since is not None or upto is not None or streams is not None:
            raise OptionError("since, upto and streams require the path of a log, not rows")
        return _fold_rows(source, chosen, plan, parts, cuts, as_of)
    if keys is None:
        raise OptionError("the entries of a log are sealed: pass keys=, the file of read keys")
    key_source = _key_source(keys)
    return _Log(chosen, key_source, engine, spark, parts, plan).run(source, upto, streams, since, as_of)


def _key_source(keys: Keys) -> KeyFile | Keyring:
    return KeyFile(str(keys)) if isinstance(keys, (str, Path)) else keys


def load_keyring(keys: Keys) -> Keyring:
    """Return the keys themselves."""
    source = _key_source(keys)
    return source.load() if isinstance(source, KeyFile) else source


# --- rows ----------------------------------------------------------------------------------------------------------


def _fold_rows(
    source: Any,  # a DataFrame, or LogEntry
    fold: AnyFold,
    plan: PlanName,
    parts: int | None,
    cuts: Iterable[Cut] | None,
    as_of: int | None,
) -> FoldResult:
    coverage = FoldCoverage()
    if hasattr(source, "mapInArrow"):
        if has_native(fold) and are_typed(fold, source.columns):
            (summary, coverage), used = fold_typed(source, fold), "native"  # type: ignore[arg-type]  # has_native
        else:
            check_columns(source.columns)
            summary, coverage, used = fold_on_spark(source, fold, plan, parts=parts)
    else:
        events = sorted(coverage.events(source), key=lambda event: event.order)
        summary, used = fold_events(fold, events), "python"
    bound = tuple(sorted(cuts or (), key=lambda cut: cut.label))
    if cuts is not None:
        _check_rows(coverage, bound)
    return _make_result(fold, summary, _Start(), coverage, bound, as_of, used, ())


def _check_rows(coverage: FoldCoverage, cuts: tuple[Cut, ...]) -> None:
    promised = {cut.label: cut.upto_seq for cut in cuts if cut.upto_seq}
    for label in sorted(promised.keys() | coverage.counts.keys()):
        have, want = coverage.counts.get(label, 0), promised.get(label, 0)
        if (have, coverage.heads.get(label, 0)) != (want, want):
            raise RowsMissing(f"label {label.hex()}: {have} rows, but its cut is at {want}")


# --- a log ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """State from which a fold resumes."""

    base: Any = None
    cuts: Mapping[bytes, Cut] = field(default_factory=dict)
    marks: Mapping[bytes, Mark] = field(default_factory=dict)
    trees: Mapping[bytes, Span] = field(default_factory=dict)
    unopened: tuple[UnopenedCount, ...] = ()


@dataclass(frozen=True, slots=True)
class _Log:
    fold: AnyFold
    keys: KeyFile | Keyring
    engine: Engine
    spark: "SparkSession | None"
    parts: int | None
    plan: PlanName

    def run(
        self,
        source: str | Path | Prefix,
        upto: Mapping[bytes, int] | int | None,
        streams: Iterable[str | bytes] | None,
        since: Since | None,
        as_of: int | None,
    ) -> FoldResult:
        if isinstance(source, Prefix):
            if upto is not None or streams is not None or since is not None:
                raise OptionError("upto, streams and since require a path, not a Prefix")
            if any(label_range.before.upto_seq for label_range in source.labels):
                raise OptionError("a prefix that begins in the middle of a label has no state: give since= and a path")
            return self._fold_prefix(source, _Start(), as_of, tuple(sorted(_ids_of(source))))
        uri, ids = str(source), self._ids(streams)
        pinned = pin(uri)  # once: all that follows is about this moment
        heads = upto if isinstance(upto, Mapping) else None
        if heads is not None and (gone := sorted(heads.keys() - pinned.labels.keys())):
            raise Shortened(f"label {gone[0].hex()} is not in the directory")
        if isinstance(upto, int):
            now = make_prefix(uri, streams=ids, pinned=pinned)
            heads, as_of = heads_at(now, upto), upto if as_of is None else as_of
        whole = make_prefix(uri, streams=ids, upto=heads, pinned=pinned)
        refused = None
        if since is not None:
            try:
                start = self._load_start(uri, since, whole, pinned)
                prefix = make_prefix(uri, streams=ids, upto=heads, since=start.marks, pinned=pinned)
                return self._fold_prefix(prefix, start, as_of, ids, resumed=True)
            except (SnapshotRefused, LateEvent) as exc:
                refused = str(exc)  # an honest log that grew in its past, or another one: its whole tells
        return self._fold_prefix(whole, _Start(), as_of, ids, refused=refused)

    def _ids(self, streams: Iterable[str | bytes] | None) -> tuple[bytes, ...]:
        if streams is None:
            keyring = load_keyring(self.keys)
            return tuple(sorted({keys.stream_id for keys in keyring.entries if keys.can_read}))
        return tuple(sorted({stream_id_of(stream) if isinstance(stream, str) else stream for stream in streams}))

    def _load_start(self, uri: str, since: Since, whole: Prefix, pinned: LogView) -> _Start:
        """Return the state to resume from. Raise SnapshotRefused if the whole log could give another result."""
        earlier = _to_earlier(since)
        snapshot, heads, fs = earlier.snapshot, whole.heads, open_fs(uri)
        ends = {cut.label: cut.upto_seq for cut in snapshot.cuts}
        if any(heads.get(label, 0) < seq for label, seq in ends.items()):
            raise SnapshotRefused("the snapshot covers entries or streams outside of the requested range")
        _check_readers(earlier, whole, reader_marks(load_keyring(self.keys), _ids_of(whole), LEVEL))
        _check_unopened(earlier, whole)
        receipts = {label: receipt_at(fs, pinned.labels[label].chunks, seq) for label, seq in ends.items()}
        base = snapshot.restore(self.fold, lambda label, _: receipt.mmr_root if (receipt := receipts[label]) else None)
        return _Start(
            base=base,
            cuts={cut.label: cut for cut in snapshot.cuts},
            marks=earlier.marks if earlier.marks.keys() >= ends.keys() else marks_at(uri, ends),
            trees=earlier.trees,
            unopened=earlier.unopened,
        )

    def _fold_prefix(
        self,
        prefix: Prefix,
        start: _Start,
        as_of: int | None,
        ids: tuple[bytes, ...],
        *,
        resumed: bool = False,
        refused: str | None = None,
    ) -> FoldResult:
        if self.engine == "python":
            coverage = FoldCoverage()
            summary, used = self._in_one_process(prefix, start.base, coverage), "python"
        else:
            summary, coverage, used = self._on_spark(prefix, start.base)
        new = {cut.label: cut for cut in prefix.cuts}
        bound = tuple(cut for _, cut in sorted({**start.cuts, **new}.items()))
        return _make_result(
            self.fold,
            summary,
            start,
            coverage,
            bound,
            as_of,
            used,
            ids,
            readers=reader_marks(load_keyring(self.keys), ids, LEVEL),
            rootless=prefix.rootless,
            resumed=resumed,
            refused=refused,
        )

    def _in_one_process(self, prefix: Prefix, base: Any, coverage: FoldCoverage) -> Any:
        if not isinstance(self.fold, Joined):
            return fold_events(self.fold, coverage.events(read_events(prefix, self.keys)), base)
        summaries = []
        for at, member in enumerate(self.fold.folds):  # each reads for itself: no log has to fit into memory
            events = (coverage if at == 0 else FoldCoverage()).events(read_events(prefix, self.keys))
            summaries.append(fold_events(member, events, None if base is None else base[at]))
        return tuple(summaries)

    def _on_spark(self, prefix: Prefix, base: Any) -> tuple[Any, FoldCoverage, str]:
        if not prefix.entries:
            return self.fold.identity() if base is None else base, FoldCoverage(), "nothing to read"
        with ExitStack() as closing:
            keys = closing.enter_context(keys_for_tasks(self.keys))
            own = using_session(self.spark, "veen fold", log_bytes=prefix.size, register=False)
            session = closing.enter_context(own)
            entries = LogInput.of(session, prefix, keys, self.parts)
            return fold_on_spark(entries, self.fold, self.plan, base=base, parts=self.parts, entries=prefix.entries)


def _to_earlier(since: Since) -> EarlierState:
    if isinstance(since, (str, Path)):
        return states.load(str(since))
    if isinstance(since, FoldResult):
        return EarlierState.of(since)
    return EarlierState(snapshot=since, readers=None, unopened=()) if isinstance(since, Snapshot) else since


def _check_readers(earlier: EarlierState, whole: Prefix, readers: Mapping[bytes, str]) -> None:
    """Raise SnapshotRefused unless the keys that opened the entries of a state are the current ones."""
    if not earlier.snapshot.cuts:
        return
    if earlier.readers is None:
        raise SnapshotRefused("the earlier state does not say which keys it was read with")
    labels = {cut.label for cut in earlier.snapshot.cuts}
    for label_range in whole.labels:
        stream_id = label_range.stream.stream_id or b""
        if label_range.label in labels and earlier.readers.get(stream_id) != readers.get(stream_id):
            raise SnapshotRefused(f"the earlier state read stream {stream_id.hex()} with other keys")


def _check_unopened(earlier: EarlierState, whole: Prefix) -> None:
    """Raise SnapshotRefused if entries that a state could not read may be readable now, or the reverse."""
    counts = {(skip.label, skip.reason): skip.count for skip in earlier.unopened}
    ends = {cut.label: cut.upto_seq for cut in earlier.snapshot.cuts}
    for label_range in whole.labels:
        label, end = label_range.label, ends.get(label_range.label, 0)
        if counts.get((label, "damaged")):
            raise SnapshotRefused(f"the earlier state could not read damaged entries of label {label.hex()}")
        for reason in ("erased", "missing"):
            now = sum(
                max(0, min(part.last, end) - part.first + 1)
                for part in label_range.slices
                if (part.is_erased if reason == "erased" else part.is_missing)
            )
            if now != counts.get((label, reason), 0):
                raise SnapshotRefused(f"other entries of label {label.hex()} are {reason} than the earlier state found")


def _ids_of(prefix: Prefix) -> set[bytes]:
    return {label_range.stream.stream_id for label_range in prefix.labels if label_range.stream.stream_id is not None}


def _make_result(
    fold: AnyFold,
    summary: Any,
    start: _Start,
    coverage: FoldCoverage,
    cuts: tuple[Cut, ...],
    as_of: int | None,
    plan: str,
    streams: tuple[bytes, ...],
    *,
    readers: Mapping[bytes, str] | None = None,
    rootless: Iterable[bytes] = (),
    resumed: bool = False,
    refused: str | None = None,
) -> FoldResult:
    """Build the result. Raise RootDiffers if the folded leaves have another root than the log states."""
    trees: dict[bytes, Span] = {}
    for cut in cuts:
        tree = coverage.peaks(cut.label, cut.upto_seq, start.trees.get(cut.label))
        if tree is not None:
            if tree.root() != cut.mmr_root:
                what = f"label {cut.label.hex()}: the {cut.upto_seq} entries have root {tree.root().hex()}"
                raise RootDiffers(f"{what}, the receipt of the last says {cut.mmr_root.hex()}")
            trees[cut.label] = tree
    times = {label: mark.ts for label, mark in start.marks.items()}
    for label, ts in coverage.times.items():
        times[label] = max(ts, times.get(label, 0))
    ts = max(times.values(), default=0)
    return FoldResult(
        fold=fold,
        summary=fold.seal(summary),
        ts=ts,
        as_of=ts if as_of is None else as_of,
        cuts=cuts,
        unproven=tuple(sorted({*rootless, *(cut.label for cut in cuts if cut.label not in trees)})),
        unopened=all_unopened(start.unopened, coverage.count_unopened()),
        entries=coverage.rows,
        plan=plan,
        streams=streams,
        resumed=resumed,
        refused=refused,
        times=times,
        trees=trees,
        readers=readers or {},
    )
