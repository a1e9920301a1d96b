"""`veen hub`: run a hub, ask a running one, and look after its data directory. Each command loads when it is called."""

import sys
from typing import ClassVar, NoReturn

import click

from veen.cli.app import LazyGroup, main

__all__ = ["hub", "veen_hub_main"]


class _HubGroup(LazyGroup):
    table: ClassVar = {
        "admission": ("veen.cli.hublive:admission", "What a hub admits: profiles, gating, scope, proof of work."),
        "checkpoint": ("veen.cli.hublive:checkpoint", "Have a hub sign what its log is now."),
        "clone": ("veen.cli.hubdata:clone", "Copy a hub, also while it runs."),
        "config": ("veen.cli.hubrun:config", "Show the configuration in force and where each value comes from."),
        "fork": ("veen.cli.hubdata:fork", "Begin a new hub from a prefix of another one."),
        "health": ("veen.cli.hublive:health", "Is a hub alive and ready?"),
        "key": ("veen.cli.hubkey:key", "Create, show and rotate the keys of a hub."),
        "limits": ("veen.cli.hublive:limits", "The limit registry of a hub."),
        "metrics": ("veen.cli.hublive:metrics", "What a hub counts, as Prometheus reads it."),
        "rebuild-index": ("veen.cli.hubdata:rebuild_index", "Make index and node store again from the log."),
        "retention": ("veen.cli.hubretention:retention", "Erase old payloads; receipts and proofs stay."),
        "start": ("veen.cli.hubrun:start", "Run a hub."),
        "status": ("veen.cli.hublive:status", "Who a hub is and how it is doing."),
        "stop": ("veen.cli.hubrun:stop", "Stop the hub of a data directory."),
        "verify-data": ("veen.cli.hubdata:verify_data", "Check every byte of a data directory."),
    }


@click.group(cls=_HubGroup)
def hub() -> None:
    """Run a hub and look after its data directory."""


def veen_hub_main() -> NoReturn:
    """`veen-hub --profile=tenant --config=F --data-dir=D` is `veen hub start` (spec-4)."""
    sys.argv[1:1] = ["hub", "start"]
    main()
