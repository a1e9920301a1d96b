"""Anchors of what a bridge says about itself: bundle ids, by the audit streams that list them, and reports (AGB-17).

The hub anchors a root of a label (D-104). An audit record of each bundle stands on bridge/online/log and
bridge/offline/log, so an anchor of that stream covers every bundle_id up to there. A report of a reconciliation is a
file; its hash goes onto bridge/reports first, and the anchor is one of that stream.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from veen.client.client import Client
from veen.client.send.writing import Sent
from veen.core import canonical
from veen.core.canonical import InvalidJson
from veen.core.crypto.ed25519 import verify as verify_signature
from veen.core.hashing import Ht
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import AnchorPublish
from veen.overlays.airgap.bodies import REPORT, ReportRecord
from veen.products.bridge.errors import ReportRefused

REPORTS: Final = "bridge/reports"
_MAX_REPORT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SignedReport:
    """The file that `veen bridge reconcile` writes, its signature verified."""

    report_hash: bytes
    signer: bytes
    is_clean: bool

    @classmethod
    def read(cls, data: bytes) -> "SignedReport":
        """ReportRefused if it is no report, or not what its signer signed."""
        try:
            if len(data) > _MAX_REPORT_BYTES:
                raise ValueError("too large")
            value: Any = canonical.parse(data)
            report_hash = Ht("veen/bridge-report", canonical.encode(value["report"]))
            signer, signature = bytes.fromhex(value["signer_pk"]), bytes.fromhex(value["signature"])
            is_clean = value["report"]["clean"]
            if type(is_clean) is not bool:
                raise TypeError("clean")
        except (InvalidJson, ValueError, TypeError, LookupError) as exc:
            raise ReportRefused("it is no report of `veen bridge reconcile`") from exc
        if not verify_signature(signer, report_hash, signature):
            raise ReportRefused("it is not what its signer signed")
        return cls(report_hash, signer, is_clean)


async def record_report(
    client: Client, report: SignedReport, *, operator: str, capability: CapToken | None = None, now: int | None = None
) -> Sent:
    """Write the hash of a report down on bridge/reports."""
    body = ReportRecord(
        report_hash=report.report_hash,
        signer=report.signer,
        is_clean=report.is_clean,
        operator=operator,
        ts=int(time.time()) if now is None else now,
    )
    return await client.send(REPORTS, body.to_bytes(), schema=REPORT.id, capability=capability)


async def anchored(client: Client, stream: str, upto_seq: int | None = None) -> AnchorPublish:
    """Have the hub anchor a stream; what was published, verified. Needs the hub's admin token."""
    record = await client.anchor(stream, upto_seq)
    assert isinstance(record.body, AnchorPublish)  # noqa: S101 - `Client.anchor` has verified it
    return record.body
