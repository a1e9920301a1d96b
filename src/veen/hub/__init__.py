"""The hub: it orders and proves, and cannot read (spec §8)."""
