"""Transports to a hub: HTTP, files, NATS, QUIC, or a hub in the same process; and the typed calls over them."""
