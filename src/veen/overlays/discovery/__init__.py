"""Discovery: hubs, overlays and services that say where they are, and who asks for them (001 spec-5)."""

__all__: list[str] = []
