"""Reading: streams, entries, attachments, pictures of proofs."""

__all__: list[str] = []
