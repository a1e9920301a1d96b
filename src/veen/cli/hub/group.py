"""`veen hub`: run a hub, ask a running one, and look after its data directory. Each command loads when it is called."""

import sys
from typing import NoReturn

from veen.cli.app import LazyGroup, main

hub = LazyGroup(
    "hub",
    help="Run a hub and look after its data directory.",
    table={
        "admission": ("veen.cli.hub.live:admission", "What a hub admits: profiles, gating, scope, proof of work."),
        "anchor": (
            "veen.products.anchoring.commands:hub_anchor",
            "Anchor the root of a log, as `anchor publish` does.",
        ),
        "checkpoint": ("veen.cli.hub.live:checkpoint", "Have a hub sign what its log is now."),
        "clone": ("veen.cli.hub.data:clone", "Copy a hub, also while it runs."),
        "config": ("veen.cli.hub.run:config", "Show the configuration in force and where each value comes from."),
        "cut-tail": ("veen.cli.hub.data:cut_tail", "Cut a torn end of the journal, if no receipt of it left."),
        "fence": ("veen.cli.hub.live:fence", "Have a hub admit nothing any more, before a cutover."),
        "fork": ("veen.cli.hub.data:fork", "Begin a new hub from a prefix of another one."),
        "health": ("veen.cli.hub.live:health", "Is a hub alive and ready?"),
        "init": ("veen.cli.hub.keys:init", "Make the key of a new hub, with the certificate for its first start."),
        "key": ("veen.cli.hub.keys:key", "Create, show and rotate the keys of a hub."),
        "limits": ("veen.cli.hub.live:limits", "The limit registry of a hub."),
        "log": ("veen.cli.hub.live:log", "Find lines in the log of a hub: why was somebody refused?"),
        "metrics": ("veen.cli.hub.live:metrics", "What a hub counts, as Prometheus reads it."),
        "rebuild-index": ("veen.cli.hub.data:rebuild_index", "Make index and node store again from the log."),
        "reload": ("veen.cli.hub.live:reload", "Have the hub of a data directory read its configuration again."),
        "retention": ("veen.cli.hub.retention:retention", "Erase old payloads; receipts and proofs stay."),
        "start": ("veen.cli.hub.run:start", "Run a hub."),
        "status": ("veen.cli.hub.live:status", "Who a hub is and how it is doing."),
        "stop": ("veen.cli.hub.run:stop", "Stop the hub of a data directory."),
        "verify-data": ("veen.cli.hub.data:verify_data", "Check every byte of a data directory."),
    },
)


def veen_hub_main() -> NoReturn:
    """Run `veen-hub --profile=tenant --config=F --data-dir=D` as `veen hub start` (spec-4)."""
    sys.argv[1:1] = ["hub", "start"]
    main()
