"""The identity that a command uses in a recorder."""

from typing import TYPE_CHECKING

from veen.cli.shared.command import CliSession

if TYPE_CHECKING:
    from veen.client.home import Home
    from veen.products.recorder.roles import RecorderRole


def role_of(session: CliSession, home: "Home", name: str) -> "RecorderRole":
    """Open the identity `name`."""
    from veen.client.send.captokens import TokenStore
    from veen.products.recorder.roles import RecorderRole

    return RecorderRole(session.open_keystore(home, name), TokenStore(home.tokens_fs(name)), lambda: home.lock(name))
