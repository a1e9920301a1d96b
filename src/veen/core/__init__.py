"""The VEEN protocol, pure: bytes, hashes, keys, objects, proofs, limits and errors (spec v0.0.1).

No module of this package does I/O, reads a clock or draws randomness; `errors.toml` is read as modules are. Import from
the modules; each is one topic.
"""
