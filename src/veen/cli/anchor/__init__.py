"""Anchors."""
