"""RPC0: calls and answers as messages."""
