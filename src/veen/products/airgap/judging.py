"""A bundle judged by itself, as an importer would that has all bundles before it."""

from typing import IO

from veen.core.tree.mmr import root_of
from veen.products.airgap.bundle import BundleReader
from veen.products.airgap.trust import TrustList
from veen.products.airgap.verify import BundleVerdict, ChainHead, verify

__all__ = ["judge_alone"]


def judge_alone(file: IO[bytes], trust: TrustList) -> BundleVerdict:
    """The verdict, or `Rejected`. What the header says about the bundle before it is taken as it is."""
    header = BundleReader(file).header
    chains = {}
    if header.bundle_seq > 1 and header.prev_bundle_id is not None and header.peaks_before:
        before = ChainHead(
            bundle_seq=header.bundle_seq - 1,
            bundle_id=header.prev_bundle_id,
            seq=header.export_seq_from - 1,
            root=root_of(header.peaks_before),
        )
        chains = {(header.bridge_id, header.label): before}
    return verify(file, trust, chains)
