"""Checks of the core for all verifying commands, and the output of their outcome.

Layout of a verdict on a terminal, its member in JSON, and the exit status of the command.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared import options
from veen.cli.shared.files import hex32, read_object
from veen.cli.shared.output import Exit, Fail, Output
from veen.core.verdict import Because, Coverage, Outcome, Signatures, Verdict

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.core.checks import Given
    from veen.core.wire import Wire

_MANY: Final = 12  # logs that a terminal gets a row each for
_STYLES: Final = {Outcome.GOOD: "good", Outcome.BAD: "bad", Outcome.INCOMPLETE: "warn"}
_HINTS: Final = {
    Because.EVIDENCE: "keep it as evidence; compare it with a copy that somebody else has",
    Because.COVERAGE: "give what was not read or the address of the hub, and verify again; veen explain E.INCOMPLETE",
    Because.POLICY: "get what the policy asks for, or verify under another policy",
    Because.DERIVED: "rebuild what is derived from the log",
    Because.EFFECT: "look at the message that has no effect",
}
_CODES: Final = {Because.EVIDENCE: "E.VERIFY", Because.DERIVED: "E.INDEX"}


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return the members of every verifying command in JSON: `ok`, and `verdict` with what was compared."""
    return {"ok": verdict.is_good, "verdict": verdict.to_json()}


def show_verdict(output: Output, verdict: Verdict) -> None:
    """Print the verdict for people and pipes: the value, the compared logs, and the reasons."""
    value = verdict.value
    output.line(f"verdict: {verdict.headline}", _STYLES[value])
    for row in verdict.compared[:_MANY]:
        output.line(f"  compared {_row(row)}")
    if len(verdict.compared) > _MANY:
        rest = verdict.compared[_MANY:]
        output.line(
            f"  compared {len(rest)} more logs, {sum(row.read for row in rest)} entries, "
            f"{sum(row.behind for row in rest)} behind their heads"
        )
    for reason in verdict.reasons[:_MANY]:
        output.line(f"  {reason.because.value}: {reason.text}", _STYLES[value])
    if len(verdict.reasons) > _MANY:
        output.line(f"  and {len(verdict.reasons) - _MANY} more reasons; --json lists all", _STYLES[value])


def _row(row: Coverage) -> str:
    head = "no stated head" if row.head is None else f"head {row.head} stated by {row.stated_by.value}"
    key = "keys not pinned" if row.identity is None else f"under {row.identity}"
    extent = f"read up to {row.read}" if row.first == 1 else f"read {row.first} to {row.read}"
    signatures = "" if row.signatures is Signatures.ALL else f", signatures: {row.signatures.value}"
    return f"{row.log}: {extent}, {head}, {key}{signatures}"


def end_by(verdict: Verdict, what: str, *, code: str | None = None, hint: str | None = None) -> None:
    """End the command unless the verdict is good: exit 1 for bad evidence, 6 for an incomplete verdict.

    `code` replaces the code of the first reason, for a command with its own code.
    """
    reason = verdict.first
    if reason is None:
        return
    headline = f"{what}: the evidence is BAD" if verdict.value is Outcome.BAD else f"{what}: the verdict is incomplete"
    raise Fail(
        code or _CODES.get(reason.because, "E.INCOMPLETE"),
        headline,
        reason.text,
        hint or _HINTS[reason.because],
        exit_code=Exit(verdict.value.exit_status),
    )


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
