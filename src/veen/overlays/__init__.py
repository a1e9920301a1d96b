"""Overlays: an ordered, encrypted log turned into typed state that anyone can recompute (spec §11).

A fold is a monoid: summaries of adjacent or overlapping ranges merge, so that caching, replay and Spark are the same
function over different cuts. Pure: events in, values out. No module reads a clock, a file or a socket.

It imports only `veen.core`. Start with `framework.fold` (what a fold is) and `kv`, the smallest overlay; each other
one is a module or a folder beside it, with bodies, drafts and fold. `framework.registry` lists them all.
docs/overlays.md tells how to write another one, here or in a package of your own.
"""
