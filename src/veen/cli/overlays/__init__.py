"""kv, crud, queue, crdt, rpc."""

__all__: list[str] = []
