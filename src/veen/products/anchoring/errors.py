"""What an anchor can prove wrong."""

from veen.core.errors import VerifyError


class AnchorInvalid(VerifyError, code="ANCHOR.INVALID"):
    """An anchor that does not verify: damaged, of another root, or by nobody who is trusted."""
