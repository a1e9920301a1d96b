"""The navigation of the site from docs/index.md, for MkDocs: each section with its pages, in the order of the index."""

import re
import sys
from pathlib import Path
from typing import Any

_LINK = re.compile(r"^[-*] \[([^\]]+)\]\(([^)#]+\.md)\)", re.MULTILINE)


def navigation(index: str) -> list[dict[str, Any]]:
    """`{section: [{title: page}, …]}` in order, and the index itself first."""
    parts = re.split(r"^## (.+)$", index, flags=re.MULTILINE)
    sections = zip(parts[1::2], parts[2::2], strict=True)
    entries = [{title: [{name: page} for name, page in _LINK.findall(body)]} for title, body in sections]
    return [{"VEEN": "index.md"}, *entries]


def slug(text: str, separator: str) -> str:
    """Anchors as code hosts make them: letters and digits of any script, spaces as hyphens."""
    letters = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return letters.replace(" ", separator)


def on_config(config: Any) -> Any:
    """Set the navigation: a hook of MkDocs."""
    config["nav"] = navigation((Path(config["docs_dir"]) / "index.md").read_text("utf-8"))
    return config


sys.modules.setdefault("docs_navigation", sys.modules[__name__])
