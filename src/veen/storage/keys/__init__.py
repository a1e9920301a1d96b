"""The hub's keys and the identity that they prove."""
