"""The examples of docs/folds.md run, and its table of plans is true."""

import random
import re
from pathlib import Path
from typing import Any

from tests.lake.fold_builders import KEYRING, real_log

from veen.lake.folds import fold_named
from veen.lake.folds.planning import plan_of
from veen.lake.log.keys import write_keys
from veen.overlays.kv import put

PAGE = (Path(__file__).parents[2] / "docs" / "folds.md").read_text("utf-8")


def test_the_examples_run_one_after_another(tmp_path):
    drafts = [put("color", "green"), *(put(random.Random(n).choice("abc"), n) for n in range(12))]
    world = real_log(tmp_path / "hub", drafts)
    names: dict[str, Any] = {
        "data_dir": str(world.path),
        "keys": write_keys(tmp_path, KEYRING.entries).path,
        "state_dir": str(tmp_path / "state"),
    }
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/folds.md", "exec"), names)  # noqa: S102 - the page is ours
    assert names["verdict"].ok
    world.store.close()


def test_the_table_of_plans_is_what_auto_does():
    rows = re.findall(r"^\| `([a-z ]+)` \| ([a-z., ]+) \|", PAGE, re.MULTILINE)
    plans = {name: plan for plan, names in rows for name in names.split(", ") if "every" not in name}
    assert plans == {name: plan_of(fold_named(name), "auto") for name in plans}
    assert len(plans) == 11
