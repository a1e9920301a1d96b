"""What may be wrong with a note, a proof, a policy or a receipt. Each kind has a code of its own."""

from veen.core.errors import StatedError, VerifyError


class TlogError(VerifyError, code="E.TLOG"):
    """Base of what is wrong with something of a transparency log."""


class NoteError(TlogError, code="E.TLOG.NOTE"):
    """The bytes are no signed note, vkey, checkpoint, leaf or request."""


class NoteSignatureError(TlogError, code="E.TLOG.SIGNATURE"):
    """A signature line of a known key does not verify, or the key that must have signed did not."""


class TlogProofError(TlogError, code="E.TLOG.PROOF"):
    """An inclusion or consistency proof of an RFC 6962 tree does not hold."""


class WitnessPolicyError(StatedError, code="E.TLOG.POLICY"):
    """A policy file that cannot be used: a file of this machine, and no evidence."""


class QuorumError(TlogError, code="E.TLOG.QUORUM"):
    """A note is signed, but by fewer witnesses than the policy demands, or of a log that the policy does not list."""


class TlogReceiptError(TlogError, code="E.TLOG.RECEIPT"):
    """A COSE receipt that proves nothing."""
