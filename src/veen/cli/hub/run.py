"""`veen hub start`, `stop` and `config`.

`veen hub start --dev` runs a hub for trials: it keeps its directory and port, and a context has its key.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from veen.cli.hub.common import ACCEPT_CLOCK, DATA_DIR, holder_of, open_directory
from veen.cli.shared import options
from veen.cli.shared.command import several
from veen.cli.shared.failures import failing_as
from veen.cli.shared.output import Exit, Fail, Output, output_options
from veen.io.local import OsFs

if TYPE_CHECKING:
    from veen.hub.process.config import HubConfig

DEV_CONTEXT: Final = "dev"
_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that systems hand out by themselves


def check_name(name: str) -> None:
    from veen.client.config.file import context_name

    try:
        context_name(name)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def default_directory() -> Path:
    """Return the default directory of `veen hub start --dev`."""
    from veen.client.home import Home, PrivateFs

    home = Home.default()
    PrivateFs(home.data).make_dir("")
    return home.data / "dev-hub"


def port_of(output: Output, data_dir: Path, asked: str | None) -> int:
    """Return the port of a directory: the same each time, since it follows from the path; 0 if it is taken."""
    from veen.core.hashing import Ht

    if asked is not None:
        return 0  # --port outranks it
    place = os.path.realpath(data_dir)
    port = _FIRST_PORT + int.from_bytes(Ht("veen/dev-port", os.fsencode(place))[:8]) % _PORTS
    if data_dir.is_dir() and holder_of(OsFs(data_dir)) is not None:
        return port  # it runs already, which the hub will say itself
    if _is_free(port):
        return port
    output.note(f"port {port}, which belongs to {data_dir}, is taken by another program; the hub takes a free one")
    return 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def register(output: Output, about: dict[str, Any], name: str) -> bool:
    """Name the hub, with its address and key, as a context that makes missing keys; False if the name is in use.

    The pin is what this very process has read from the hub's own files. A context of that name which somebody made for
    another hub stays as it is.
    """
    from veen.client.config.file import read
    from veen.client.config.projects import change
    from veen.client.home import Home
    from veen.client.identity.unlocking import make_passphrase_file

    home = Home.default()
    file = read(home.config_file)
    before = file.contexts.get(name)
    if before is not None and before.get("hub_pk") != about["pin"] and not before.get("make_keys"):
        output.note(
            f"the context {name!r} names another hub ({before.get('hub')}), so this one is not registered;"
            " choose a name: --context NAME"
        )
        return False
    values: dict[str, Any] = {"hub": about["url"], "hub_pk": about["pin"], "hub_id": about["hub_id"], "make_keys": True}
    if before is None:
        passphrase_file = home.config / f"{name}.passphrase"
        values |= {"identity": name}
        if not home.has_identity(name) or passphrase_file.exists():
            make_passphrase_file(passphrase_file)
            values |= {"passphrase_file": str(passphrase_file)}
    elif before.get("hub_pk") != about["pin"]:
        output.note(f"the context {name!r} now names this hub; the one before it had the key {before.get('hub_pk')}")
    if about["pin"].startswith("root:"):
        values["hub_id"] = None  # another one is another of its hubs
    changes = {f"context.{name}.{key}": value for key, value in values.items()}
    if "current_context" not in file.top:
        changes["current_context"] = name
    elif file.top["current_context"] != name:
        output.note(
            f"the context {file.top['current_context']!r} stays in use; to choose this hub: veen context use {name}"
        )
    change(home.config_file, changes)
    return True


_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_POLL_SECONDS: Final = 0.05


_SETTINGS: Final = several(  # the options from which a configuration is made
    click.option(
        "--config", "-c", "file", type=_FILE, help="Configuration file in TOML or YAML: see docs/configuration.md."
    ),
    click.option("--data-dir", help=options.HUB_DIR),
    click.option("--profile", "--role", "role", help="Profile of the hub: authority or tenant."),
    click.option("--keys-dir", help="Directory of the private keys. Default: the data directory."),
    click.option("--host", help=options.HOST),
    click.option("--port", help=options.PORT),
    click.option("--log-level", help=options.LOG_LEVEL),
    click.option(
        "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Value of any key of the configuration. Repeatable."
    ),
)
_FLAGS: Final = {
    "data_dir": "data_dir",
    "role": "role",
    "keys_dir": "keys_dir",
    "host": "listen.host",
    "port": "listen.port",
    "log_level": "log.level",
}


def _flags(options: dict[str, Any], pairs: tuple[str, ...]) -> dict[str, str]:
    from veen.hub.process.config import SETTINGS, ConfigError

    flags = {_FLAGS[name]: value for name, value in options.items() if value is not None}
    keys = {setting.key for setting in SETTINGS}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in keys:
            raise ConfigError(
                "flag --set", key, "no such key" if equals else "expected KEY=VALUE", "See `veen hub config`."
            )
        flags[key] = value
    return flags


@click.command()
@_SETTINGS
@click.option(
    "--dev", is_flag=True, help="Run a hub for trying things: loopback, a fixed port, no capabilities needed."
)
@click.option("--context", "context_name", help="Context to register the hub as. Requires --dev.")
@ACCEPT_CLOCK
@click.option("--detach", is_flag=True, help="Run in the background; return once the hub listens.")
@click.option("--ready-fd", type=int, hidden=True)
@output_options
def start(
    output: Output,
    file: Path | None,
    pairs: tuple[str, ...],
    dev: bool,
    context_name: str | None,
    accept_clock: bool,
    detach: bool,
    ready_fd: int | None,
    **options: Any,
) -> None:
    """Run a hub until SIGTERM or Ctrl-C. A new data directory gets an identity; an old one goes on where it was.

    With --dev and no --data-dir the hub has a directory in your home and registers itself as the context `dev`, with
    its key: `veen send STREAM TEXT` works at once, and makes the keys that it needs. With --data-dir, --context NAME
    registers it.

    \b
    veen hub start --dev
    veen hub start --dev --data-dir ./hub --context try
    veen hub start --data-dir ./hub --config hub.toml
    veen-hub --profile=tenant --config=/etc/veen/hub.yaml --data-dir=/var/lib/veen
    """
    from veen.hub.process.config import load

    if context_name is not None and not dev:
        raise click.UsageError("--context requires --dev")
    if dev and options["data_dir"] is None and "VEEN_DATA_DIR" not in os.environ:
        context_name = context_name or DEV_CONTEXT
    if context_name is not None:
        check_name(context_name)
    defaults = _dev_defaults(output, options) if dev else {}

    def read() -> "HubConfig":
        guard = {"dev": "true"} if dev else {}  # behind what others say: --dev is never without it
        return load(file, os.environ, {**defaults, **_flags(options, pairs), **guard})

    with _report_failure(ready_fd), failing_as("the hub cannot start"):
        settings = read()
        if detach:
            _announce(output, _detach(settings, is_named=options["data_dir"] is not None), context_name)
            return
        from veen.cli.hub.common import pin_for_clients
        from veen.hub.process.process import run
        from veen.hub.process.runtime import Hub

        def ready(hub: Hub) -> None:
            root = hub.identity.held.root
            pin = pin_for_clients(hub.identity.held.identity, None if root is None else root.public)
            data = _about(hub.url, hub.identity.current_pk, hub.identity.hub_id, pin.to_text(), settings.data_dir)
            if hub.transport_urls:
                data["transports"] = list(hub.transport_urls)
            if ready_fd is not None:
                with os.fdopen(ready_fd, "w") as pipe:
                    pipe.write(json.dumps(data))
            else:
                _announce(output, data, context_name)

        code = run(settings, read, ready, accept_clock=accept_clock)
    if code:
        raise Fail(
            "E.STORAGE",
            "the hub stopped by itself",
            "it could not keep its promises any longer; its log has the reason",
            f"veen hub verify-data {settings.data_dir}",
        )


@contextlib.contextmanager
def _report_failure(ready_fd: int | None) -> Iterator[None]:
    """Report the failure to the process that started this one by --detach."""
    try:
        yield
    except Fail as exc:
        if ready_fd is not None:
            parts = {"code": exc.code, "what": exc.what, "cause": exc.cause, "hint": exc.hint}
            with contextlib.suppress(OSError), os.fdopen(ready_fd, "w") as pipe:  # closed if the hub had started
                pipe.write(json.dumps({"failed": {**parts, "exit_code": int(exc.exit_code)}}))
        raise


def _dev_defaults(output: Output, options: dict[str, Any]) -> dict[str, str]:
    data_dir = options["data_dir"] or os.environ.get("VEEN_DATA_DIR")
    if data_dir is None:
        data_dir = options["data_dir"] = str(default_directory())
    return {
        "listen.port": str(port_of(output, Path(data_dir), options["port"])),
        "admission.capability_gating": "false",
        "admission.stream_scope": "open",
        "engine.max_clock_step": "0",  # a hub for trying things is off for days
    }


def _about(url: str, hub_pk: bytes, hub_id: bytes, pin: str, data_dir: Path) -> dict[str, Any]:
    return {
        "url": url,
        "hub_pk": f"ed25519:{hub_pk.hex()}",
        "hub_id": hub_id.hex(),
        "pin": pin,  # what clients pin: the hub's first key, or the root of an ephemeral hub
        "data_dir": str(data_dir),
        "pid": os.getpid(),
    }


def _announce(output: Output, data: dict[str, Any], context_name: str | None) -> None:
    """Print the address of the hub. With --dev register it first, so that the printed commands work at once."""
    is_registered = context_name is not None and register(output, data, context_name)
    data = {**data, "context": context_name} if is_registered else data
    output.result(data)
    sys.stdout.flush()
    if is_registered:
        output.next('veen send orders "hello"')
    else:
        output.next(f"veen context add {context_name or 'dev'} --hub {data['url']} --pin {data['pin']}")


def _detach(settings: "HubConfig", *, is_named: bool) -> dict[str, Any]:
    """Start the same command in a new session, and wait until it prints its address.

    `is_named`: the command line has the directory, as DIR or as --data-dir.
    """
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--detach", "--json", "--ndjson")]
    if settings.log.file is None:
        log = settings.data_dir.with_name(f"{settings.data_dir.name}.log")
        arguments += ["--set", f"log.file={log}"]
    else:
        log = settings.log.file
    if not is_named:  # a directory made up for --dev must stay the same one
        arguments += ["--data-dir", str(settings.data_dir)]
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as pipe, _open_log(log) as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program and the arguments it got
                [sys.executable, "-m", "veen", *arguments, "--ready-fd", str(write_end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[write_end],
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        said = pipe.read()
    if not said:
        code = process.wait()
        tail = log.read_text("utf-8", "replace").strip().splitlines()[-3:]
        raise Fail(
            "E.LOCAL",
            "the hub did not start",
            " | ".join(tail) or f"it ended with exit code {code}",
            f"read {log}, or start it without --detach",
            exit_code=Exit(code) if code in list(Exit) and code else Exit.LOCAL,
        )
    reply = json.loads(said)
    if (failed := reply.get("failed")) is not None:
        process.wait()
        texts = [str(failed[name]) for name in ("code", "what", "cause", "hint")]
        raise Fail(*texts, exit_code=Exit(failed["exit_code"]))
    return {**reply, "log": str(log)}


def _open_log(log: Path) -> IO[bytes]:
    """Open the log beside the data directory. Refuse a link: the owner of the directory may have planted it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(log, flags, 0o640), "ab")
    except OSError as exc:
        cause = "it is a symbolic link" if log.is_symlink() else str(exc.strerror)
        raise Fail("E.LOCAL", f"{log}: the log cannot be written", cause, "give --set log.file=FILE") from exc


@click.command()
@click.option("--data-dir", type=DATA_DIR, help=f"{options.HUB_DIR} Default: that of --dev.")
@click.option("--timeout", type=click.IntRange(1, 3600), default=60, show_default=True, help=options.TIMEOUT)
@output_options
def stop(output: Output, data_dir: Path | None, timeout: int) -> None:
    """Stop the hub that runs a data directory, and wait until it has finished its messages.

    \b
    veen hub stop
    veen hub stop ./hub
    """
    data_dir = data_dir or default_directory()
    with failing_as("the hub cannot be stopped"):
        fs = open_directory(data_dir)
        holder = holder_of(fs)
        if holder is None:
            output.result({"stopped": False, "running": False}, lambda: output.line(f"no hub runs {data_dir}"))
            return
        with contextlib.suppress(ProcessLookupError):  # it may have gone in this very moment
            os.kill(holder.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while holder_of(fs) is not None:
            if time.monotonic() > deadline:
                raise Fail(
                    "E.TIMEOUT",
                    f"the hub (pid {holder.pid}) is still running",
                    f"it did not finish within {timeout} seconds",
                    f"veen hub stop --data-dir {data_dir} --timeout 600",
                )
            time.sleep(_POLL_SECONDS)
    data = {"stopped": True, "pid": holder.pid}
    output.result(data, lambda: output.line(f"stopped the hub of {data_dir} (pid {holder.pid})"))


@click.command()
@_SETTINGS
@output_options
def config(output: Output, file: Path | None, pairs: tuple[str, ...], **options: Any) -> None:
    """Show every key, its value, and whether a flag, a variable, the file or the default set it.

    A hub would start from exactly this; nothing is started. Exit code 5 means it would refuse.
    """
    from veen.hub.process.config import load

    with failing_as("the hub would not start"):
        settings = load(file, os.environ, _flags(options, pairs))
        shown = list(settings.rows())
    data = {key: {"value": value, "origin": origin} for key, value, origin in shown}
    output.result(
        data, lambda: output.fields((key, f"{json.dumps(value)}  ({origin})") for key, value, origin in shown)
    )
