"""Run the notebooks of examples/ from top to bottom and store their outputs: python tools/run_notebooks.py"""

import tempfile
from pathlib import Path
from typing import Final

import nbclient
import nbformat

EXAMPLES: Final = Path(__file__).parents[1] / "examples"


def run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # a library without types
    with tempfile.TemporaryDirectory() as directory:
        nbclient.NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            resources={"metadata": {"path": directory}},
            record_timing=False,
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # what libraries print while they work is not a result
            cell.outputs = [output for output in cell.outputs if output.output_type != "stream"]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    text: str = nbformat.writes(notebook, indent=1)  # type: ignore[no-untyped-call]  # as above
    path.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        run(path)
