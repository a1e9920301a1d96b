"""Repair of written states that an earlier release may have resumed with other keys.

Earlier releases resumed from a state whatever keys had read it: entries sealed to the first reader remained left out
for the second one. Such a state does not name its keys. `repair` folds its log from the first entry on, and replaces
the state if the result differs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from veen.lake.folds import states
from veen.lake.folds.api import LEVEL, Engine, Keys, fold_named, load_keyring, run
from veen.lake.folds.readers import reader_marks
from veen.lake.log.prefix import make_prefix
from veen.storage.pinned import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedState:
    """Result of repairing one written state."""

    path: str
    fold: str
    why: str | None  # why it was folded again; None: it says that these keys read it, and was left alone
    before: bytes  # state_hash
    after: bytes
    is_written: bool

    @property
    def is_changed(self) -> bool:
        """True if the state was another one than its log and these keys give."""
        return self.before != self.after


def repair(
    path: str,
    data_dir: str,
    *,
    keys: Keys,
    engine: Engine = "python",
    spark: "SparkSession | None" = None,
    dry_run: bool = False,
) -> RepairedState:
    """Fold the prefix of a written state again if other keys may have read it, and write the result.

    Raises what `load` and `run` raise: a state that is damaged, or a log that does not have its entries any more.
    """
    written = states.load(path)
    marks = reader_marks(load_keyring(keys), written.streams, LEVEL)
    if written.readers is None:
        why: str | None = "the state does not say which keys it was read with"
    else:
        why = None if written.readers == marks else "the state was read with other keys"
    before = written.state_hash
    if why is None:
        return RepairedState(path=path, fold=written.fold, why=None, before=before, after=before, is_written=False)
    upto = {cut.label: cut.upto_seq for cut in written.snapshot.cuts}
    prefix = make_prefix(data_dir, upto=upto, pinned=pin(data_dir))
    result = run(prefix, fold_named(written.fold), keys=keys, engine=engine, spark=spark, as_of=written.as_of)
    if not dry_run:
        result.write(path)
    return RepairedState(
        path=path,
        fold=written.fold,
        why=why,
        before=before,
        after=result.state_hash,
        is_written=not dry_run,
    )
