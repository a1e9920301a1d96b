"""Ciphertext of messages and attachments."""

__all__: list[str] = []
