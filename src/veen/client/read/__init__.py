"""Reading: streams, entries, attachments, pictures of proofs."""
