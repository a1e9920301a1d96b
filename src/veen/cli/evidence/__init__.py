"""receipt, proof, checkpoint, verify, audit, inspect, equivocation."""
