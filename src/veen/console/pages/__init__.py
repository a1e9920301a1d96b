"""Pages over overlays and products: each module turns verified events into sections and data."""
