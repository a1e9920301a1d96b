"""The operations of the API: data plane, tooling, pages and tails; independent of the transport."""
