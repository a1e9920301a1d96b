"""Commands for messages: send, stream, tail, pending, resync, attachment."""
