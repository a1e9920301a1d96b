"""The hub: it orders and proves, and cannot read (spec §8)."""

__all__: list[str] = []
