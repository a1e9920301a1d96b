"""Work on a data directory outside of its daily writing: rebuild, scrub, retention, compression, cutting a tail."""
