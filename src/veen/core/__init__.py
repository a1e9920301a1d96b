"""The VEEN protocol, pure: bytes, hashes, keys, objects, the tree, proofs, limits and errors (spec v0.0.1).

No module of this package does I/O, reads a clock or draws randomness: time, keys and random bytes are arguments. It
imports nothing of VEEN but `veen.native`, the choice between Rust and Python. `errors.toml` is read as modules are.

Start with `objects.msg` and `objects.receipt`, what a writer sends and a hub answers, and `wire`, by which their fields
are declared once. Then `tree.mmr` (roots, proofs), `sealing.ciphertext` (seal, open), `run_check` (the one check of
entries in their order), `errors` (codes, and why a message is refused). Import from the modules; each is one topic
(docs/core.md).
"""
