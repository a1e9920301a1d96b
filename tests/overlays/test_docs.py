"""The examples of docs/overlays.md run as they stand there."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "overlays.md").read_text("utf-8")


def test_the_example_of_an_overlay_runs_and_keeps_the_laws():
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 3
    namespace = {"__name__": "docs_overlays"}
    exec(compile("\n".join(examples), "docs/overlays.md", "exec"), namespace)  # noqa: S102 - our own documentation
