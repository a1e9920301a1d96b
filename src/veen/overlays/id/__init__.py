"""ID: principals, devices, contexts, organizations, handles and external links, as a fold (001 ID v0.0.1).

Identity without a server that must be asked: everything here is a function of the log and of tokens that principals
signed. Import from the modules; docs/overlays-id.md tells how they fit together.
"""
