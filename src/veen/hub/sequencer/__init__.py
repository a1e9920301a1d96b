"""Ordering of messages on one thread: verification before it, one sync for each group after it."""
