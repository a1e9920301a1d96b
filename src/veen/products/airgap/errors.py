"""Why a bundle is refused, in the order in which it is judged (PRODUCTS 3.4), and what else stops a bridge."""

from typing import Final

from veen.core.errors import VeenError, VerifyError

__all__ = ["ORDER", "BridgeError", "BridgeMisconfigured", "LinkLost", "Rejected", "ReportRefused", "VerifierFailed"]

# First failure wins. FORMAT to RANGE are about the bundle, the next six about one event, the rest about the bundle.
ORDER: Final = (
    "AGB.FORMAT",
    "AGB.VERSION",
    "AGB.ID",
    "AGB.SIG_EXPORTER",
    "AGB.SOURCE",
    "AGB.CHAIN",
    "AGB.RANGE",
    "AGB.RECEIPT_SIG",
    "AGB.LABEL_SEQ",
    "AGB.MSG_SIG",
    "AGB.CT_HASH",
    "AGB.LEAF",
    "AGB.ROOT",
    "AGB.CHECKPOINT",
    "AGB.OPENING",
    "AGB.ATTACHMENT",
    "AGB.SCHEMA",
    "AGB.MAPPING",
)


class BridgeError(VeenError):
    """A bridge cannot go on."""

    code = "AGB.BRIDGE"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return self.what


class BridgeMisconfigured(BridgeError):
    """Roles, rights or files of a bridge do not fit together (AGB-02)."""

    code = "AGB.ROLES"


class ReportRefused(BridgeError):
    """A file is no signed report of a reconciliation."""

    code = "AGB.REPORT"


class VerifierFailed(BridgeError):
    """The process that verifies ended without a verdict."""

    code = "AGB.VERIFIER"


class LinkLost(BridgeError):
    """Datagrams of a one-way link are missing beyond repair."""

    code = "AGB.LINK"


class Rejected(VerifyError):
    """A bundle is refused as a whole; `position` is that of the event at fault, from 0."""

    code = "AGB.FORMAT"

    def __init__(self, code: str, detail: str, position: int | None = None) -> None:
        super(VerifyError, self).__init__(code, detail, position)
        self.code, self.detail, self.position = code, detail, position
        self.what = str(self)

    def __str__(self) -> str:
        place = "" if self.position is None else f" at event {self.position}"
        return f"{self.code}{place}: {self.detail}"
