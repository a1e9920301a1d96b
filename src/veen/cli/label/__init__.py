"""Labels, label classes, schemas."""

__all__: list[str] = []
