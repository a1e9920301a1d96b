"""Transports beside HTTP: a spool of files, NATS, QUIC. They carry frames (`core.call_frames`) to the same API."""
