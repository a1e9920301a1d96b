"""What a client has verified of a hub: the pin, the verified view of each label, evidence."""
