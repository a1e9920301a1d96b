"""Checks of a data directory: entries, labels, seals, control records, identity, journal, index.

Two drivers with the same rules: `directory` (`veen hub verify-data`, a label in its order, also of a running hub) and
`audit` (`veen audit run`, chunks apart, in processes or on Spark). What cannot be compared makes a verdict incomplete,
never good. Nothing is written.

It imports `veen.core`, `veen.io` and `veen.storage`. Start with `directory.verify_data`; the rules of a run of entries
are in `veen.core.run_check`.

`veen.verify(path, hub_pk=…)` checks an evidence file. The function and this package have one name, so the module can
be called, whichever of the two was imported first.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module("veen.api.evidence").verify(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
