"""VEEN: a verifiable, end-to-end encrypted log that nobody has to trust.

    import veen

    with veen.connect() as hub:                # the current context: address, pin, identity, keys
        orders = hub.stream("orders")
        orders.send({"event": "login"})        # sealed, signed; returns when the receipt is verified

Public names are those of `veen.__all__`, `veen.ext.__all__`, `veen.testing.__all__` and of the modules of
`veen.contrib`, and the Spark format `veen`; everything else is private. A public name that is a module, as `veen.kv`,
is public with its names. docs/reference/python.md lists them.

Each name is imported when it is first used: `import veen` loads nothing but this file.
"""

__version__ = "0.2.0"

from veen import _moved

_moved.install()

__all__ = [
    "AsyncHubConnection",
    "AsyncStream",
    "Attach",
    "AuditOptions",
    "CapToken",
    "Client",
    "Divergence",
    "Error",
    "EvidenceBundle",
    "EvidenceCheck",
    "Home",
    "HubConnection",
    "HubPin",
    "HubRefused",
    "Identity",
    "KeyFile",
    "Keyring",
    "LocalError",
    "NetworkError",
    "ProcessesEngine",
    "SigningKey",
    "StreamEntry",
    "StreamHandle",
    "StreamKeys",
    "SyncClient",
    "__version__",
    "aconnect",
    "audit",
    "audit_lines",
    "connect",
    "crdt",
    "create_identity",
    "crud",
    "folds",
    "identities",
    "kv",
    "open_identity",
    "operations",
    "query",
    "queue",
    "recorder",
    "rpc",
    "tables",
    "verify",
    "wallet",
    "write_keys",
]

# By name, so that the layers of `[tool.importlinter]` stay layers: everything imports this file. Their types are in
# __init__.pyi.
_LAZY = {
    "AsyncHubConnection": "veen.api.hubs:AsyncHubConnection",
    "AsyncStream": "veen.api.hubs:AsyncStream",
    "Attach": "veen.client.send.sealing:Attach",
    "AuditOptions": "veen.verify.audit:AuditOptions",
    "CapToken": "veen.core.objects.captoken:CapToken",
    "Client": "veen.client.client:Client",
    "Divergence": "veen.client.errors:Divergence",
    "Error": "veen.core.errors:VeenError",
    "EvidenceBundle": "veen.api.evidence:EvidenceBundle",
    "EvidenceCheck": "veen.api.evidence:EvidenceCheck",
    "Home": "veen.client.home:Home",
    "HubConnection": "veen.api.blocking:HubConnection",
    "HubPin": "veen.client.verify.pin:HubPin",
    "HubRefused": "veen.client.errors:HubRefused",
    "Identity": "veen.client.identity.identity:Identity",
    "KeyFile": "veen.lake.log.keys:KeyFile",
    "Keyring": "veen.client.identity.keyring:Keyring",
    "LocalError": "veen.client.errors:LocalError",
    "NetworkError": "veen.client.errors:NetworkError",
    "ProcessesEngine": "veen.verify.audit:ProcessesEngine",
    "SigningKey": "veen.core.crypto.ed25519:SigningKey",
    "StreamEntry": "veen.api.hubs:StreamEntry",
    "StreamHandle": "veen.api.blocking:StreamHandle",
    "StreamKeys": "veen.client.identity.keyring:StreamKeys",
    "SyncClient": "veen.client.sync:SyncClient",
    "aconnect": "veen.api.hubs:aconnect",
    "audit": "veen.verify.audit:audit",
    "audit_lines": "veen.verify.audit.report:audit_lines",
    "connect": "veen.api.blocking:connect",
    "crdt": "veen.overlays.crdt:",
    "create_identity": "veen.client.identity.keystore:create_identity",
    "crud": "veen.overlays.crud:",
    "folds": "veen.lake.folds:",
    "identities": "veen.overlays.id:",
    "kv": "veen.overlays.kv:",
    "open_identity": "veen.client.identity.keystore:open_identity",
    "operations": "veen.overlays.operations:",
    "query": "veen.lake.query:",
    "queue": "veen.overlays.queue:",
    "recorder": "veen.overlays.recorder.events:",
    "rpc": "veen.overlays.rpc:",
    "tables": "veen.lake.tables:",
    "testing": "veen.testing:",
    "verify": "veen.api.evidence:verify",
    "wallet": "veen.overlays.wallet:",
    "write_keys": "veen.lake.log.keys:write_keys",
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
