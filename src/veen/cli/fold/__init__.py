"""veen fold."""
