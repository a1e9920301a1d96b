"""Primitives: Ed25519, X25519, HKDF, HPKE, AEAD."""
