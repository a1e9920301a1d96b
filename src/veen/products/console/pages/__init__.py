"""Pages over overlays and products: each module turns verified events into sections and data."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from veen.products.console.views import Console, PageView, Query
from veen.products.console.writes import ConsoleWriter, WriteOutcome

Report = Callable[[Console, Query], Awaitable[PageView]]
PageWrite = Callable[[Console, ConsoleWriter, Mapping[str, str]], Awaitable[WriteOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the console, and the writes of its forms, by path."""

    path: str
    title: str  # in the navigation
    report: Report
    writes: Mapping[str, PageWrite] = field(default_factory=dict)


def load_pages(target: str) -> tuple[Page, ...]:
    """Import the pages that a product names as "module:attribute"."""
    module, _, attribute = target.partition(":")
    pages: tuple[Page, ...] = getattr(import_module(module), attribute)
    return pages
