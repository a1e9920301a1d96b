"""`veen witness` and `veen monitor`."""
