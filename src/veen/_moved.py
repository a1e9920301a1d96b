"""Modules that documents once showed under another name: importing one gives the module of today, and a warning.

Each line can go a release after its last mention. Nothing of ours imports an old name.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # Python asks for their methods alone, and importing them would double the cost of `veen --help`
    Loader = MetaPathFinder = object

__all__ = ["MOVED", "PACKAGES", "find_new_name", "install"]

MOVED: Final = {
    "veen.client.calls": "veen.client.transport.calls",
    "veen.client.hubapi": "veen.client.transport.hubapi",
    "veen.client.picture": "veen.client.read.picture",
    "veen.client.revocation": "veen.client.identity.revocation",
    "veen.client.sealing": "veen.client.send.sealing",
    "veen.core.captoken": "veen.core.objects.captoken",
    "veen.core.checkpoint": "veen.core.objects.checkpoint",
    "veen.core.control": "veen.core.objects.control",
    "veen.core.ed25519": "veen.core.crypto.ed25519",
    "veen.core.msg": "veen.core.objects.msg",
    "veen.core.proof": "veen.core.tree.proof",
    "veen.core.receipt": "veen.core.objects.receipt",
    "veen.core.schemaid": "veen.core.labels",
    "veen.core.tooling": "veen.core.objects.tooling",
    "veen.core.trusted": "veen.core.objects.trusted_root",
    "veen.hub.config": "veen.hub.process.config",
    "veen.hub.runtime": "veen.hub.process.runtime",
    "veen.overlays.body": "veen.overlays.framework.schema",
    "veen.overlays.decode": "veen.overlays.framework.schema",
    "veen.overlays.fold": "veen.overlays.framework.fold",
    "veen.overlays.link": "veen.overlays.framework.link",
    "veen.overlays.registry": "veen.overlays.framework.registry",
    "veen.overlays.rpccaller": "veen.overlays.rpc.ends",
    "veen.overlays.rpcserver": "veen.overlays.rpc.ends",
    "veen.overlays.runner": "veen.overlays.framework.runner",
    "veen.overlays.schema": "veen.overlays.framework.schema",
    "veen.overlays.sdr": "veen.overlays.recorder.events",
    "veen.overlays.snapshot": "veen.overlays.framework.snapshot",
    "veen.overlays.state": "veen.overlays.framework.state",
    "veen.pipeline.audit": "veen.verify.audit",
    "veen.pipeline.audit.report": "veen.verify.audit.report",
    "veen.pipeline.audit.spark": "veen.lake.spark.audit",
    "veen.pipeline.charts": "veen.lake.log.charts",
    "veen.pipeline.events": "veen.lake.spark.runner",
    "veen.pipeline.folds": "veen.lake.folds",
    "veen.pipeline.progress": "veen.lake.spark.progress",
    "veen.pipeline.query": "veen.lake.query",
    "veen.pipeline.query.api": "veen.lake.query.api",
    "veen.pipeline.query.keys": "veen.lake.log.keys",
    "veen.pipeline.query.recording": "veen.lake.query.recording",
    "veen.pipeline.session": "veen.lake.spark.session",
    "veen.pipeline.settings": "veen.lake.spark.settings",
    "veen.pipeline.tables": "veen.lake.tables",
    "veen.storage.fs": "veen.io.local",
    "veen.hub.http.tls": "veen.io.tls",
}
PACKAGES: Final = {  # moved with all that is in them
    "veen.console": "veen.products.console",
    "veen.folds": "veen.lake.folds",
    "veen.fs": "veen.io",
    "veen.kube": "veen.products.kube",
    "veen.log": "veen.lake.log",
    "veen.net": "veen.io",
    "veen.products.airgap": "veen.products.bridge",
    "veen.query": "veen.lake.query",
    "veen.selftest": "veen.products.selftest",
    "veen.spark": "veen.lake.spark",
    "veen.tables": "veen.lake.tables",
    "veen.vesn": "veen.products.vesn",
}
_PARENTS: Final = frozenset({"veen.pipeline"})  # packages that held some of them, and are no more


def find_new_name(name: str) -> str | None:
    """Return the name of today, or None if the name did not change."""
    if (new := MOVED.get(name)) is not None:
        return new
    for old, today in PACKAGES.items():
        if name == old or name.startswith(f"{old}."):
            return today + name.removeprefix(old)
    return None


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if (target := find_new_name(module.__name__)) is not None:
            warnings.warn(f"{module.__name__} is now {target}", DeprecationWarning, stacklevel=2)
            sys.modules[module.__name__] = import_module(target)  # import returns what stands there


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _PARENTS and find_new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, _Loader(), is_package=fullname in _PARENTS)


def install() -> None:
    """Let old names be imported. Asked first: below a package that moved, Python would load the file a second time."""
    sys.meta_path.insert(0, _Finder())
