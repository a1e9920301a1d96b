"""Names that a package offers and imports when they are first used: whoever needs one of them loads no other."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_of(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `names` maps each name to "module:attribute", or to "module:" alone."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = names[name].partition(":")
        loaded = import_module(module)
        return getattr(loaded, attribute) if attribute else loaded

    return get
