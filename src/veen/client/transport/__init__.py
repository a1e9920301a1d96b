"""Ways to a hub: HTTP, or a hub in the same process; the typed calls over them."""
