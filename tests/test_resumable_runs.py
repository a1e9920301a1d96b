"""Long seeded runs (`python -m benchmarks.crashes`): they count, resume, and name the seed that fails."""

from dataclasses import replace

import pytest
from benchmarks import crashes, resumable


def count_block(first, size):
    return size, 0.5


@pytest.fixture
def run(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "store.py").write_text("a = 1\n")
    return resumable.Run("count", "points", 10, count_block, ("code",), size=2, root=tmp_path)


def test_a_run_goes_on_where_the_last_one_stopped(run):
    first = run.work(1, 1)
    assert first.points == first.seeds > 0
    second = run.work(first.points + 1, 1)
    assert second.seeds > first.seeds
    assert second.seconds > first.seconds
    assert run.work(1, 1) == second, "enough is done: nothing runs again"


def test_progress_of_other_code_does_not_count(run):
    run.work(1, 1)
    (run.root / "code" / "store.py").write_text("a = 2\n")
    assert run.load() == resumable.Progress(run.digest())


def test_a_damaged_file_of_progress_is_no_progress(run):
    run.work(1, 1)
    run.path.write_text("{not json")
    assert run.load().points == 0


def test_a_complete_run_is_published_and_a_part_of_it_is_not(run, capsys):
    published: list[resumable.Progress] = []
    assert resumable.main(run, published.append, ["--points", "2", "--processes", "1"]) == 0
    assert not published
    assert resumable.main(run, published.append, ["--processes", "1"]) == 0
    assert [progress.points >= 10 for progress in published] == [True]
    assert "of 10 points" in capsys.readouterr().out


def test_crash_points_are_counted():
    points, seconds = crashes.run_block(0, 2)
    assert points >= 2
    assert seconds > 0


def test_a_history_that_fails_is_named_by_its_seed(monkeypatch):
    def fail(seed, density, fsck_every):
        assert seed != 3, "lost an entry"
        return 1

    monkeypatch.setattr(crashes, "survive", fail)
    with pytest.raises(AssertionError, match=r"seed 3 .*lost an entry"):
        crashes.run_block(0, 5)


def test_the_code_of_a_run_exists():
    assert replace(crashes.RUN, root=resumable.ROOT).digest() == crashes.RUN.digest()
    assert all((resumable.ROOT / part).exists() for part in crashes.RUN.code)
