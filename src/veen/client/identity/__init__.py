"""Who a client is: identities, keystores, keyrings, prekeys, cards, rotation."""
