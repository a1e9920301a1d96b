"""Where the fuzz targets of the native module start: `python -m tests.fuzz.native_corpus DIRECTORY`.

DIRECTORY/message gets the messages of `seeds`, DIRECTORY/chunk a chunk of a log as a store writes it, and half of it.
"""

import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import bytes_seeds
from tests.lake.query_builders import filled

from veen.core.objects.msg import Msg


def write(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        log = Path(filled(Path(data_dir) / "hub", 30).done()) / "log"
        whole = max((path.read_bytes() for path in log.rglob("*") if path.is_file()), key=len)
    for target, seeds in (("message", bytes_seeds(Msg)), ("chunk", (whole, whole[: len(whole) // 2]))):
        (directory / target).mkdir(parents=True)
        for number, seed in enumerate(seeds):
            (directory / target / str(number)).write_bytes(seed)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
