"""Layout of a verdict on a terminal, its member in JSON, and the exit status of the command."""

from typing import Any, Final

from veen.cli.shared.output import Exit, Fail, Output
from veen.core.verdict import Because, Coverage, Outcome, Signatures, Verdict

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
