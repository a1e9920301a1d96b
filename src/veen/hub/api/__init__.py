"""What a request means: operations, tooling, pages, tails; independent of the transport."""
