"""The client library: identities and keys, a verified view of a hub's log, sealing and opening.

Nothing that a hub says is believed without proof, and what was proven stays proven: the client keeps, for each label,
how far it verified and under which root. Keys are files that only their user may read.

It imports `veen.core`, `veen.io` and the reader of files in `veen.storage`; it sees neither hub nor overlays. Start
with `client` (all verbs), then `session` (what is verified of a hub's answers). `identity` holds keys, `send` seals
and submits, `read` opens, `verify` follows a log, `transport` carries calls, `config` and `agent` serve the user.

The names below are what most programs need; errors are in `veen.client.errors`. Each is imported when it is first
used: whoever only opens a keystore does not load an HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.identity.card import IdentityCard
    from veen.client.identity.identity import Identity
    from veen.client.identity.keyring import Keyring, StreamKeys
    from veen.client.identity.keystore import Keystore, create_identity, open_identity
    from veen.client.read.reading import Entry
    from veen.client.send.captokens import TokenStore
    from veen.client.send.sealing import Attach
    from veen.client.state import StateStore
    from veen.client.sync import SyncClient
    from veen.client.transport.inprocess import InProcess
    from veen.client.verify.pin import HubPin

__all__ = [
    "Attach",
    "Client",
    "Entry",
    "Home",
    "HubPin",
    "Identity",
    "IdentityCard",
    "InProcess",
    "Keyring",
    "Keystore",
    "StateStore",
    "StreamKeys",
    "SyncClient",
    "TokenStore",
    "create_identity",
    "open_identity",
]

_MODULES: Final = {
    "Attach": "send.sealing",
    "Client": "client",
    "Entry": "read.reading",
    "Home": "home",
    "HubPin": "verify.pin",
    "Identity": "identity.identity",
    "IdentityCard": "identity.card",
    "InProcess": "transport.inprocess",
    "Keyring": "identity.keyring",
    "Keystore": "identity.keystore",
    "StateStore": "state",
    "StreamKeys": "identity.keyring",
    "SyncClient": "sync",
    "TokenStore": "send.captokens",
    "create_identity": "identity.keystore",
    "open_identity": "identity.keystore",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
