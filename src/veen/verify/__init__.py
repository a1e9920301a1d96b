"""What is checked of a data directory: entries, labels, seals, control records, identity, journal, index."""

__all__: list[str] = []
