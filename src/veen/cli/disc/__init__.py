"""Discovery and connect."""
