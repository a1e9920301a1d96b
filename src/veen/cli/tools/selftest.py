"""`veen selftest` and `veen-selftest`: try end to end what a deployment promises (001 spec-4 §8)."""

import sys
from typing import Any, NoReturn

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Fail, Output

__all__ = ["bridge", "overlays", "recorder", "selftest", "veen_selftest_main"]

selftest = LazyGroup(
    "selftest", help="Try end to end what a hub and its clients promise. Exit code 7 if a check fails."
)


def _run(output: Output, session: CliSession, name: str) -> None:
    """The suite against the hub that was named by --hub or --context, or against hubs started for it."""
    import asyncio

    from veen.selftest import suite_named
    from veen.selftest.suite import run
    from veen.selftest.world import HubAt

    hub = None
    if session.settings.hub.value is not None:
        hub = HubAt(url=session.hub_url, pin=session.pin)
    suite = suite_named(name)
    failed: list[str] = []
    columns = ("result", "seconds", "check", "detail")

    async def work() -> None:
        with output.records("checks", columns, widths=(6, 7, 62)) as records:
            async for outcome in run(suite, hub=hub):
                row: dict[str, Any] = {
                    "suite": outcome.suite,
                    "check": outcome.check,
                    "ok": outcome.ok,
                    "seconds": round(outcome.seconds, 3),
                    "detail": outcome.detail,
                }
                result = "ok" if outcome.ok else "FAILED"
                records.add(row, [result, row["seconds"], outcome.check, outcome.detail or ""])
                if not outcome.ok:
                    failed.append(outcome.check)
            records.summary({"suite": suite.name, "hub": None if hub is None else hub.url, "failed": len(failed)})

    asyncio.run(work())
    if failed:
        raise Fail(
            "E.SELFTEST",
            f"{len(failed)} of {len(suite.checks)} checks failed",
            "; ".join(failed),
            "the table above says why; `veen doctor` looks at this machine",
        )
    output.note(f"all {len(suite.checks)} checks of {suite.name} passed")


@selftest.verb("overlays", "Every overlay of everyday use, between several identities.")
@client_options
def overlays(output: Output, session: CliSession) -> None:
    """Drive every overlay of everyday use end to end: seal, order, prove, read, fold, compare.

    Starts hubs of its own, as processes, and removes them again. With --hub or --context the hub named there is used,
    under streams that nobody else has; it must admit clients without capabilities. What needs a second hub, or one of
    a certain configuration, still starts its own.

    \b
    veen selftest overlays
    veen selftest overlays --hub http://127.0.0.1:8080 --pin ed25519:HEX
    """
    _run(output, session, "overlays")


@selftest.verb("bridge", "The air-gap bridge between two hubs (AGB0).")
@client_options
def bridge(output: Output, session: CliSession) -> None:
    """Carry events over an air gap between two hubs, damage a bundle on the way, and reconcile both zones.

    Starts two hubs of its own, as processes, and removes them again.

    \b
    veen selftest bridge
    """
    _run(output, session, "bridge")


@selftest.verb("recorder", "The recorder: emit, checkpoint, verify, replay with proofs.")
@client_options
def recorder(output: Output, session: CliSession) -> None:
    """Drive a recorder end to end: roles, an agent that is started twice, checkpoints, verification, replay.

    Always on a hub of its own, as a process: the names of a recorder's streams are fixed, and on a hub that has a
    recorder the checks would write into them.

    \b
    veen selftest recorder
    """
    _run(output, session, "recorder")


def veen_selftest_main() -> NoReturn:
    """`veen-selftest core --hub URL` is `veen selftest core --hub URL` (spec-4 §8)."""
    from veen.cli.app import main

    sys.argv[1:1] = ["selftest"]
    main()
