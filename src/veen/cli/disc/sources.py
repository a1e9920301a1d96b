"""Options that `veen disc` and `veen connect` share: the discovery streams and their valid publishers."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.as_of import View
from veen.cli.shared.command import CliSession
from veen.cli.shared.overlay_commands import HEX32, state_of

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded
    from veen.overlays.discovery.directory import DirectoryFold

F = TypeVar("F", bound=Callable[..., Any])

NAMES: Final = {"hub": "disc.hubs.v1", "overlay": "disc.overlays.v1", "service": "disc.services.v1"}


class DiscoverySource:
    """The discovery streams of a command and the rule for valid publishers (D-151)."""

    def __init__(self, publishers: tuple[bytes, ...], is_open: bool) -> None:
        self._publishers, self._is_open = publishers, is_open

    def fold(self) -> "DirectoryFold":
        from veen.overlays.discovery.directory import DirectoryFold, Publishers

        pinned = frozenset(self._publishers) or None
        return DirectoryFold(publishers=Publishers(pinned, is_open=self._is_open))

    @staticmethod
    def streams(session: CliSession) -> list[str]:
        """Return the discovery streams that the keyring can read. Raise an error if there is none."""
        from veen.client.errors import UnknownStream

        ring = session.keystore.secrets.keyring
        readable = []
        for name in NAMES.values():
            try:
                if any(keys.can_read for keys in ring.readers(name)):
                    readable.append(name)
            except UnknownStream:
                continue
        if not readable:
            ring.readers(NAMES["service"])  # names the stream whose key is needed
        return readable


def discovery_options(command: F) -> F:
    """Add the options of `source` to a command."""

    @click.option(
        "--publisher",
        "publishers",
        type=HEX32,
        multiple=True,
        help="client_id of an accepted publisher. Repeatable. Default: the first publisher of each id.",
    )
    @click.option("--open", "is_open", is_flag=True, help="Let anyone replace any id, for tests.")
    @wraps(command)
    def run(*args: Any, publishers: tuple[bytes, ...], is_open: bool, **kwargs: Any) -> Any:
        return command(*args, source=DiscoverySource(publishers, is_open), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


def fold_directory(session: CliSession, source: DiscoverySource, view: View) -> "Folded":
    return state_of(session, source.fold(), source.streams(session), view)
