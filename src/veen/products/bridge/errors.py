"""Reasons for rejecting a bundle, in the order of the checks (PRODUCTS 3.4), and other errors of a bridge."""

from typing import Final

from veen.core.errors import StatedError, VerifyError

# The first failure is reported. FORMAT to RANGE concern the bundle, the next six one event, the others the bundle.
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


class BridgeError(StatedError, code="AGB.BRIDGE"):
    """A bridge cannot continue."""


class BridgeMisconfigured(BridgeError, code="AGB.ROLES"):
    """Roles, rights or files of a bridge contradict each other (AGB-02)."""


class ReportRefused(BridgeError, code="AGB.REPORT"):
    """A file is not a signed report of a reconciliation."""


class VerifierFailed(BridgeError, code="AGB.VERIFIER"):
    """The verifier process ended without a verdict."""


class LinkLost(BridgeError, code="AGB.LINK"):
    """Datagrams of a one-way link are lost beyond repair."""


class Rejected(VerifyError, code="AGB.FORMAT"):
    """A bundle is rejected as a whole; `position` is the index of the faulty event, from 0."""

    def __init__(self, code: str, detail: str, position: int | None = None) -> None:
        super(StatedError, self).__init__(code, detail, position)
        self.code, self.detail, self.position = code, detail, position
        self.what = str(self)

    def __str__(self) -> str:
        place = "" if self.position is None else f" at event {self.position}"
        return f"{self.code}{place}: {self.detail}"
