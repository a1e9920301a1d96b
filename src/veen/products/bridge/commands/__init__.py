"""veen bridge."""
