"""Verification of the rest of a data directory: limits.json, anchors, and files that no hub writes."""

import json
from collections.abc import Container, Iterable
from typing import Final

from veen.core.errors import FormatError, LimitError, MalformedError
from veen.core.limits import Limits
from veen.core.objects.control import AnchorPublish
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.anchors import AnchorFile, check_anchors
from veen.storage.findings import Findings
from veen.storage.scan import read_file

_ROOT_NAMES: Final = {
    layout.IDENTITY,
    layout.IDENTITY_SIG,
    layout.KEY_MAP,
    layout.ROOT,
    layout.CHECKPOINT_BINDING,
    layout.LIMITS,
    layout.ANCHORS,
    layout.LOCK,
    layout.CLOCK,
    layout.INDEX,
    f"{layout.INDEX}-wal",
    f"{layout.INDEX}-shm",
    layout.ATTACHMENT_RECORDS,
    f"{layout.ATTACHMENT_RECORDS}-wal",
    f"{layout.ATTACHMENT_RECORDS}-shm",
    layout.FORK_ORIGIN,
    layout.FORK_ORIGIN_SIG,
    # Directories. Attachments are named by their hash, evidence is no part of the log, an origin is checked by itself.
    *layout.DIRECTORIES,
    layout.ATTACHMENTS,
    layout.EVIDENCE,
    layout.CUT,
    layout.LOCAL,
    layout.OUTER,
    layout.ORIGIN,
    layout.ERASED,
    layout.REPLICA,
    layout.REPLICA_DIR,
    layout.REPLACED,
}


def check_names(fs: Fs, findings: Findings, labels: Container[bytes]) -> None:
    """Check that every file has a name of the layout, and belongs to a label of the log."""
    for name in fs.list(""):
        if name not in _ROOT_NAMES:
            findings.unknown(name)
    for name in fs.list(layout.LOG):
        path = f"{layout.LOG}/{name}"
        if layout.log_file(name) is None and path != layout.CONTROL:
            findings.unknown(path)
    for name in fs.list(layout.JOURNAL):
        if layout.segment_number(name) is None:
            findings.unknown(f"{layout.JOURNAL}/{name}")
    for directory, suffix in ((layout.NODES, "nodes"), (layout.OFFSETS, "loc")):
        for name in fs.list(directory):
            label = layout.label_of_array(name, suffix)
            if label is None or label not in labels:
                findings.unknown(f"{directory}/{name}")


def check_limits_file(fs: Fs, findings: Findings, in_force: Limits | None) -> None:
    """Compare limits.json with `in_force`, the limits that the control journal set last."""
    if not fs.exists(layout.LIMITS):
        return
    try:
        limits = limits_of(read_file(fs, layout.LIMITS))
    except (FormatError, LimitError) as exc:
        findings.error(layout.LIMITS, 0, "limits", str(exc))
        return
    if in_force is not None and limits != in_force:
        what = "not the limits that the control journal set last: they take effect when the hub starts"
        findings.warning(layout.LIMITS, 0, "limits", what)


def check_anchor_file(fs: Fs, findings: Findings, published: Iterable[AnchorPublish]) -> None:
    """Check that the local chain of anchors is intact and has all anchors of the control journal (D-104).

    It is not part of the log. A copy of a running hub may lack its newest entries.
    """
    for broken in check_anchors(fs):
        findings.error(broken.path, broken.offset, "anchor", broken.what)
    anchors = AnchorFile(fs)
    for body in published:
        if body.backend == anchors.name and not anchors.verify(body.mmr_root, body.anchor_ref):
            what = f"no entry is the anchor of entry {body.upto_seq} of label {body.label.hex()}"
            findings.warning(layout.ANCHORS, 0, "anchor", what)


def limits_of(data: bytes) -> Limits:
    """Read limits from bytes that may be damaged; raise FormatError or LimitError, nothing else."""
    try:
        return Limits.from_json(json.loads(data))
    except (ValueError, RecursionError) as exc:
        raise MalformedError("not JSON", "limits") from exc
