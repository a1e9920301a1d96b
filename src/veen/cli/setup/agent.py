"""`veen agent`: opened keystores stay open for a while, so that a passphrase is typed once."""

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, home_options
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from collections.abc import Mapping

agent = LazyGroup(
    "agent",
    help="""Type a passphrase once: keystores that were opened stay open for a while.

    While an agent runs, the key of each keystore that a command opens is handed to it. Other commands and programs of
    the same user then open the keystore without asking, until the time is over. The agent keeps no passphrase.
    """,
)


@agent.verb("start", "Keep keystores open from now on.")
@click.option(
    "--for", "span", type=SPAN, default="1h", show_default=True, help="Time for which each key is kept: 90s, 10m, 8h."
)
@click.option("--foreground", is_flag=True, help="Run in the foreground.")
@click.option("--ready-fd", type=int, hidden=True)
@home_options
def start(output: Output, session: CliSession, span: int, foreground: bool, ready_fd: int | None) -> None:
    """Start an agent in the background.

    It ends by `veen agent stop`, or when it held no key for as long as it keeps one.

    \b
    veen agent start
    veen agent start --for 8h
    """
    from veen.client.agent import MAX_SECONDS, ask, serve

    if not 1 <= span <= MAX_SECONDS:
        raise click.UsageError(f"--for: keys are kept for a second up to {MAX_SECONDS // 86_400} days")
    home = session.user_home
    if foreground:
        serve(home, span, lambda: _tell_ready(output, span, ready_fd))
        return
    running = ask(home, {"do": "status"})
    if running is None:
        _spawn(span)
        running = ask(home, {"do": "status"})
    if running is None:
        raise Fail("E.LOCAL", "the agent did not start", "it does not answer", "veen agent start --foreground")
    if running["seconds"] != span:
        output.note(f"the agent that runs keeps keys for {running['seconds']} seconds; for another span stop it first")
    _show(output, running)
    output.note("the next command that asks for a passphrase hands the opened keystore to it")


def _tell_ready(output: Output, span: int, ready_fd: int | None) -> None:
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w") as pipe:
            pipe.write("ready")
        return
    output.result({"pid": os.getpid(), "seconds": span})
    sys.stdout.flush()


def _spawn(span: int) -> None:
    """Start the same command in a new session, and return when it listens. Raise Fail with its error."""
    read_end, write_end = os.pipe()
    arguments = ["agent", "start", "--foreground", "--for", str(span), "--ready-fd", str(write_end), "--json"]
    with os.fdopen(read_end) as pipe:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "veen", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[write_end],
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(write_end)
        answer = pipe.read()
    assert process.stderr is not None  # noqa: S101 - a pipe, as asked for
    with process.stderr as errors:
        if answer:
            process.returncode = 0  # it goes on by itself: nobody waits for it
            return
        lines = errors.read().decode(errors="replace").strip().splitlines()
    process.wait()
    error: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    cause = str(error.get("cause") or (lines[-1] if lines else "it ended at once"))
    raise Fail("E.LOCAL", "the agent did not start", cause, str(error.get("hint") or "veen agent start --foreground"))


def _ask(session: CliSession, request: str) -> dict[str, Any] | None:
    from veen.client.agent import ask

    return ask(session.user_home, {"do": request})


@agent.verb("status", "State of the agent.")
@home_options
def status(output: Output, session: CliSession) -> None:
    """Show the agent and the keystores that it holds open, and for how long.

    \b
    veen agent status
    """
    answer = _ask(session, "status")
    if answer is None:
        output.result({"running": False}, lambda: output.line("no agent runs"))
        output.next("veen agent start")
        return
    _show(output, answer)


def _show(output: Output, answer: "Mapping[str, Any]") -> None:
    data = {"running": True, **answer}

    def human() -> None:
        output.line(f"an agent runs (pid {answer['pid']}); it keeps each key for {answer['seconds']} seconds")
        for row in answer["keys"]:
            output.line(f"  {row['name']}  open for {row['seconds_left']} seconds more")

    output.result(data, human)


@agent.verb("lock", "Close all keystores; the agent goes on.")
@home_options
def lock(output: Output, session: CliSession) -> None:
    """Forget all keys. The agent keeps running, and keeps keys that are opened later.

    \b
    veen agent lock
    """
    answer = _ask(session, "lock")
    count = 0 if answer is None else int(answer["forgotten"])
    output.result({"running": answer is not None, "forgotten": count}, lambda: output.line(f"{count} keys forgotten"))


@agent.verb("stop", "Forget all keys and end the agent.")
@home_options
def stop(output: Output, session: CliSession) -> None:
    """Forget all keys and end the agent.

    \b
    veen agent stop
    """
    stopped = _ask(session, "stop") is not None
    text = "the agent has ended" if stopped else "no agent runs"
    output.result({"stopped": stopped}, lambda: output.line(text))
