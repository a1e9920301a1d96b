"""`veen selftest` and `veen-selftest`: try end to end what a deployment promises (001 spec-4 §8)."""

import sys
from typing import Any, ClassVar, NoReturn

import click

from veen.cli.clictx import Session, client_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.output import Exit, Fail, Output, output_options

__all__ = ["overlays", "selftest", "veen_selftest_main"]


class _SelftestGroup(LazyGroup):
    table: ClassVar[Table] = {
        "overlays": ("veen.cli.selftest:overlays", "Every overlay of everyday use, between several identities."),
    }


@click.group(cls=_SelftestGroup)
def selftest() -> None:
    """Try end to end what a hub and its clients promise. Exit code 7 if a check fails."""


def _run(output: Output, session: Session, name: str) -> None:
    """The suite against the hub that was named by --hub or --context, or against hubs started for it."""
    import asyncio

    from veen.selftest import suite_named
    from veen.selftest.suite import run
    from veen.selftest.world import HubAt

    hub = None
    if session.settings.hub.value is not None:
        hub = HubAt(url=session.hub_url, hub_pk=session.hub_pk)
    suite = suite_named(name)
    failed: list[str] = []
    columns = ("result", "seconds", "check", "detail")

    async def work() -> None:
        with output.records("checks", columns, widths=(6, 7, 62)) as records:
            async for one in run(suite, hub=hub):
                told: dict[str, Any] = {
                    "suite": one.suite,
                    "check": one.check,
                    "ok": one.ok,
                    "seconds": round(one.seconds, 3),
                    "detail": one.detail,
                }
                result = "ok" if one.ok else "FAILED"
                records.add(told, [result, told["seconds"], one.check, one.detail or ""])
                if not one.ok:
                    failed.append(one.check)
            records.summary({"suite": suite.name, "hub": None if hub is None else hub.url, "failed": len(failed)})

    asyncio.run(work())
    if failed:
        raise Fail(
            Exit.SELFTEST,
            f"{len(failed)} of {len(suite.checks)} checks failed",
            "; ".join(failed),
            "the table above says why; `veen doctor` looks at this machine",
            "E.SELFTEST",
        )
    output.note(f"all {len(suite.checks)} checks of {suite.name} passed")


@click.command()
@output_options
@client_options
def overlays(output: Output, session: Session) -> None:
    """Drive every overlay of everyday use end to end: seal, order, prove, read, fold, compare.

    Starts hubs of its own, as processes, and removes them again. With --hub or --context the hub named there is used,
    under streams that nobody else has; it must admit clients without capabilities. What needs a second hub, or one of
    a certain configuration, still starts its own.

    \b
    veen selftest overlays
    veen selftest overlays --hub http://127.0.0.1:8080 --pin ed25519:HEX
    """
    _run(output, session, "overlays")


def veen_selftest_main() -> NoReturn:
    """`veen-selftest core --hub URL` is `veen selftest core --hub URL` (spec-4 §8)."""
    from veen.cli.app import main

    sys.argv[1:1] = ["selftest"]
    main()
