"""Anchors that leave the machine: published, listed, verified (docs/anchors.md)."""
