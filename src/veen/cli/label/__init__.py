"""Labels, label classes, schemas."""
