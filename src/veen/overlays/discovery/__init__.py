"""Discovery: descriptors of hubs, overlays and services, and queries for them (001 spec-5)."""
