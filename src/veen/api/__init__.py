"""What `import veen` offers: one call to connect, and short verbs; thin over `veen.client`.

`connecting` finds out what the user configured and opens keys; `hubs` has the verbs, to be awaited; `blocking` has the
same verbs for programs without an event loop; `evidence` has files for outsiders.
"""
