"""veen op."""
