"""The Merkle Mountain Range and its proofs."""
