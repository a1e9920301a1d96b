"""Overlays of federation: realms and the hubs that speak for them."""
