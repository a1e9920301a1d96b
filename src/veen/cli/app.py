"""The command tree, and the end of every run: an exit code, and never a traceback."""

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, cast

import click

from veen import __version__
from veen.cli.guesses import GUESSES
from veen.cli.lazy import LazyGroup, Table
from veen.cli.shared.log_lines import LogLines, install, is_asked_for
from veen.cli.shared.output import Exit, Fail, Output, report, sniff_mode

__all__ = ["COMMANDS", "GUESSES", "SECTIONS", "LazyGroup", "cli", "main", "run_line"]

COMMANDS: Table = {
    "audit": ("veen.cli.evidence.audit:audit", "Check a whole log, on this machine or on a Spark cluster."),
    "anchor": (
        "veen.products.anchoring:PRODUCT",
        "Publish and verify roots: file, timestamp authority, another hub (ANCHOR0).",
    ),
    "attachment": ("veen.cli.messages.send:attachment", "Files that travel with a message, sealed like it."),
    "authorize": ("veen.cli.capabilities.group:authorize", "Show a capability token to the hub."),
    "bench": ("veen.cli.setup.bench:bench", "Throughput of a hub from here."),
    "bridge": ("veen.products.bridge:PRODUCT", "Carry events over an air gap, with their evidence (AGB0)."),
    "cap": ("veen.cli.capabilities.group:cap", "Capability tokens: who may write where, until when."),
    "checkpoint": ("veen.cli.evidence.proof:checkpoint", "Checkpoints: the hub's signatures over whole logs."),
    "connect": ("veen.products.issuance:PRODUCT", "Find a service in the directory and connect to it."),
    "disc": ("veen.cli.disc.group:disc", "A directory of hubs, overlays and services (001 spec-5)."),
    "equivocation": ("veen.cli.evidence.equivocation:equivocation", "Proof that a hub told two stories."),
    "evidence": ("veen.cli.evidence.files:evidence", "Entries with all their proofs as one file, for outsiders."),
    "pending": ("veen.cli.messages.pending:pending", "Messages without a receipt: list, send, drop."),
    "proof": ("veen.cli.evidence.proof:proof", "Inclusion proofs, also as a picture."),
    "query": ("veen.cli.lake.query:query", "Ask recorder events; results that anyone can check."),
    "recorder": ("veen.products.recorder:PRODUCT", "Record events of any source, each exactly once, with evidence."),
    "receipt": ("veen.cli.evidence.proof:receipt", "Receipts: the hub's signed statement about an entry."),
    "resync": ("veen.cli.messages.resync:resync", "Read a log to its end and rebuild its stored state."),
    "send": ("veen.cli.messages.send:send", "Seal a message, send it, verify its receipt."),
    "spark": ("veen.cli.lake.spark:spark", "Run on a cluster, look at schemas, open a shell."),
    "shell": ("veen.cli.setup.shell:shell", "Run several commands with one opening of the keystore."),
    "stream": ("veen.cli.messages.stream:stream", "Read a stream, every entry verified."),
    "table": ("veen.cli.lake.table:table", "Tables of a log in Parquet: entries, events, states."),
    "tail": ("veen.cli.messages.stream:tail", "Show what is written to a stream from now on."),
    "verify-state": ("veen.cli.messages.resync:verify_state", "Check the stored state of logs on this machine."),
    "contacts": ("veen.cli.people.contacts:contacts", "People: identity cards under names."),
    "inbox": ("veen.cli.people.contacts:inbox", "Messages that others sent to you alone."),
    "invite": ("veen.cli.people.invite:invite", "Invite a person to a stream, by one file."),
    "join": ("veen.cli.people.invite:join", "Use an invitation: pin the hub, keep keys and token."),
    "keys": ("veen.cli.people.keys:keys", "Keys of shared streams: generations, readers, owner."),
    "revoke": ("veen.cli.people.keys:revoke", "Revoke the right of a person to write or to read."),
    "crdt": ("veen.cli.overlays.crdt:crdt", "Registers, sets and counters that writers agree on (CRDT0)."),
    "crud": ("veen.cli.overlays.crud:crud", "Records by entity and id, with revisions."),
    "fold": ("veen.cli.lake.fold:fold", "States of streams: any overlay, at any moment."),
    "kv": ("veen.cli.overlays.kv:kv", "Values by key, the last writer wins."),
    "op": ("veen.cli.op.group:op", "Payments, grants, agreements, publications, recoveries, audits (001 spec-3)."),
    "queue": ("veen.cli.overlays.queue:queue", "Work items, delivered at least once to every group."),
    "rpc": ("veen.cli.overlays.rpc:rpc", "Calls and answers as messages."),
    "selftest": ("veen.products.selftest:PRODUCT", "Test a hub and its clients end to end."),
    "wallet": ("veen.cli.wallet.group:wallet", "Accounts on a log: pay, limit, freeze, state, prove."),
    "agent": ("veen.cli.setup.agent:agent", "Type a passphrase once: keystores stay open for a while."),
    "keystore": ("veen.cli.setup.keystore:keystore", "Have the desktop keyring open keystores, or no longer."),
    "completion": ("veen.cli.setup.completion:completion", "Print the completion script of a shell."),
    "console": ("veen.products.console:PRODUCT", "Look at logs in a browser, served from this machine."),
    "config": ("veen.cli.setup.config:config", "Show and change settings, and their origins."),
    "context": ("veen.cli.setup.context:context", "Name hubs, pin their keys, and choose one."),
    "demo": ("veen.products.demo:PRODUCT", "Watch the whole idea at work: seal, order, prove, tamper, detect."),
    "docs": ("veen.cli.setup.topics:docs", "Read the documentation: tutorials, how-to pages, reference."),
    "doctor": ("veen.cli.setup.doctor:doctor", "Check keys, configuration, contexts and clocks; say how to mend each."),
    "explain": ("veen.cli.setup.topics:explain", "Explain an error code, and what to do about it."),
    "help": ("veen.cli.setup.topics:help_", "Help on a command, or on a topic such as exit-codes."),
    "id": ("veen.cli.identity.group:id_", "Identities: make, show, rotate, move; and the keys of streams."),
    "keygen": ("veen.cli.identity.group:keygen", "Make an identity: keys of your own."),
    "hub": ("veen.cli.hub.group:hub", "Run a hub and look after its data directory."),
    "kube": ("veen.products.kube:PRODUCT", "Hubs on Kubernetes: manifests, checks, tenants (spec-4)."),
    "inspect": ("veen.cli.evidence.verify:inspect", "Show what any wire object holds; no keys needed."),
    "replica": ("veen.products.federation:PRODUCT", "Follow a hub without its keys, serve its log, take its place."),
    "mirror": ("veen.products.federation:PRODUCT", "State or copy entries of another hub in a stream of this one."),
    "monitor": ("veen.products.witness:PRODUCT", "Read the outer logs of hubs, and find contradictions."),
    "witness": ("veen.products.witness:PRODUCT", "Witnesses of logs: run one, and policies of k of n."),
    "label": ("veen.cli.label.group:label", "Labels: the part of a stream that a hub sees."),
    "label-class": (
        "veen.cli.label.label_class:label_class",
        "Hints about labels: padding, rate, retention (LCLASS0).",
    ),
    "policy": ("veen.products.policy:PRODUCT", "Revocations and primaries of a realm, and hubs that enforce them."),
    "pow": ("veen.cli.capabilities.group:pow_", "Proof of work that a hub asks for."),
    "schema": ("veen.cli.label.schemas:schema", "Payload schemas: their ids, and the registry of them (META0+)."),
    "verify": (
        "veen.cli.evidence.verify:verify",
        "Check any artefact: an evidence file, an object, a data directory, an export.",
    ),
    "version": ("veen.cli.setup.completion:version", "Print the version."),
    "vesn": ("veen.products.vesn:PRODUCT", "Logs of VESN, the predecessor: verify, look into, archive, mirror."),
}

# One row for each heading of `veen --help`, in the order of the page: the commands that most people need come first. A
# new command is added to one row.
SECTIONS: Sequence[tuple[str, Sequence[str]]] = (
    ("Start", ("demo", "keygen", "send", "stream", "tail", "help", "docs", "explain", "doctor")),
    ("Trust", ("verify", "evidence", "proof", "receipt", "checkpoint", "audit", "equivocation", "inspect")),
    ("Together", ("invite", "join", "revoke", "contacts", "keys", "inbox", "cap", "authorize", "agent", "keystore")),
    ("Messages", ("attachment", "pending", "resync", "verify-state", "shell")),
    ("Products", ("recorder", "query", "bridge", "console", "vesn")),
    ("Operate", ("hub", "policy", "anchor", "witness", "mirror", "replica", "monitor", "kube", "selftest", "bench")),
    ("State", ("kv", "crud", "queue", "crdt", "rpc", "wallet", "op", "fold", "disc")),
    ("Names", ("label", "label-class", "schema", "pow", "connect")),
    ("Bulk", ("table", "spark")),
    ("Set up", ("context", "id", "config", "completion", "version")),
)


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    sections=SECTIONS,
    detailed=3,
    guesses=GUESSES,
    find="veen.cli.shared.nouns:installed",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="veen")
@click.option("--batch", metavar="FILE", help="Run the commands in FILE, one a line; the same as veen shell FILE.")
@click.pass_context
def cli(ctx: click.Context, batch: str | None) -> None:
    """VEEN: a verifiable, end-to-end encrypted log that nobody has to trust.

    \b
    veen demo                              see it work, in seconds
    veen hub start --dev                   a hub to try
    veen send orders "hello"               sealed, sent, receipt verified
    veen stream orders                     read back, every entry verified

    Every command takes --help, --json and --json-schema; `veen help exit-codes` lists what the exit codes mean.
    """
    if ctx.invoked_subcommand is not None:
        if batch is not None:
            raise click.UsageError("--batch takes no command beside it")
    elif batch is not None:
        ctx.exit(_run_batch(batch))
    else:
        click.echo(ctx.get_help())


def _run_batch(file: str) -> int:
    from pathlib import Path

    from veen.cli.setup.shell import run_script

    if file != "-" and not Path(file).is_file():
        raise click.UsageError(f"--batch {file}: there is no such file")
    output = Output()
    try:
        return run_script(output, Path(file), keep_going=False)
    except Fail as fail:
        report(output, fail)
        return fail.exit_code


def main() -> NoReturn:
    """Run the command line. Ends the process with one of the exit codes of `Exit`."""
    from veen.io.core_files import forbid_core_files  # not for whoever only asks for help

    try:
        for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode gets escapes, not a crash
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are TextIOWrapper here
        forbid_core_files()  # commands and hubs hold private keys
        if os.getpid() == 1:  # in a container: the kernel ignores SIGTERM for process 1 unless it is handled
            signal.signal(signal.SIGTERM, _end_by_signal)
        # Ctrl-C may come between making a coroutine and starting it, which is no news to a person.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        if is_asked_for(os.environ):
            operation = _path_of(sys.argv[1:]).removeprefix("veen").strip()
            install(sys.argv[1:], operation, keep_stdout=sniff_mode(sys.argv[1:]) is not None)
        code = run_line(sys.argv[1:])
    except KeyboardInterrupt:  # before the command began, while its end was reported, or a second one
        code = Exit.INTERRUPTED
    for lines in (sys.stdout, sys.stderr):
        if isinstance(lines, LogLines):
            lines.finish()
    sys.exit(code)


def _end_by_signal(number: int, _frame: object) -> NoReturn:
    """End like a program that a signal stops. Commands that run for long have their own handlers."""
    sys.exit(128 + number)


def run_line(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. All output has been written then."""
    # Errors follow the command's own choice of form, also when its options cannot be parsed.
    output, stdout = Output(sniff_mode(arguments)), sys.stdout
    try:
        return int(cli.main(args=list(arguments), prog_name="veen", standalone_mode=False) or 0)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        fail = _interrupted()
    except SystemExit as exc:  # so click ends a completion; and if the reader of our output went away, as `head` does:
        return int(exc.code or 0) if sys.stdout is stdout else Exit.OK  # then it has put something else there
    except click.exceptions.NoArgsIsHelpError as exc:  # a group without a command: its help is the answer
        click.echo(exc.format_message(), err=True)
        return Exit.USAGE
    except click.FileError as exc:
        fail = Fail("E.LOCAL", "a file cannot be used", exc.format_message(), "check the path")
    except click.UsageError as exc:
        from veen.cli.guesses import hint_for

        hint = getattr(exc, "hint", None) or hint_for(exc, _command_path(exc, arguments))
        fail = Fail("E.USAGE", "usage", exc.format_message().replace("\n\t", " "), hint)  # click lists choices in lines
    except click.ClickException as exc:
        fail = Fail("E.USAGE", "usage", exc.format_message(), "veen --help")
    except Exception as exc:
        from veen.cli.shared.failures import failure_of

        fail = _interrupted() if _follows_interrupt(exc) else failure_of(exc)
    report(output, fail)
    return fail.exit_code


def _interrupted() -> Fail:
    return Fail("E.INTERRUPTED", "interrupted", "it was stopped before it finished", "run it again")


def _follows_interrupt(error: Exception) -> bool:
    """Return True if `error` was raised while an interrupt ended the command, by something that it left half done."""
    context: BaseException | None = error
    visited: set[int] = set()
    while context is not None and id(context) not in visited:
        if isinstance(context, KeyboardInterrupt):
            return True
        visited.add(id(context))
        context = context.__context__
    return False


def _command_path(error: click.UsageError, arguments: Sequence[str]) -> str:
    """Return the command that a usage error is about, also where click does not state it: `veen tail`."""
    if error.ctx is not None and error.ctx.parent is not None:
        return error.ctx.command_path
    return _path_of(arguments)


def _path_of(arguments: Sequence[str]) -> str:
    """Return the names of the program and of the command that a command line begins with."""
    context, command = click.Context(cli, info_name="veen"), cast("click.Command", cli)
    for word in arguments:
        try:
            subcommand = command.get_command(context, word) if isinstance(command, click.Group) else None
        except click.UsageError:  # a package that cannot be imported: the error names it already
            break
        if subcommand is None:
            break
        context, command = click.Context(subcommand, info_name=word, parent=context), subcommand
    return context.command_path
