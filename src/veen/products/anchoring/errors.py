"""What an anchor can prove wrong."""

from veen.core.errors import VerifyError

__all__ = ["AnchorInvalid"]


class AnchorInvalid(VerifyError):
    """An anchor that does not verify: damaged, of another root, or by nobody who is trusted."""

    code = "ANCHOR.INVALID"
