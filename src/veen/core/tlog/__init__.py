"""Transparency logs as others read them: C2SP notes, proofs and policies, RFC 6962 trees, RFC 9942 receipts."""
