"""VEEN: a verifiable, end-to-end encrypted log that nobody has to trust.

    import veen

    with veen.connect() as hub:                # the current context: address, pin, identity, keys
        orders = hub.stream("orders")
        orders.send({"event": "login"})        # sealed, signed; returns when the receipt is verified

Each name is imported when it is first used: `import veen` loads nothing but this file.
"""

__version__ = "0.1.0"

from veen import _moved

_moved.install()

__all__ = [
    "AsyncHubConnection",
    "AsyncStream",
    "Error",
    "EvidenceBundle",
    "EvidenceCheck",
    "HubConnection",
    "StreamEntry",
    "StreamHandle",
    "__version__",
    "aconnect",
    "connect",
    "verify",
]

# By name, so that the layers of `[tool.importlinter]` stay layers: everything imports this file. Their types are in
# __init__.pyi.
_LAZY = {
    "AsyncHubConnection": "veen.api.hubs:AsyncHubConnection",
    "AsyncStream": "veen.api.hubs:AsyncStream",
    "Error": "veen.core.errors:VeenError",
    "EvidenceBundle": "veen.api.evidence:EvidenceBundle",
    "EvidenceCheck": "veen.api.evidence:EvidenceCheck",
    "HubConnection": "veen.api.blocking:HubConnection",
    "StreamEntry": "veen.api.entries:StreamEntry",
    "StreamHandle": "veen.api.blocking:StreamHandle",
    "aconnect": "veen.api.hubs:aconnect",
    "connect": "veen.api.blocking:connect",
    "testing": "veen.testing:",
    "verify": "veen.api.evidence:verify",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
