"""The storage engine: everything that a hub writes to its data directory (spec §4.8, DESIGN §4)."""
