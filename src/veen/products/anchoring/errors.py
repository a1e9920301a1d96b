"""Errors of anchors."""

from veen.core.errors import VerifyError


class AnchorInvalid(VerifyError, code="ANCHOR.INVALID"):
    """An anchor does not verify: it is damaged, of another root, or not by a trusted key."""
