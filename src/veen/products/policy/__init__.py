"""The policy agent: keeps hubs at what the administration of a realm says (docs/policy.md)."""
