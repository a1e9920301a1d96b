"""What hub and client share of transports whose libraries are extras: NATS, QUIC."""
