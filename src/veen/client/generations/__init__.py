"""Generations of a stream's keys: who may read it from when on, as messages of the stream itself (D-171)."""
