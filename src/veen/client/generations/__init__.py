"""Generations of a stream's keys: readers and their changes, as messages of the stream itself (D-171)."""
