"""Working together: contacts, invitations, the keys of shared streams, revocations, messages to one person."""
