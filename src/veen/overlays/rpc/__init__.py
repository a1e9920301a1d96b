"""RPC0: calls and answers as messages."""

from typing import TYPE_CHECKING

from veen.lazy import names_of

if TYPE_CHECKING:
    from veen.overlays.rpc.ends import CallContext, Caller, NoAnswer, RpcFailed, Server

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
        "CallContext": "veen.overlays.rpc.ends:CallContext",
        "Caller": "veen.overlays.rpc.ends:Caller",
        "NoAnswer": "veen.overlays.rpc.ends:NoAnswer",
        "RpcFailed": "veen.overlays.rpc.ends:RpcFailed",
        "Server": "veen.overlays.rpc.ends:Server",
    },
)
