"""Errors of notes, proofs, policies and receipts. Each kind has its own code."""

from veen.core.errors import StatedError, VerifyError


class TlogError(VerifyError, code="E.TLOG"):
    """Base of the errors about transparency logs."""


class NoteError(TlogError, code="E.TLOG.NOTE"):
    """Bytes that are not a signed note, vkey, checkpoint, leaf or request."""


class NoteSignatureError(TlogError, code="E.TLOG.SIGNATURE"):
    """A signature line of a known key that does not verify, or a missing signature of a required key."""


class TlogProofError(TlogError, code="E.TLOG.PROOF"):
    """An invalid inclusion or consistency proof of an RFC 6962 tree."""


class WitnessPolicyError(StatedError, code="E.TLOG.POLICY"):
    """A policy file that cannot be used. It is a local file, not evidence."""


class QuorumError(TlogError, code="E.TLOG.QUORUM"):
    """A signed note with fewer witnesses than the policy requires, or of a log that the policy does not list."""


class TlogReceiptError(TlogError, code="E.TLOG.RECEIPT"):
    """An invalid COSE receipt."""
