"""Commands for capability tokens and proof of work."""
