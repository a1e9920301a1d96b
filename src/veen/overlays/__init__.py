"""Overlays: an ordered, encrypted log turned into typed state that anyone can recompute (spec §11).

Pure: events in, values out. No module of this package reads a clock, a file or a socket, and none sees more than
`veen.core`. Import from the modules; docs/overlays.md tells how to write another overlay.
"""
