"""Commands for people: contacts, invitations, keys of shared streams, revocations, messages to one person."""
