"""RPC0: calls and answers as messages."""

from typing import TYPE_CHECKING

from veen.lazy import names_of

if TYPE_CHECKING:
    from veen.overlays.rpc.caller import Caller, NoAnswer, RpcFailed
    from veen.overlays.rpc.server import CallContext, Server

__all__ = [
    "CallContext",
    "Caller",
    "NoAnswer",
    "RpcFailed",
    "Server",
]

__getattr__ = names_of(
    __name__,
    {
        "CallContext": "veen.overlays.rpc.server:CallContext",
        "Caller": "veen.overlays.rpc.caller:Caller",
        "NoAnswer": "veen.overlays.rpc.caller:NoAnswer",
        "RpcFailed": "veen.overlays.rpc.caller:RpcFailed",
        "Server": "veen.overlays.rpc.server:Server",
    },
)
