"""What may be wrong with a note, a proof, a policy or a receipt. Each kind has a code of its own."""

from veen.core.errors import StatedError, VerifyError

__all__ = [
    "NoteError",
    "NoteSignatureError",
    "QuorumError",
    "TlogError",
    "TlogProofError",
    "TlogReceiptError",
    "WitnessPolicyError",
]


class TlogError(VerifyError):
    """Base of what is wrong with something of a transparency log."""

    code = "E.TLOG"


class NoteError(TlogError):
    """The bytes are no signed note, vkey, checkpoint, leaf or request."""

    code = "E.TLOG.NOTE"


class NoteSignatureError(TlogError):
    """A signature line of a known key does not verify, or the key that must have signed did not."""

    code = "E.TLOG.SIGNATURE"


class TlogProofError(TlogError):
    """An inclusion or consistency proof of an RFC 6962 tree does not hold."""

    code = "E.TLOG.PROOF"


class WitnessPolicyError(StatedError):
    """A policy file that cannot be used: a file of this machine, and no evidence."""

    code = "E.TLOG.POLICY"


class QuorumError(TlogError):
    """A note is signed, but by fewer witnesses than the policy demands, or of a log that the policy does not list."""

    code = "E.TLOG.QUORUM"


class TlogReceiptError(TlogError):
    """A COSE receipt that proves nothing."""

    code = "E.TLOG.RECEIPT"
