"""The examples of docs/overlays-id.md run as they stand there, and its codes are those of the code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "overlays-id.md").read_text("utf-8")
SOURCES = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "veen" / "overlays" / "id").glob("*.py"))


def test_the_examples_run():
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 4
    exec(compile("\n".join(examples), "docs/overlays-id.md", "exec"), {"__name__": "docs_id"})  # noqa: S102 - our own


def test_every_code_of_the_page_exists_and_every_violation_is_on_the_page():
    named = set(re.findall(r"ID\.[A-Z_]+[A-Z]", PAGE)) - {"ID.JWT", "ID.AUTH_REVOKED", "ID.AUTH_DEVICE", "ID.SESSION"}
    raised = set(re.findall(r'(?:Violation|InvalidBody|LoginRefused)\("(ID\.[A-Z_]+)"', SOURCES))
    assert named == raised
