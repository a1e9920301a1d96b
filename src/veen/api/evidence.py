"""Evidence for outsiders: a file or a page that anyone checks without a hub and without keys."""

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from veen.client.errors import LocalError
from veen.client.evidence_file import verify_evidence
from veen.core.evidence_check import EvidenceReport, check_evidence
from veen.core.evidence_file import MAX_FILE_BYTES, EvidenceFile
from veen.core.objects.trusted_root import TrustedKeys

HubKeys = str | bytes | Iterable[str | bytes]


class EvidenceBundle:
    """Entries with all their proofs, verified before export."""

    def __init__(self, file: EvidenceFile, pin: str) -> None:
        self.file, self.pin = file, pin
        self.data = file.to_file()

    @property
    def report(self) -> EvidenceReport:
        """Report on the file, verified by its own keys. An outsider gives the key she trusts to `verify`."""
        return check_evidence(self.file, None)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the file that `veen verify FILE --hub-pk KEY` checks."""
        return _write(path, self.data)

    def html(self, path: str | PathLike[str]) -> Path:
        """Write a page that checks itself in a browser, without a network."""
        from veen.client.evidence_page import page

        return _write(path, page(self.data, self.report, exporter_pin=self.pin))

    def __len__(self) -> int:
        return len(self.report.entries)

    def __repr__(self) -> str:
        return f"EvidenceBundle({len(self)} entries, {len(self.data)} bytes, hub {self.pin})"

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{_escape(line)}</li>" for line in self.report.proves())
        return f"<p>{len(self)} entries, {len(self.data)} bytes; it proves:</p><ul>{lines}</ul>"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceCheck:
    """The outcome of `verify`. True if everything in the file is valid under the given key."""

    ok: bool
    error: str | None = None  # the fault, if not ok
    report: EvidenceReport | None = None  # the report, if ok

    def __bool__(self) -> bool:
        return self.ok

    def proves(self) -> list[str]:
        """Return the facts that the file proves, a sentence each."""
        return [] if self.report is None else self.report.proves()

    def limits(self) -> list[str]:
        """Return the facts that the file does not prove, a sentence each."""
        return [] if self.report is None else self.report.limits()


def verify(path: str | PathLike[str], *, hub_pk: HubKeys) -> EvidenceCheck:
    """Check an evidence file by a key that you trust: `ed25519:HEX`, `root:ed25519:HEX`, or the bytes of a key.

    No hub is contacted and no keys of streams are needed. A file that cannot be read raises OSError; one that does
    not verify, or is no evidence, gives an outcome that is not ok.
    """
    from veen.core.errors import VeenError

    trusted = _parse_keys(hub_pk)
    with Path(path).open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    try:
        return EvidenceCheck(ok=True, report=verify_evidence(data, trusted))
    except VeenError as exc:
        return EvidenceCheck(ok=False, error=f"{exc.code}: {exc}")


def _parse_keys(hub_pk: HubKeys) -> TrustedKeys:
    values = [hub_pk] if isinstance(hub_pk, str | bytes) else list(hub_pk)
    try:
        keys = [TrustedKeys.parse(value.hex() if isinstance(value, bytes) else value) for value in values]
    except ValueError as exc:
        raise LocalError(f"hub_pk: {exc}") from exc
    if len(keys) == 1:
        return keys[0]
    if not keys or any(key.root_pk is not None for key in keys):
        raise LocalError("hub_pk: give one root, or one or more keys")
    return TrustedKeys(hub_pks=tuple(public for key in keys for public in key.hub_pks))


def _write(path: str | PathLike[str], data: bytes) -> Path:
    target = Path(path)
    target.write_bytes(data)
    return target


def _escape(text: str) -> str:
    from html import escape

    return escape(text)
