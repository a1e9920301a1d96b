"""Bulk reading of a log by commands: its place, the reader's keys, and the engine."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from veen.cli.shared import options
from veen.cli.shared.command import FILE, CliSession, name_of, several
from veen.cli.shared.output import Output

if TYPE_CHECKING:
    from veen.client.identity.keyring import Keyring
    from veen.core.objects.identity import HubIdentity
    from veen.lake.log.keys import KeyFile
    from veen.lake.log.options import HubAddress
    from veen.lake.spark.progress import Tell

DATA_DIR: Final = click.option("--data-dir", required=True, help=options.LOG_DIR)
DIR_OR_HUB: Final = click.option(
    "--data-dir",
    default="",
    help=f"{options.LOG_DIR} Default: the hub is asked (--hub, --context).",
)
KEY_FILE: Final = click.option(
    "--key-file", type=FILE, help="File of read keys (veen-stream1…), one per line. Default: your keyring."
)
ENGINE: Final = click.option(
    "--engine",
    type=click.Choice(["auto", "python", "spark"]),
    default="auto",
    show_default=True,
    help="python: one process, no Java. spark: all cores or a cluster. auto: by the size of the log. The same bytes.",
)
MASTER: Final = click.option("--master", help="Spark master. Default: all cores of this machine.")
PARTITIONS: Final = click.option(
    "--partitions", type=click.IntRange(min=1), help="Number of tasks. Default: by size of the log."
)
HUB_IDENTITY: Final = click.option("--hub-identity", type=FILE, help=options.HUB_IDENTITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """A log on disk or in an object store, and the options of reading it."""

    engine: Any  # "spark", "python" or "auto": click.Choice allows no other, and libraries want the literal
    master: str | None
    data_dir: str = ""  # empty where a command may ask a hub instead
    key_file: str | None = None
    hub_identity: str | None = None
    partitions: int | None = None
    jobs: int = 1  # processes of the python engine
    plan: Any = "auto"  # as `engine`
    log_bytes: int | None = None  # where it was counted

    def choose_engine(self, output: Output, data_dir: str | None = None, *, size: int | None = None) -> Self:
        """Replace the engine `auto` by the one that suits the size of the log, and print the choice."""
        if self.engine == "python":
            return self
        from veen.core.errors import VeenError
        from veen.lake.spark.engines import choose_engine, log_bytes

        if size is None:
            try:
                size = log_bytes(data_dir or self.data_dir)
            except (VeenError, OSError):  # the work itself will say what is wrong there
                size = 0
        if self.engine == "spark":
            return replace(self, log_bytes=size)
        choice = choose_engine(size, for_spark=self._for_spark(), for_python="--jobs" if self.jobs > 1 else None)
        output.note(choice.reason)
        return replace(self, engine=choice.engine, log_bytes=size)

    def locate(self, session: CliSession, output: "Output", streams: Collection[bytes] | None = None) -> str:
        """Return the data directory; without one, fetch a copy of the hub's entries, of some streams or of all."""
        if self.data_dir:
            return self.data_dir
        if session.settings.hub.value is None:
            raise click.UsageError("Missing option '--data-dir' or '--hub'.")
        return fetch_copy(session, output, streams)

    def _for_spark(self) -> str | None:
        """Return the given option that only Spark obeys, if any."""
        if self.master is not None:
            return "--master"
        if self.plan != "auto":
            return "--plan"
        return None if self.partitions is None else "--partitions"

    def keys(self, session: CliSession) -> "KeyFile | Keyring":
        from veen.lake.log.keys import KeyFile

        if self.key_file is None:
            return session.keystore.secrets.keyring
        return KeyFile(str(Path(self.key_file).absolute()))

    def identity(self) -> "HubIdentity | None":
        from veen.core.objects.identity import HubIdentity

        return None if self.hub_identity is None else HubIdentity.from_bytes(Path(self.hub_identity).read_bytes())

    @contextmanager
    def spark(self, app: str, progress: "Tell", settings: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Provide a session, if the engine needs one. Its jobs name their phases themselves."""
        if self.engine != "spark":
            yield None
            return
        with spark_at_work(app, self.master, progress, settings, log_bytes=self.log_bytes) as (session, _):
            yield session


def fetch_copy(session: CliSession, output: "Output", streams: Collection[bytes] | None = None) -> str:
    """Fetch the entries of the session's hub into a permanent copy, and return its directory."""
    from veen.lake.log.hub_copy import fetch

    with output.progress("fetching new entries"), unwrap_failures():
        return fetch(hub_address(session), copies_of(session), streams=streams)


def copies_of(session: CliSession) -> Path:
    """Return the directory of the copies of hubs."""
    return session.user_home.data / "copies"


@contextmanager
def unwrap_failures() -> Iterator[None]:
    """Raise the cause of a HubFailed: it has its own code and hint, which Spark could not have shown."""
    from veen.client.errors import ClientError
    from veen.lake.log.remote import HubFailed

    try:
        yield
    except HubFailed as exc:
        if isinstance(exc.__cause__, ClientError):
            raise exc.__cause__ from None
        raise


def hub_address(session: CliSession) -> "HubAddress":
    """Return the address of the session's hub for bulk work."""
    from veen.lake.log.options import HubAddress

    settings = session.settings
    ca_file, token_file = settings.path("ca_file"), settings.path("token_file")
    return HubAddress(
        url=session.hub_url.rstrip("/"),
        pin=session.pin.to_text(),
        hub_id=settings.hub_id.value,
        insecure_http=bool(settings.insecure_http.value),
        timeout=max(1, int(settings.timeout.value)),
        patience=int(settings.wait.value),
        ca_file=None if ca_file is None else str(ca_file),
        token_file=None if token_file is None else str(token_file),
    )


def log_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a command its `place`, a LogPlace, from options of the same names."""
    names = [name_of(option) for option in options]

    def decorate(command: Callable[..., Any]) -> Any:
        @wraps(command)
        def run(*args: Any, **kwargs: Any) -> Any:
            return command(*args, place=LogPlace(**{name: kwargs.pop(name) for name in names}), **kwargs)

        return several(*options)(run)

    return decorate


@contextmanager
def spark_at_work(
    app: str,
    master: str | None,
    progress: "Tell",
    settings: Mapping[str, str] | None = None,
    *,
    log_bytes: int | None = None,
    register: bool = False,
) -> Iterator[tuple[Any, "Tell"]]:
    """Provide a session and a function that sets the phase, which `progress` shows together with the tasks."""
    from veen.lake.spark.progress import STARTING, watch_tasks
    from veen.lake.spark.session import using_session

    progress(STARTING)
    with using_session(app=app, master=master, settings=settings, log_bytes=log_bytes, register=register) as session:
        progress("")
        with watch_tasks(session, progress) as tell:
            yield session, tell
