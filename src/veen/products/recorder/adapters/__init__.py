"""Adapters: one module per kind of source. `registry` finds them, also those of other packages."""
