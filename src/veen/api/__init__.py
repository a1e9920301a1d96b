"""The code behind `import veen`: one call to connect, and short verbs; thin over `veen.client`.

Every verb returns when what it says is verified. Names are stable: they are listed in `veen.__all__` and in
docs/reference/python.md, and both worlds have the same ones, with and without an event loop.

It imports client, overlays and what is below, no command and no product. Start with `hubs`, which has the verbs, to be
awaited. `blocking` has them for programs without an event loop, `connecting` finds out what the user configured and
opens keys, `evidence` has files for outsiders.
"""
