"""`veen mirror`."""
