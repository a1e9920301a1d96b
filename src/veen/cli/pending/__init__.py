"""pending: messages that got no receipt."""
