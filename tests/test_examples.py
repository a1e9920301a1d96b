"""The examples run as they stand."""

import ast
import importlib
import json
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def cells_of(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_with_the_outputs_of_one_run(path):
    """By tools/run_notebooks.py: each cell once, in order, without an error and without a path of the machine."""
    cells = cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data"}
    shown = json.dumps(outputs)
    assert "<svg" in shown
    assert not re.search(r"(/tmp|/home|/root|/work|/Users|site-packages)/", shown)
    for cell in cells:
        compile("".join(cell["source"]), path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_imports_public_names_only(path):
    nodes = [node for cell in cells_of(path) for node in ast.walk(ast.parse("".join(cell["source"])))]
    imports = [
        (node.module or "", name.name) for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    ours = [(module, name) for module, name in imports if module.split(".")[0] == "veen"]
    assert len(ours) > 10
    for module, name in ours:
        assert module.split(".")[1:2] != ["pipeline"], "a name of earlier releases"
        assert not any(part.startswith("_") for part in (*module.split("."), name))
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")  # one that has moved would warn, which fails here


@pytest.mark.slow
@pytest.mark.xdist_group("jvm")  # it starts a Spark of its own: not beside others
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = json.dumps(notebook)
    assert "<svg" in shown  # the plots
    assert "stream_seq" in shown  # what the audit says of the byte that was changed
    assert not list(tmp_path.glob("veen-investigation-*"))
