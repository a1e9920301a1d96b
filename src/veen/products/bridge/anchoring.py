"""Anchors of the bridge's own records: of bundle ids, through the audit streams that list them, and of reports
(AGB-17).

The hub anchors a root of a label (D-104). bridge/online/log and bridge/offline/log have an audit record of each bundle,
so an anchor of such a stream covers every earlier bundle_id. The report of a reconciliation is a file; its hash is
recorded on bridge/reports first, and that stream is anchored.
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
    """A report file of `veen bridge reconcile` with a verified signature."""

    report_hash: bytes
    signer: bytes
    is_clean: bool

    @classmethod
    def read(cls, data: bytes) -> "SignedReport":
        """Read a report and verify its signature.

        Raise ReportRefused if it is not a report, or not signed by its signer.
        """
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
            raise ReportRefused("the file is not a report of `veen bridge reconcile`") from exc
        if not verify_signature(signer, report_hash, signature):
            raise ReportRefused("the signature of the report is invalid")
        return cls(report_hash, signer, is_clean)


async def record_report(
    client: Client, report: SignedReport, *, operator: str, capability: CapToken | None = None, now: int | None = None
) -> Sent:
    """Record the hash of a report on bridge/reports."""
    body = ReportRecord(
        report_hash=report.report_hash,
        signer=report.signer,
        is_clean=report.is_clean,
        operator=operator,
        ts=int(time.time()) if now is None else now,
    )
    return await client.send(REPORTS, body.to_bytes(), schema=REPORT.id, capability=capability)


async def anchor_stream(client: Client, stream: str, upto_seq: int | None = None) -> AnchorPublish:
    """Have the hub anchor a stream; return the verified record of the anchor. Needs the hub's admin token."""
    record = await client.anchor(stream, upto_seq)
    assert isinstance(record.body, AnchorPublish)  # noqa: S101 - `Client.anchor` has verified it
    return record.body
