"""kv, crud, queue, crdt, rpc."""
