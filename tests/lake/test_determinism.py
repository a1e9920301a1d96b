"""Whatever the log and whatever is asked: one answer, however the work is dealt out (DESIGN §9.5).

Cuts are simulated with the very functions that Spark's tasks run: parts in any order, pickled on the way, some of them
done twice. Files lie in the directory in another order. A sample runs on Spark itself.
"""

import pickle
import random
import re
from dataclasses import replace

import pytest
from tests.examples import spread
from tests.lake.audit_builders import ShuffledEngine, SlowEngine, run, tables
from tests.lake.randomlogs import KEYRING, KEYS, random_log
from tests.lake.test_query_cuts import CUTS, Cut, answer, random_query
from tests.lake.test_query_tables import CutTables

from veen.core.errors import VeenError
from veen.lake import folds
from veen.lake.folds import fold_named
from veen.lake.folds.coverage import FoldCoverage, entries_in
from veen.lake.folds.planning import merge_parts, summarize_part
from veen.lake.log.decryption import in_order
from veen.lake.log.events import EventJob, event_batches, make_prefix, read_events
from veen.lake.log.keys import write_keys
from veen.lake.query.descriptor import EvidencePolicy
from veen.lake.query.engine import LocalSource, plan_query
from veen.lake.query.fields import FieldPath
from veen.lake.query.on_spark import SparkSource
from veen.lake.query.table_plan import PlannedSource, TablePlan, TableSource, plan_tables
from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.runner import divide_timed
from veen.lake.tables import load
from veen.lake.tables.streaming import load_upto
from veen.overlays.framework.state import state_hash
from veen.overlays.framework.stream import fold_events
from veen.storage.pinned import pin
from veen.verify.audit.report import document

LOGS = 200


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


def audited(path, engine=None, level="full"):
    result = run(path, engine=engine, level=level)
    return tables(result), document(result)


def answered(path, asked, source):
    """The digest, rows, evidence and coverage; or the error, which is an answer as well."""
    try:
        plan = plan_query(str(path), asked)
        return answer(plan, asked, source(plan))
    except VeenError as exc:
        return type(exc), str(exc)


def check_audits(found, here, there, parts):
    level = random.Random(found.seed).choice(("full", "full", "sampled", "structure"))
    expected = audited(here, level=level)
    assert bool(expected[1]["findings"]["errors"]) <= (found.variant in ("damaged", "cut off")), found
    for engine in (SlowEngine(), *(ShuffledEngine(count, found.seed) for count in parts)):
        assert audited(there, engine, level) == expected


def check_queries(found, here, there, parts, keys):
    rng = random.Random(found.seed)
    asked = random_query(rng, found.seed)
    expected = answered(here, asked, lambda plan: LocalSource(plan, asked, KEYRING))
    for count in parts:
        assert answered(there, asked, lambda plan, n=count: Cut(plan, asked, keys, n, rng)) == expected


def planned(path, asked, to, source):
    """The same by a plan over tables. `source` makes one of a prefix, and of files of the table if there are any."""
    try:
        prefix = plan_query(str(path), asked)
        plan = plan_tables(str(to), prefix, asked, KEYRING)
        if not isinstance(plan, TablePlan):
            return answer(prefix, asked, source(prefix, None)), "log"
        proven = None if plan.proven is None else source(plan.proven, None)
        return answer(prefix, asked, PlannedSource(plan, [source(plan.rest, plan.task)], proven)), plan.report.source
    except VeenError as exc:
        return (type(exc), str(exc)), "error"


def loaded_tables(found, here, root, keys):
    """Tables of all of the log, and of a part of it; none if the log cannot be pinned."""
    rng = random.Random(found.seed)
    whole, part = root / f"{found.seed}-whole", root / f"{found.seed}-part"
    try:
        load(str(here), str(whole), keys=keys, engine="python", target_bytes=rng.choice((1, 1 << 20)))
        ends = {label: rng.randint(0, head) for label, head in pin(str(here)).heads.items()}
        load_upto(str(here), str(part), ends, keys=keys)
    except VeenError:
        return []
    return [whole, part]


def check_tables(found, here, there, parts, keys, root, queries=3):
    """Tables or log, or both; files are tasks among others. The sources that were taken."""
    rng = random.Random(found.seed)
    places, sources = loaded_tables(found, here, root, keys), set()
    for number in range(queries):
        asked = random_query(rng, found.seed + number)
        expected = answered(here, asked, lambda plan, asked=asked: LocalSource(plan, asked, KEYRING))
        for to in places:

            def local(prefix, task, asked=asked):
                rest = LocalSource(prefix, asked, KEYRING)
                return rest if task is None else Both(TableSource(task, asked), rest)

            result, source = planned(here, asked, to, local)
            assert result == expected, (found, asked)
            sources.add(source)
            for count in parts:

                def cut(prefix, task, asked=asked, count=count):
                    return CutTables(prefix, asked, keys, count, rng, task)

                assert planned(there, asked, to, cut)[0] == expected, (found, asked, count)
    return sources


class Both:
    """Two sources of one process in one order."""

    def __init__(self, *sources):
        self._sources = sources

    def matches(self, skips):
        return in_order((0, source.matches(skips)) for source in self._sources)

    def groups(self, skips):
        return None


FOLDS = ("kv", "crdt.gcnt")


def states(fold, summary, seen):
    """Every byte of a state and what it was made of."""
    sealed = fold.seal(summary)
    ts = max(seen.times.values(), default=0)
    return (
        state_hash(fold.name, fold.view(sealed, ts)),
        fold.issues(sealed),
        seen.count_unopened(),
        seen.counts,
        seen.heads,
    )


def check_folds(found, here, there, parts, keys):
    """The generic path of Spark without Spark: summaries of parts that meet in any order, in a tree."""
    rng = random.Random(found.seed)
    for name in FOLDS:
        fold, coverage = fold_named(name), FoldCoverage()
        try:
            expected = states(fold, fold_events(fold, coverage.events(read_events(str(here), KEYRING))), coverage)
        except VeenError as exc:
            with pytest.raises(type(exc), match=re.escape(str(exc))):
                make_prefix(str(there))
            continue
        for count in parts:
            prefix = make_prefix(str(there))
            job, tasks = pickle.loads(  # noqa: S301 - as Spark does to tasks
                pickle.dumps((EventJob(prefix.uri, keys), divide_timed(None, prefix, count)))
            )
            rng.shuffle(tasks)
            summaries = [summarize_part(fold, entries_in(event_batches(job, works))) for works in tasks]
            while len(summaries) > 1:  # any two that are there
                left, other = summaries.pop(rng.randrange(len(summaries))), summaries.pop(rng.randrange(len(summaries)))
                summary, noted = merge_parts(fold, (left, other))
                summaries.append([fold.dump(summary), noted.to_tree()])
            assert states(fold, *merge_parts(fold, summaries)) == expected


def check(seed, root, keys, parts=CUTS):
    """One log, twice on the disk, and everything that is made of it."""
    world = random_log(seed)
    here, there = world.put(root / f"{seed}-here"), world.put(root / f"{seed}-there", shuffled=True)
    check_audits(world, here, there, parts)
    check_queries(world, here, there, parts, keys)
    check_folds(world, here, there, parts, keys)


@pytest.mark.req("QRY-10", "QRY-15", "QRY-16")
@pytest.mark.parametrize("seed", spread(range(5), 2))
def test_some_logs_give_one_answer_for_every_cut(tmp_path, keys, seed):
    check(seed, tmp_path, keys)


@pytest.mark.slow
@pytest.mark.req("QRY-10", "QRY-15", "QRY-16")
@pytest.mark.parametrize("lot", range(10))
def test_two_hundred_logs_give_one_answer_for_every_cut(tmp_path, keys, lot):
    for seed in range(lot, LOGS, 10):
        check(seed, tmp_path, keys)


@pytest.mark.slow
def test_some_logs_give_one_answer_from_tables_and_log_for_every_cut(tmp_path, keys):
    sources = set()
    for seed in range(6):
        world = random_log(seed)
        here, there = world.put(tmp_path / f"{seed}-here"), world.put(tmp_path / f"{seed}-there", shuffled=True)
        sources |= check_tables(world, here, there, (1, 7), keys, tmp_path, queries=2)
    assert {"tables", "tables and log", "log by tables"} <= sources


@pytest.mark.slow
@pytest.mark.parametrize("lot", range(10))
def test_two_hundred_logs_give_one_answer_from_tables_and_log_for_every_cut(tmp_path, keys, lot):
    for seed in range(lot, LOGS, 10):
        world = random_log(seed)
        here, there = world.put(tmp_path / f"{seed}-here"), world.put(tmp_path / f"{seed}-there", shuffled=True)
        check_tables(world, here, there, CUTS, keys, tmp_path)


def folded(path, name, keys, **how):
    try:
        result = folds.run(str(path), name, keys=keys, **how)
    except VeenError as exc:
        return type(exc), str(exc)
    return result.state_hash, result.issues, result.cuts, result.unopened, result.unproven


def check_on_spark(spark, seeds, root, keys, parts):
    """The same on Spark: what one process says of the first copy, Spark says of the second."""
    for seed in seeds:
        world = random_log(seed)
        here, there = world.put(root / f"{seed}-here"), world.put(root / f"{seed}-there", shuffled=True)
        asked = random_query(random.Random(seed), seed)
        audit = audited(here)
        rows = answered(here, asked, lambda plan, asked=asked: LocalSource(plan, asked, KEYRING))
        for count in parts:
            assert audited(there, SparkEngine(spark, count)) == audit

            def source(plan, asked=asked, count=count):
                return SparkSource(spark, plan, asked, keys, parts=count)

            assert answered(there, asked, source) == rows

            def with_files(prefix, task, asked=asked, count=count):
                return SparkSource(spark, prefix, asked, keys, parts=count, table=task)

            for to in loaded_tables(world, here, root, keys) if count == parts[0] else ():
                assert planned(there, asked, to, with_files)[0] == rows
            for name, plan in (("kv", "native"), ("kv", "generic"), ("crdt.gcnt", "auto")):
                assert folded(there, name, keys, spark=spark, parts=count, plan=plan) == folded(
                    here, name, keys, engine="python"
                )


@pytest.mark.xdist_group("spark")
def test_some_logs_give_the_same_answer_on_spark(spark, tmp_path, keys):
    check_on_spark(spark, (0, 5), tmp_path, keys, (7,))


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_more_logs_give_the_same_answer_on_spark(spark, tmp_path, keys):
    check_on_spark(spark, range(100, 112), tmp_path, keys, CUTS)


def broad_query(seed):
    """A random query without what leaves most rows out, and without what only the log can answer."""
    asked = random_query(random.Random(seed), seed)
    chosen = replace(asked.filter, subject_id=None, event_type=None, first_ts=None, last_ts=None)
    projection = asked.projection if asked.aggregate is None else (FieldPath.of("origin"),)
    return replace(asked, evidence=EvidencePolicy(mode="none"), filter=chosen, projection=projection)


def check_sql(spark, seeds, root, keys, enough=LOGS):
    """By plans of Spark SQL over the tables of a log, and of a part of it; how many sources had such a plan."""
    with_plan = 0
    for seed in seeds:
        if with_plan >= enough:
            break
        world = random_log(seed)
        here = world.put(root / f"{seed}-here")
        asked = broad_query(seed)
        rows = answered(here, asked, lambda plan, asked=asked: LocalSource(plan, asked, KEYRING))
        sources: list[SparkSource] = []

        def with_files(prefix, task, asked=asked, sources=sources):
            sources.append(SparkSource(spark, prefix, asked, keys, parts=3, table=task))
            return sources[-1]

        for to in loaded_tables(world, here, root, keys):
            assert planned(here, asked, to, with_files)[0] == rows, (world, asked)
        with_plan += sum(source.sql is not None for source in sources)
    return with_plan


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_some_logs_give_the_same_answer_by_plans_of_sql(spark, tmp_path, keys):
    assert check_sql(spark, range(1, 20), tmp_path, keys, enough=1) >= 1


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("lot", range(10))
def test_two_hundred_logs_give_the_same_answer_by_plans_of_sql(spark, tmp_path, keys, lot):
    assert check_sql(spark, range(lot, LOGS, 10), tmp_path, keys) > LOGS // 20


def test_the_logs_are_of_every_kind():
    """What the tests above are worth depends on what they are given."""
    worlds = [random_log(seed) for seed in range(40)]
    assert {world.variant for world in worlds} == {"good", "erased", "cut off", "damaged"}
    labels = [
        {name.split("-")[1] for name in world.files if name.startswith(("log/chunk-", "log/active-"))}
        for world in worlds
    ]
    assert {len(names) for names in labels} >= {1, 2, 3, 4, 5}
