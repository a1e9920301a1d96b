"""Verification of a data directory: entries, labels, seals, control records, identity, journal, index.

`veen.verify(path, hub_pk=…)` checks an evidence file. The function and this package have one name, so the module is
callable, whichever of the two was imported first.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module("veen.api.evidence").verify(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
