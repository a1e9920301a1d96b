"""The examples of docs/overlays-wallet.md run as they stand there, and its tables are complete."""

import re
from pathlib import Path

from veen.overlays.wallet.bodies import OPERATIONS
from veen.overlays.wallet.codes import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "overlays-wallet.md").read_text("utf-8")


def test_the_examples_run():
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 4
    exec(compile("\n".join(examples), "docs/overlays-wallet.md", "exec"), {"__name__": "docs"})  # noqa: S102 - our own documentation


def test_every_code_and_every_event_is_explained():
    assert set(re.findall(r"WAL\.[A-Z_]+", PAGE)) == set(CODES)
    assert set(OPERATIONS.values()) <= set(re.findall(r"`([a-z]+)`", PAGE))
