"""veen id."""
