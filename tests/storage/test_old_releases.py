"""Data directories that earlier releases wrote are opened, verified and written to by this one (release check)."""

import json
import tarfile
from pathlib import Path

import pytest
from tests.cli.hubprocess import DEV, report, running

from veen.core.objects.receipt import Receipt

ARCHIVES = sorted((Path(__file__).parents[1] / "data").glob("data-directory-*.tar.gz"))


def unpacked(archive, directory):
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory / "hub", json.loads((directory / "about.json").read_text())


@pytest.mark.long
@pytest.mark.req("OPS-02")
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_a_directory_of_an_earlier_release_verifies_and_its_log_goes_on(archive, tmp_path):
    """The hub was killed: some entries are in its journal alone. Its key was rotated: two keys signed the receipts."""
    data_dir, about = unpacked(archive, tmp_path)
    assert report("hub", "verify-data", data_dir)["ok"]
    receipts = [Receipt.from_bytes(bytes.fromhex(text)) for text in about["receipts"]]
    with running(data_dir, *DEV, "--accept-clock") as hub:
        assert report("hub", "key", "show", data_dir, "--only-pin")["pin"] == about["pin"]
        for receipt in receipts:
            assert hub.receipt(receipt.stream_seq, receipt.label) == receipt
        label = receipts[0].label
        last = max(receipt.stream_seq for receipt in receipts if receipt.label == label)
        assert hub.submit(seq=last + 1).stream_seq == last + 1
        hub.stop()
    assert report("hub", "verify-data", data_dir)["ok"]


def test_there_is_a_directory_to_open():
    assert ARCHIVES
