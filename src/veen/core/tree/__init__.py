"""The Merkle Mountain Range and its proofs."""

__all__: list[str] = []
