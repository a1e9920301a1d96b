"""Write src/veen/cli/index.json: what help and TAB show of the commands that overlays declare.

python tools/command_index.py
"""

import json
from pathlib import Path
from typing import Any, Final

from veen.cli.lazy import load
from veen.overlays.framework.nouns import Noun

INDEX: Final = Path(__file__).parents[1] / "src" / "veen" / "cli" / "index.json"
DECLARED: Final = (
    "veen.overlays.crud",
    "veen.overlays.id.nouns",
    "veen.overlays.kv",
    "veen.overlays.operations.nouns",
    "veen.overlays.queue",
    "veen.overlays.wallet.nouns",
)  # each has NOUNS, by name


def index() -> dict[str, Any]:
    """Return what `NounGroup.declare` needs of each noun, by the module of the declaration and its name."""
    nouns: dict[str, Noun] = {}
    for module in DECLARED:
        nouns |= {f"{module}:{name}": noun for name, noun in load(f"{module}:NOUNS").items()}
    return {
        place: {
            "help": noun.help,
            "about": noun.about,
            "commands": {name: face.to_json() for name, face in noun.faces().items()},
        }
        for place, noun in nouns.items()
    }


def text() -> str:
    return json.dumps(index(), ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    INDEX.write_text(text(), "utf-8")
