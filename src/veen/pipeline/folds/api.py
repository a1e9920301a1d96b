"""Folds over logs for programs and notebooks.

    from veen.pipeline import folds
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

from veen.client.keyring import Keyring
from veen.core.labels import stream_id_of
from veen.core.mmr import Span
from veen.overlays.fold import AnyFold
from veen.overlays.joined import Joined
from veen.overlays.ordered import LateEvent
from veen.overlays.registry import BUILTIN
from veen.overlays.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.stream import fold_events
from veen.pipeline.errors import OptionError
from veen.pipeline.events import Mark, Prefix, events_frame, make_prefix, read_events
from veen.pipeline.folds import states
from veen.pipeline.folds.errors import NoSuchFold, RootDiffers, RowsMissing
from veen.pipeline.folds.moments import heads_at, marks_at, receipts_at
from veen.pipeline.folds.native import fold_typed, has_native
from veen.pipeline.folds.planning import Asked, fold_on_spark
from veen.pipeline.folds.result import FoldResult
from veen.pipeline.folds.rows import check_columns
from veen.pipeline.folds.seen import Seen
from veen.pipeline.folds.states import WrittenState
from veen.pipeline.folds.typed import typed_columns
from veen.pipeline.inventory import pin
from veen.pipeline.prefix import Shortened
from veen.pipeline.query.keys import KeyFile, keys_on_disk
from veen.pipeline.session import using_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ENGINES", "Engine", "Keys", "Since", "Source", "fold_named", "run"]

Engine = Literal["spark", "python"]
ENGINES: Final[tuple[Engine, ...]] = ("spark", "python")
Keys = KeyFile | Keyring | str | Path
Since = WrittenState | Snapshot | str | Path
Source = Any  # a path or URL, a Prefix, a DataFrame of SILVER or of `typed_rows`, or Found in any order


def fold_named(name: str) -> AnyFold:
    """The fold of an installed overlay, or all of them as one if it has several; also by the name of a single fold."""
    registry = BUILTIN.with_installed()
    found = registry.make_fold(name)
    if found is None:
        why = registry.why_not(name)
        raise NoSuchFold(f"there is no fold {name!r}" if why is None else f"the overlay {name!r} cannot be used: {why}")
    return found


def run(
    source: Source,
    fold: str | AnyFold,
    *,
    keys: Keys | None = None,
    engine: Engine = "spark",
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    upto: Mapping[bytes, int] | int | None = None,
    plan: Asked = "auto",
    streams: Iterable[str | bytes] | None = None,
    since: Since | None = None,
    cuts: Iterable[Cut] | None = None,
    as_of: int | None = None,
) -> FoldResult:
    """The state that `fold` makes of a log. Equal bytes for every engine, plan and number of parts.

    `source` is a data directory or bucket, of which the streams that `keys` can open are folded, or only `streams`; or
    rows of SILVER, with the `cuts` that bind them to a log. `upto` ends it earlier: at a position of each label, or at
    a time of the hub. `since` is an earlier state: only what came after it is read, if the log still has its roots.
    What expires is judged at `as_of`, by default at the time of the last entry (D-80).
    """
    if engine not in ENGINES:
        raise OptionError(f"there is no engine {engine!r}; known are {', '.join(ENGINES)}")
    chosen = fold_named(fold) if isinstance(fold, str) else fold
    if not isinstance(source, (str, Path, Prefix)):
        if since is not None or upto is not None or streams is not None:
            raise OptionError("rows are folded as they are: since, upto and streams are for a log")
        return _rows(source, chosen, plan, parts, cuts, as_of)
    if keys is None:
        raise OptionError("a log is sealed: keys= names the file of read keys")
    given = KeyFile(str(keys)) if isinstance(keys, (str, Path)) else keys
    return _Log(chosen, given, engine, spark, parts, plan).run(source, upto, streams, since, as_of)


# --- rows ----------------------------------------------------------------------------------------------------------


def _rows(
    source: Any,  # a DataFrame, or Found
    fold: AnyFold,
    plan: Asked,
    parts: int | None,
    cuts: Iterable[Cut] | None,
    as_of: int | None,
) -> FoldResult:
    seen = Seen()
    if hasattr(source, "mapInArrow"):
        if has_native(fold) and {column.name for column in typed_columns(fold)} <= set(source.columns):
            (summary, seen), used = fold_typed(source, fold), "native"  # type: ignore[arg-type]  # has_native
        else:
            check_columns(source.columns)
            summary, seen, used = fold_on_spark(source, fold, plan, parts=parts)
    else:
        events = sorted(seen.events(source), key=lambda event: event.order)
        summary, used = fold_events(fold, events), "python"
    bound = tuple(sorted(cuts or (), key=lambda cut: cut.label))
    if cuts is not None:
        _check_rows(seen, bound)
    return _result(fold, summary, _Start(), seen, bound, as_of, used, ())


def _check_rows(seen: Seen, cuts: tuple[Cut, ...]) -> None:
    promised = {cut.label: cut.upto_seq for cut in cuts if cut.upto_seq}
    for label in sorted(promised.keys() | seen.counts.keys()):
        have, want = seen.counts.get(label, 0), promised.get(label, 0)
        if (have, seen.heads.get(label, 0)) != (want, want):
            raise RowsMissing(f"label {label.hex()}: {have} rows, but its cut is at {want}")


# --- a log ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where a fold goes on."""

    base: Any = None
    cuts: Mapping[bytes, Cut] = field(default_factory=dict)
    marks: Mapping[bytes, Mark] = field(default_factory=dict)
    trees: Mapping[bytes, Span] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Log:
    fold: AnyFold
    keys: KeyFile | Keyring
    engine: Engine
    spark: "SparkSession | None"
    parts: int | None
    plan: Asked

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
                raise OptionError("a prefix is read as it is: upto, streams and since are for a path")
            if any(one.before.upto_seq for one in source.labels):
                raise OptionError("a prefix that begins in the middle of a label has no state: give since= and a path")
            return self._over(source, _Start(), as_of, tuple(sorted(_ids_of(source))))
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
                start = self._start(uri, since, whole.heads)
                prefix = make_prefix(uri, streams=ids, upto=heads, since=start.marks, pinned=pinned)
                return self._over(prefix, start, as_of, ids, resumed=True)
            except (SnapshotRefused, LateEvent) as exc:
                refused = str(exc)  # an honest log that grew in its past, or another one: its whole tells
        return self._over(whole, _Start(), as_of, ids, refused=refused)

    def _ids(self, streams: Iterable[str | bytes] | None) -> tuple[bytes, ...]:
        if streams is None:
            keyring = self.keys.load() if isinstance(self.keys, KeyFile) else self.keys
            return tuple(sorted({keys.stream_id for keys in keyring.entries if keys.can_read}))
        return tuple(sorted({stream_id_of(one) if isinstance(one, str) else one for one in streams}))

    def _start(self, uri: str, since: Since, heads: Mapping[bytes, int]) -> _Start:
        """SnapshotRefused if it is not of this log, or goes beyond what is asked for."""
        written = states.load(str(since)) if isinstance(since, (str, Path)) else since
        snapshot = written.snapshot if isinstance(written, WrittenState) else written
        ends = {cut.label: cut.upto_seq for cut in snapshot.cuts}
        if any(heads.get(label, 0) < seq for label, seq in ends.items()):
            raise SnapshotRefused("the earlier state has entries or streams that are not there, or not asked for")
        receipts = receipts_at(uri, ends)
        base = snapshot.restore(self.fold, lambda label, _: receipts[label].mmr_root if label in receipts else None)
        marks = written.marks if isinstance(written, WrittenState) else marks_at(uri, ends)
        trees = written.trees if isinstance(written, WrittenState) else {}
        return _Start(base=base, cuts={cut.label: cut for cut in snapshot.cuts}, marks=marks, trees=trees)

    def _over(
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
            seen = Seen()
            summary, used = self._in_one_process(prefix, start.base, seen), "python"
        else:
            summary, seen, used = self._on_spark(prefix, start.base)
        new = {cut.label: cut for cut in prefix.cuts}
        bound = tuple(cut for _, cut in sorted({**start.cuts, **new}.items()))
        return _result(
            self.fold,
            summary,
            start,
            seen,
            bound,
            as_of,
            used,
            ids,
            rootless=prefix.rootless,
            resumed=resumed,
            refused=refused,
        )

    def _in_one_process(self, prefix: Prefix, base: Any, seen: Seen) -> Any:
        if not isinstance(self.fold, Joined):
            return fold_events(self.fold, seen.events(read_events(prefix, self.keys)), base)
        found = []
        for at, one in enumerate(self.fold.folds):  # each reads for itself: no log has to fit into memory
            events = (seen if at == 0 else Seen()).events(read_events(prefix, self.keys))
            found.append(fold_events(one, events, None if base is None else base[at]))
        return tuple(found)

    def _on_spark(self, prefix: Prefix, base: Any) -> tuple[Any, Seen, str]:
        if not prefix.entries:
            return self.fold.identity() if base is None else base, Seen(), "nothing to read"
        with ExitStack() as closing:
            keys = closing.enter_context(keys_on_disk(self.keys))
            session = closing.enter_context(using_session(self.spark, "veen fold"))
            frame = events_frame(session, prefix, keys, parts=self.parts)
            return fold_on_spark(frame, self.fold, self.plan, base=base, parts=self.parts, entries=prefix.entries)


def _ids_of(prefix: Prefix) -> set[bytes]:
    return {one.place.stream_id for one in prefix.labels if one.place.stream_id is not None}


def _result(
    fold: AnyFold,
    summary: Any,
    start: _Start,
    seen: Seen,
    cuts: tuple[Cut, ...],
    as_of: int | None,
    plan: str,
    streams: tuple[bytes, ...],
    *,
    rootless: Iterable[bytes] = (),
    resumed: bool = False,
    refused: str | None = None,
) -> FoldResult:
    """RootDiffers if the leaves that were folded have another root than the log says."""
    trees: dict[bytes, Span] = {}
    for cut in cuts:
        tree = seen.peaks(cut.label, cut.upto_seq, start.trees.get(cut.label))
        if tree is not None:
            if tree.root() != cut.mmr_root:
                what = f"label {cut.label.hex()}: the {cut.upto_seq} entries have root {tree.root().hex()}"
                raise RootDiffers(f"{what}, the receipt of the last says {cut.mmr_root.hex()}")
            trees[cut.label] = tree
    times = {label: mark.ts for label, mark in start.marks.items()}
    for label, ts in seen.times.items():
        times[label] = max(ts, times.get(label, 0))
    ts = max(times.values(), default=0)
    return FoldResult(
        fold=fold,
        summary=fold.seal(summary),
        ts=ts,
        as_of=ts if as_of is None else as_of,
        cuts=cuts,
        unproven=tuple(sorted({*rootless, *(cut.label for cut in cuts if cut.label not in trees)})),
        unopened=seen.unopened(),
        entries=seen.rows,
        plan=plan,
        streams=streams,
        resumed=resumed,
        refused=refused,
        times=times,
        trees=trees,
    )
