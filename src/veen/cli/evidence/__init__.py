"""receipt, proof, checkpoint, verify, audit, inspect, equivocation."""

__all__: list[str] = []
