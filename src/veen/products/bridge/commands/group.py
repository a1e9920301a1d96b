"""`veen bridge` and `veen-bridge`: the air-gap bridge (AGB0, 001 products §4)."""

import sys
from typing import NoReturn

from veen.cli.lazy import LazyGroup

bridge = LazyGroup(
    "bridge",
    help="""Carry events from one zone to another, with receipts and proofs, in one direction.

    The sending zone writes bundles (`export`), a link or a medium carries them (`send`, `receive`), the receiving zone
    verifies and imports them. See docs/bridge.md.
    """,
    table={
        "anchor": ("veen.products.bridge.commands.cross:anchor", "Anchor the bundle ids of an audit log, or a report."),
        "copy": ("veen.products.federation.commands.copy:copy", "Copy streams from one hub to another, both online."),
        "doctor": ("veen.products.bridge.commands.check:doctor", "Refuse identities that hold both directions."),
        "evidence": (
            "veen.products.bridge.commands.check:evidence",
            "Verify the seven links from an event to its import.",
        ),
        "export": ("veen.products.bridge.commands.cross:export", "Write bundles from streams of this zone."),
        "import": (
            "veen.products.bridge.commands.cross:import_",
            "Verify bundles and write their events into import streams.",
        ),
        "inspect": (
            "veen.products.bridge.commands.carry:inspect",
            "Show and verify a bundle. No keys needed.",
        ),
        "receive": ("veen.products.bridge.commands.carry:receive", "Take bundles from a medium or a one-way link."),
        "reconcile": (
            "veen.products.bridge.commands.check:reconcile",
            "Compare both zones: missing, doubled, partial, withheld.",
        ),
        "run": ("veen.products.bridge.commands.cross:run", "Run one side of a bridge as a service."),
        "send": (
            "veen.products.bridge.commands.carry:send",
            "Copy bundles to a medium, or send them over a one-way link.",
        ),
    },
)


def veen_bridge_main() -> NoReturn:
    """Run `veen-bridge export …` as `veen bridge export …`; with --source-url run `veen bridge copy …` (spec-4 §6)."""
    from veen.cli.app import main

    is_copy = sys.argv[1:2] and sys.argv[1].startswith(("--source", "--target", "--streams", "--keys"))
    sys.argv[1:1] = ["bridge", "copy"] if is_copy else ["bridge"]
    main()
