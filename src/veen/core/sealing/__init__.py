"""Ciphertext of messages and attachments."""
