"""Self-tests: what a deployment promises, tried end to end against real hubs (001 spec-4 §8, products §3.5).

A suite is a list of checks. Each check gets a `World`: hubs that run as processes of their own, or the hub that was
named, and people with keys and clients. A further suite is a module with a `SUITE` and a row in `SUITES`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from veen.selftest.suite import Suite

__all__ = ["SUITES", "suite_named"]

SUITES: Final[Mapping[str, str]] = {
    "authority": "veen.selftest.authority",
    "bridge": "veen.selftest.bridge",
    "core": "veen.selftest.core",
    "federated": "veen.selftest.federated",
    "overlays": "veen.selftest.overlays",
    "recorder": "veen.selftest.recorder",
}


def suite_named(name: str) -> "Suite":
    """The suite; KeyError if there is none of this name."""
    suite: Suite = import_module(SUITES[name]).SUITE
    return suite
