"""The storage engine: the only code that knows files (spec §4.8, DESIGN §4)."""
