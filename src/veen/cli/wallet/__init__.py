"""veen wallet."""
