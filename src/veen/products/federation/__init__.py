"""Hubs that hold each other's logs: mirrors that state or copy entries of another hub (D-149)."""
