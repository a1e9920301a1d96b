"""send, stream, tail, resync, attachment."""
