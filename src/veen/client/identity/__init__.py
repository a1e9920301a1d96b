"""Who a client is: identities, keystores, keyrings, prekeys, cards, rotation."""

__all__: list[str] = []
