"""The identity of a client: identities, keystores, keyrings, prekeys, cards, rotation."""
