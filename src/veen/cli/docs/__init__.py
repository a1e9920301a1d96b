"""veen docs."""
