"""The client library: identities and keys, a verified view of a hub's log, sealing and opening.

The names below are what most programs need; errors are in `veen.client.errors`. Each is imported when it is first
used: whoever only opens a keystore does not load an HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from veen.client.captokens import TokenStore
    from veen.client.card import IdentityCard
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.identity import Identity
    from veen.client.inprocess import InProcess
    from veen.client.keyring import Keyring, StreamKeys
    from veen.client.keystore import Keystore, create_identity, open_identity
    from veen.client.pin import HubPin
    from veen.client.reading import Entry
    from veen.client.sealing import Attach
    from veen.client.state import StateStore
    from veen.client.sync import SyncClient

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
    "Attach": "sealing",
    "Client": "client",
    "Entry": "reading",
    "Home": "home",
    "HubPin": "pin",
    "Identity": "identity",
    "IdentityCard": "card",
    "InProcess": "inprocess",
    "Keyring": "keyring",
    "Keystore": "keystore",
    "StateStore": "state",
    "StreamKeys": "keyring",
    "SyncClient": "sync",
    "TokenStore": "captokens",
    "create_identity": "keystore",
    "open_identity": "keystore",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
