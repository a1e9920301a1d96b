"""Benchmarks beside another checkout: the rounds take turns, and the interval is that of a median."""

from benchmarks import baseline
from benchmarks.baseline import HERE, Installation, interval, ratios_of


def test_the_interval_of_a_median_is_by_order_statistics():
    """Of 9 values the second and the eighth: 1 - 2 · 10/512 = 96 %; of less than 6 there is none but all of them."""
    assert interval([9, 1, 8, 2, 7, 3, 6, 4, 5]) == (2, 8)
    assert interval([1, 2, 3, 4, 5]) == (1, 5)
    assert interval([1, 2, 3, 4, 5, 6]) == (1, 6)
    assert interval(range(1, 21)) == (6, 15)
    assert interval([1.5]) == (1.5, 1.5)


def test_rounds_take_turns_and_rows_of_one_side_are_left_out():
    other, order = Installation("python"), []

    def measure(installation):
        order.append(installation is HERE)
        return {"both": 3.0, "now": 1.0} if installation is HERE else {"both": 2.0, "before": 1.0}

    assert ratios_of(measure, other, 3) == {"both": [(3.0, 2.0)] * 3}
    assert order == [True, False, False, True, True, False]


def test_a_benchmark_runs_with_the_program_of_an_installation(tmp_path):
    """Its own interpreter, and the benchmarks of this checkout."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "noise"\nprintf \'{"where": "%s", "args": "%s", "set": "%s"}\n\' "$PWD" "$*" "$S"\n'
    )
    python.chmod(0o700)
    answer = baseline.run_module(Installation.at(tmp_path), "benchmarks.verify", "--path", "x", S="1")
    assert answer == {"where": str(baseline.ROOT), "args": "-m benchmarks.verify --path x", "set": "1"}


def test_a_table_says_whether_the_ratio_holds(monkeypatch):
    monkeypatch.setattr(baseline, "ratios_of", lambda *_: {"good": [(98.0, 100.0)] * 9, "bad": [(9.0, 10.0)] * 9})
    lines = baseline.comparison(lambda _: {}, baseline.ROOT, 9).splitlines()
    assert lines[-2:] == [
        "| good | 98 | 100 | 0.980 | 0.980 to 0.980 | yes |",
        "| bad | 9 | 10 | 0.900 | 0.900 to 0.900 | NO |",
    ]
