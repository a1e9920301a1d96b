"""Packs a data directory that this release wrote, for the tests of later releases to open.

    python tools/old_data_directory.py

Writes tests/data/data-directory-VERSION.tar.gz: two labels, a rotated key, and a hub that was killed, so that its
journal has entries that its chunks have not. Run once before a version is raised; a file that is there is never written
again.
"""

from __future__ import annotations

import gzip
import io
import json
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.cli.hubprocess import DEV, report, running  # noqa: E402 - found by the path above
from tests.waiting import until  # noqa: E402

from veen import __version__  # noqa: E402

LEFT_OUT = ("admin.sock", "index.db-shm", "index.db-wal", "lock", "reload.json")
OTHER_LABEL = bytes(31) + b"\x07"


def write(directory: Path) -> dict[str, object]:
    """Fill directory/hub; what the hub answered."""
    data_dir, receipts = directory / "hub", []
    with running(data_dir, *DEV) as hub:
        receipts += [hub.submit(seq=number) for number in range(1, 6)]
        receipts.append(hub.submit(seq=1, label=OTHER_LABEL))
        pin = hub.about["pin"]
        hub.stop()
    rotated: dict[str, int] = report("hub", "key", "rotate", data_dir, "--overlap", "1s")  # type: ignore[no-untyped-call]
    begins = rotated["valid_from"]
    with running(data_dir, *DEV) as hub:
        until(lambda: hub.client.get("/tooling/status")["hub_ts"] > begins + 2)
        receipts += [hub.submit(seq=number) for number in (6, 7)]
        hub.stop(signal.SIGKILL)
    return {"version": __version__, "pin": pin, "receipts": [receipt.to_bytes().hex() for receipt in receipts]}


def main() -> int:
    path = ROOT / "tests" / "data" / f"data-directory-{__version__}.tar.gz"
    if path.exists():
        print(f"{path} is there already: what a release wrote does not change", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="veen-old-") as name:
        directory = Path(name)
        about = json.dumps(write(directory), indent=1).encode() + b"\n"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            entry = tarfile.TarInfo("about.json")
            entry.size = len(about)
            archive.addfile(entry, io.BytesIO(about))
            for file in sorted((directory / "hub").rglob("*")):
                if file.name not in LEFT_OUT and not file.is_socket():
                    entry = archive.gettarinfo(file, str(file.relative_to(directory)))
                    entry.uid = entry.gid = entry.mtime = 0
                    entry.uname = entry.gname = ""
                    archive.addfile(entry, io.BytesIO(file.read_bytes()) if file.is_file() else None)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
