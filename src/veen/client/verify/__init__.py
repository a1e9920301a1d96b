"""What a client believes of a hub: the pin, the verified view of each label, evidence."""

__all__: list[str] = []
