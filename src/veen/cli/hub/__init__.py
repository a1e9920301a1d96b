"""veen hub."""
