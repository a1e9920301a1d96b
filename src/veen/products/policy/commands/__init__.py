"""The policy of a realm."""
