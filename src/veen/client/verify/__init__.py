"""The facts that a client has verified about a hub: the pin, the verified view of each label, evidence."""
