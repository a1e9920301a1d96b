"""Self-tests: the promises of a deployment, tested end to end against real hubs (001 spec-4 §8, products §3.5).

A suite is a list of checks. Each check gets a `World`: hubs in separate processes, or the given hub, and people with
keys and clients. A further suite is a module with a `SUITE` and a row in `SUITES`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from veen.ext import Product

if TYPE_CHECKING:
    from veen.products.selftest.suite import Suite

__all__ = ["SUITES", "suite_named"]

SUITES: Final[Mapping[str, str]] = {
    "authority": "veen.products.selftest.authority",
    "bridge": "veen.products.selftest.bridge",
    "core": "veen.products.selftest.core",
    "federated": "veen.products.selftest.federated",
    "overlays": "veen.products.selftest.overlays",
    "recorder": "veen.products.selftest.recorder",
}


def suite_named(name: str) -> "Suite":
    """Return the suite of this name. Raise KeyError if there is none."""
    suite: Suite = import_module(SUITES[name]).SUITE
    return suite


PRODUCT = Product(
    name="selftest",
    about="Tests of a deployment from end to end.",
    commands={"selftest": "veen.products.selftest.commands:selftest"},
)
