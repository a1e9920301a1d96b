"""Checks of the core for all verifying commands, and the output of their outcome."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared import options
from veen.cli.shared.files import hex32, read_object
from veen.cli.shared.output import Exit, Fail, Output
from veen.cli.shared.verdicts import verdict_json

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.core.checks import Given
    from veen.core.wire import Wire

HUB_PK = click.option(
    "--hub-pk",
    "trusted",  # `hub_pk` is the pin
    type=hex32,
    multiple=True,
    help=options.HUB_PK,
)


def resolve_keys(session: "CliSession", keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the given keys, or else the pinned one; ask nobody, on the network or here.

    A pinned root signs only identities: the keys are those of all its hubs that this machine has met.
    """
    if keys or session.settings.hub_pk.value is None:
        return keys
    pinned = session.pinned
    if not pinned.is_root:
        return (pinned.public,)
    from veen.client.state import StateStore

    with StateStore.open(session.home, session.identity_name) as store:
        met = [pin for pin in store.pins() if pin.root_pk == pinned.public and session.hub_id in (None, pin.hub_id)]
    return tuple(key.hub_pk for pin in met for key in pin.keys)


def read_as(file: Path, kind: "type[Wire] | None") -> "tuple[bytes, Wire]":
    data, recognised = read_object(file, exit_code=Exit.BAD_EVIDENCE)
    if kind is not None and not isinstance(recognised.obj, kind):
        raise Fail("E.USAGE", f"{file}: not a {kind.KIND}", f"it is a {recognised.obj.KIND}", f"veen verify {file}")
    return data, recognised.obj


def check_object(file: Path, obj: "Wire", inputs: "Given") -> list[str]:
    """Return the checks that were made. Raise Fail if one fails, or if its input is missing."""
    from veen.core.checks import MissingInput, check
    from veen.core.errors import VeenError

    try:
        return check(obj, inputs)
    except MissingInput as exc:
        hint = "add --hub-pk HEX" if "public key" in str(exc) else "add it by --with FILE (or --root HEX --size N)"
        raise Fail("E.USAGE", f"{file}: cannot be verified yet", str(exc), hint) from exc
    except VeenError as exc:
        raise Fail("E.VERIFY", f"{file}: verification FAILED", str(exc), exc.hint) from exc


def show_checks(
    output: Output,
    file: Path,
    data: bytes,
    obj: "Wire",
    checks: Sequence[str],
    *,
    trusted: Sequence[bytes] = (),
    **more: Any,
) -> None:
    """Print the verdict over one object that passed its checks. One object is a log of one entry."""
    from veen.core.verdict import Coverage, StatedBy, Verdict

    identity = ", ".join(f"ed25519:{key.hex()}" for key in trusted) or None
    verdict = Verdict.of(
        [Coverage(log=f"{obj.KIND} {file}", read=1, head=1, stated_by=StatedBy.FILE, identity=identity)]
    )

    def human() -> None:
        output.line(f"{obj.KIND} verified: {file}", good=f"{obj.KIND} verified")
        for line in checks:
            output.line(f"  ok  {line}", good="ok")

    facts = {**verdict_json(verdict), "kind": obj.KIND, "bytes": len(data), "checks": list(checks), **more}
    output.result(facts, human)


def verify_file(
    output: Output,
    session: "CliSession",
    file: Path,
    kind: "type[Wire]",
    trusted: tuple[bytes, ...],
    related: tuple[Path, ...] = (),
    **given: Any,
) -> None:
    """Verify the one object of a known kind in `file`, with given or pinned keys."""
    from veen.core.checks import Given

    data, obj = read_as(file, kind)
    others = tuple(read_as(path, None)[1] for path in related)
    keys = resolve_keys(session, trusted)
    checks = check_object(file, obj, Given(hub_pks=keys, related=others, **given))
    show_checks(output, file, data, obj, checks, trusted=keys)
