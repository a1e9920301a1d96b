"""The public names: docs/reference/python.md lists them, and documents and examples import nothing else."""

import ast
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import make_reference
import veen
import veen.contrib

ROOT = Path(__file__).parent.parent
CONTRIB = [f"veen.contrib.{module.name}" for module in pkgutil.iter_modules(veen.contrib.__path__)]
PUBLIC = {name: set(importlib.import_module(name).__all__) for name in ("veen", "veen.ext", "veen.testing", *CONTRIB)}
MODULES = {"veen", "veen.ext", "veen.testing"}  # in `from veen import ext`


def test_the_reference_lists_the_public_names():
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    parts = re.split(r"^## `([\w.]+)`$", page, flags=re.MULTILINE)[1:]
    listed = {
        name: set(re.findall(r"^### `(\w+)", body, re.MULTILINE))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }
    assert listed == PUBLIC
    assert set(make_reference.MODULES) == set(PUBLIC)


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_every_public_name_is_there(module):
    loaded = importlib.import_module(module)
    assert [name for name in PUBLIC[module] if getattr(loaded, name, None) is None] == []


def programs():
    """Yield the Python of documents and examples, each with the name of its file."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if path.parent.name == "reference":  # signatures
            continue
        for block in re.findall(r"^```python[^\n]*\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            yield path.relative_to(ROOT), block
        for block in re.findall(r"^>>> ((?:from|import) [^\n]*)", path.read_text("utf-8"), re.MULTILINE):
            yield path.relative_to(ROOT), block
    for path in (ROOT / "examples").rglob("*.py"):
        yield path.relative_to(ROOT), path.read_text("utf-8")
    for path in (ROOT / "examples").rglob("*.ipynb"):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield path.relative_to(ROOT), "".join(cell["source"])


def imported(program):
    """Yield (module, name) for each import of VEEN; the name is None for `import module`."""
    for node in ast.walk(compile(program, "docs", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "veen")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "veen":
            yield from ((node.module, alias.name) for alias in node.names)


def is_public(module, name):
    return module in PUBLIC if name is None else name in PUBLIC.get(module, ()) or f"{module}.{name}" in MODULES


def test_documents_and_examples_import_nothing_but_public_names():
    imports = [(str(path), *pair) for path, program in programs() for pair in imported(program)]
    assert len(imports) > 40
    assert [pair for pair in imports if not is_public(*pair[1:])] == []
    assert not is_public("veen.core.hashing", "H")
    assert not is_public("veen.client", None)
