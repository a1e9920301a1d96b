"""`kill -9` under load: whatever receipt a client holds, its entry is in the log afterwards (DESIGN §9.1)."""

import http.client
import random
import signal
import threading
import time
from functools import partial
from urllib.parse import urlsplit

import pytest
from tests.cli.hubprocess import HubProcess
from tests.hub import builders as w
from tests.waiting import until

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of, routing_key_of
from veen.core.objects.envelopes import SubmitResponse
from veen.core.objects.receipt import Receipt
from veen.io.local import OsFs
from veen.verify.directory import verify_data

WRITERS = 8
OPTIONS = ("--dev", "--set", "log.level=error", "--set", "limits.max_checkpoint_interval=16")


class Writer(threading.Thread):
    """Sends one message after the other until the hub is gone; remembers every receipt it got."""

    def __init__(self, url, label, number, released, sent):
        super().__init__(daemon=True)
        self._address = urlsplit(url).netloc
        self._key = SigningKey(H(b"writer %d" % number))
        self._label, self._number, self._released, self._sent = label, number, released, sent

    def run(self):
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            while True:
                seq = self._sent[self._number] + 1
                body = b"\xa2\x01\x01\x02" + w.msg(self._key, seq=seq, token=None, label=self._label).to_bytes()
                connection.request("POST", "/v1/submit", body, {"Content-Type": "application/cbor"})
                answer = connection.getresponse()
                data = answer.read()
                if answer.status == 200:
                    self._released.append(SubmitResponse.from_bytes(data).receipt)
                elif answer.status != 409:  # 409: durable before the kill, but its answer never came
                    raise AssertionError(data)
                self._sent[self._number] = seq
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()


def rounds(data_dir, count, seed):
    rng = random.Random(seed)
    released: list[Receipt] = []
    sent = dict.fromkeys(range(WRITERS), 0)
    label, hub_pk = b"", b""
    for _ in range(count):
        hub = HubProcess(data_dir, *OPTIONS)
        hub_pk = bytes.fromhex(hub.about["hub_pk"].removeprefix("ed25519:"))
        label = label_of(routing_key_of(hub_id_of(hub_pk)), w.STREAM, 0)
        check(hub, label, released, hub_pk)
        writers = [Writer(hub.url, label, number, released, sent) for number in range(WRITERS)]
        before = len(released)
        for writer in writers:
            writer.start()
        until(partial(_more_than, released, before))  # a kill before the first receipt would show nothing
        time.sleep(rng.uniform(0, 0.4))
        hub.stop(signal.SIGKILL)
        for writer in writers:
            writer.join(timeout=30)
    hub = HubProcess(data_dir, *OPTIONS)
    check(hub, label, released, hub_pk)
    assert hub.stop() == 0
    return released


def _more_than(released, count):
    return len(released) > count


def check(hub, label, released, hub_pk):
    for receipt in released[-200:]:
        receipt.verify(hub_pk)
        assert hub.receipt(receipt.stream_seq, label) == receipt


def assert_all_there(data_dir, released):
    report = verify_data(OsFs(data_dir))
    assert not [finding for finding in report.findings if finding.severity == "error"], report.findings
    assert released


@pytest.mark.req("STOR-21", "OPS-04")
def test_three_kills_under_load_lose_no_receipt(tmp_path):
    released = rounds(tmp_path / "hub", 3, seed=1)
    assert_all_there(tmp_path / "hub", released)


@pytest.mark.slow
def test_fifty_kills_under_load_lose_no_receipt(tmp_path):
    released = rounds(tmp_path / "hub", 50, seed=2)
    assert_all_there(tmp_path / "hub", released)
