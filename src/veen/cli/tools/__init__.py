"""bench, selftest, vesn."""
