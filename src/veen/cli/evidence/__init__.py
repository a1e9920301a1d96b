"""Commands for evidence: receipt, proof, checkpoint, verify, audit, inspect, equivocation."""
