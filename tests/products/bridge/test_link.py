"""The one-way link: repaired where datagrams are lost, reports where too many are, and never changed (AGB-03)."""

import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.products.bridge.signer import SmallLog

from veen.products.bridge import link
from veen.products.bridge.bundle import BridgeError, BridgeMisconfigured
from veen.products.bridge.files import BridgeFiles, FolderBounds, copy_bundle
from veen.products.bridge.link import (
    LinkOptions,
    LinkReceiver,
    LinkSender,
    Received,
    link_note,
    parse_address,
    read_link_note,
)

LOCAL = ("127.0.0.1", 0)
FAST = LinkOptions(rate=50_000_000, rounds=1)


class Lossy:
    """A wire that loses, doubles and reorders datagrams, with a seed."""

    def __init__(self, target, *, loss=0.0, seed=1, damage=0.0):
        self._in = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._in.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._in.bind(LOCAL)
        self._in.settimeout(0.5)
        self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._target, self._loss, self._damage = target, loss, damage
        self._random = random.Random(seed)
        self.address = self._in.getsockname()
        self._thread = threading.Thread(target=self._run)
        self._stop = False
        self._thread.start()

    def _run(self):
        queue = []
        while True:
            try:
                data = self._in.recv(4096)
            except TimeoutError:
                if self._stop:
                    break
                continue
            if self._random.random() < self._loss:
                continue
            if self._random.random() < self._damage:
                at = self._random.randrange(len(data))
                data = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
            queue.append(data)
            if len(queue) > 8:
                self._out.sendto(queue.pop(self._random.randrange(len(queue))), self._target)
                self._out.sendto(queue[0], self._target)
        for data in queue:
            self._out.sendto(data, self._target)

    def close(self):
        self._stop = True
        self._thread.join()
        self._in.close()
        self._out.close()


def arrived(tmp_path, data, *, options=FAST, loss=0.0, damage=0.0):
    """What the receiver tells of one file that went over a lossy wire."""
    folder = tmp_path / "incoming"
    folder.mkdir(exist_ok=True)
    path = tmp_path / "bundle.veenb"
    path.write_bytes(data)
    receiver = LinkReceiver(LOCAL, folder)
    wire = Lossy(receiver.address, loss=loss, damage=damage)
    reports: list[Received] = []

    def listen():
        reports.extend(receiver.receive(wait=3.0))

    thread = threading.Thread(target=listen)
    thread.start()
    sender = LinkSender(wire.address, options)
    try:
        sender.send(path)
    finally:
        sender.close()
        wire.close()
        thread.join()
        receiver.close()
    return reports, receiver


SIZES = (1, 1_300, 1_301, 64 * 1_300, 64 * 1_300 + 1, 700_001)


@pytest.mark.req("AGB-03")
def test_files_of_every_size_arrive_over_a_wire_that_loses_and_reorders(tmp_path):
    """Each over a wire of its own, at the same time: a receiver waits for seconds until it knows that no more comes."""
    options = LinkOptions(rate=50_000_000, rounds=3, redundancy=0.5)

    def cross(size):
        folder = tmp_path / str(size)
        folder.mkdir()
        data = random.Random(size).randbytes(size)
        (received,), _ = arrived(folder, data, loss=0.05, options=options)
        same = received.path is not None and received.path.read_bytes() == data
        return same and read_link_note(received.path) == received.describe()

    with ThreadPoolExecutor(len(SIZES)) as pool:
        assert dict(zip(SIZES, pool.map(cross, SIZES), strict=True)) == dict.fromkeys(SIZES, True)


def test_a_bundle_gets_the_name_of_its_place_in_the_chain(tmp_path):
    data = SmallLog(2).bundle()
    (received,), _ = arrived(tmp_path, data)
    assert received.path.name.endswith("-00000001.veenb")
    assert (received.missing, received.repaired, received.blocks_lost) == (0, 0, 0)
    assert link_note(received.path).exists()


def test_too_much_loss_is_told_and_leaves_no_file(tmp_path):
    data = random.Random(1).randbytes(300_000)
    reports, _ = arrived(tmp_path, data, loss=0.7)
    assert [received.path for received in reports] == [None]
    assert reports[0].blocks_lost > 0
    assert list((tmp_path / "incoming").iterdir()) == []


def test_damaged_and_foreign_datagrams_change_nothing(tmp_path):
    data = random.Random(2).randbytes(100_000)
    options = LinkOptions(rate=50_000_000, rounds=3, redundancy=1.0)
    (received,), receiver = arrived(tmp_path, data, damage=0.1, options=options)
    assert received.path.read_bytes() == data
    assert receiver.strangers > 0


def datagrams_of(path, **options):
    with path.open("rb") as file:
        session = link._session_of(path)
        return list(link._datagrams(file, session, path.stat().st_size, LinkOptions(**options)))


def given_to(receiver, datagrams):
    return [received for datagram in datagrams if (received := receiver._take(datagram)) is not None]


def test_a_file_that_nobody_signed_replaces_no_genuine_bundle(tmp_path):
    """Whoever can send datagrams can name any bundle in a header; the genuine one stays as it is."""
    genuine = SmallLog(6).bundle()
    forged = bytearray(genuine)
    forged[-1] ^= 1  # the signature of the exporter
    for name, data in (("genuine", genuine), ("forged", bytes(forged))):
        (tmp_path / name).write_bytes(data)
    folder = tmp_path / "in"
    folder.mkdir()
    receiver = LinkReceiver(LOCAL, folder)
    try:
        first = given_to(receiver, datagrams_of(tmp_path / "genuine"))
        second = given_to(receiver, datagrams_of(tmp_path / "forged"))
        paths = [received.path for received in (*first, *second)]
        assert paths[0] != paths[1]
        assert paths[0].read_bytes() == genuine
        assert paths[1].read_bytes() == forged
        third = LinkReceiver(LOCAL, folder)  # one that does not remember: the same bytes are there already
        again = given_to(third, datagrams_of(tmp_path / "genuine"))
        third.close()
        assert [received.path for received in again] == paths[:1]
        assert len(list(folder.glob("*.veenb"))) == 2
    finally:
        receiver.close()


def test_a_folder_that_is_full_takes_nothing_more(tmp_path):
    """What others fill has bounds; the bundle is lost, and told."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (tmp_path / f"b{number}").write_bytes(SmallLog(3 + number).bundle())
    receiver = LinkReceiver(LOCAL, folder, bounds=FolderBounds(files=1, size=1 << 20))
    try:
        outcomes = [given_to(receiver, datagrams_of(tmp_path / f"b{number}"))[0].path for number in range(2)]
        assert (outcomes[0] is None, outcomes[1]) == (False, None)
    finally:
        receiver.close()
    receiver = LinkReceiver(LOCAL, folder, bounds=FolderBounds(files=9, size=1))
    try:
        assert given_to(receiver, datagrams_of(tmp_path / "b2"))[0].path is None
    finally:
        receiver.close()
    assert len(list(folder.iterdir())) == 2  # a bundle, and what the link says of it


def test_small_symbols_are_counted_and_not_summed_anew(tmp_path):
    """The sum of what waits is kept as symbols come and go; a file of too many blocks is not begun."""
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "file").write_bytes(os.urandom(16 * 2_000))
    receiver = LinkReceiver(LOCAL, folder)
    try:
        datagrams = datagrams_of(tmp_path / "file", symbol_bytes=16, k=100, redundancy=0)
        assert given_to(receiver, [d for index, d in enumerate(datagrams) if index % 7]) == []
        (session,) = receiver._sessions.values()
        waiting = sum(len(block.symbols) for block in session.blocks.values()) * session.symbol_cost
        assert receiver._waiting_bytes == session.waiting_bytes == waiting > 0
        (done,) = given_to(receiver, datagrams)
        assert done.path.read_bytes() == (tmp_path / "file").read_bytes()
        assert receiver._waiting_bytes == 0
        head = link._HEAD.pack(link._MAGIC, b"s" * 16, 1 << 30, 0, 0, 1, 1, 16)
        assert given_to(receiver, [head + link._check(head, b"x" * 16) + b"x" * 16]) == []
        assert (receiver.strangers, len(receiver._sessions)) == (1, 0)
    finally:
        receiver.close()


def test_a_medium_with_links_and_other_files_is_neither_followed_nor_overwritten(tmp_path):
    """`bridge send --to` wrote through links that somebody had put onto the medium."""
    medium, inside, outside = tmp_path / "stick", tmp_path / "in", tmp_path / "outside"
    medium.mkdir()
    inside.mkdir()
    outside.write_bytes(b"mine")
    source = tmp_path / "a-1.veenb"
    source.write_bytes(SmallLog(4).bundle())
    (medium / ".a-1.veenb").symlink_to(outside)
    assert copy_bundle(source, medium).read_bytes() == source.read_bytes()
    assert copy_bundle(source, medium) == medium / "a-1.veenb"  # it is there already
    assert outside.read_bytes() == b"mine"
    (medium / "a-1.veenb").unlink()
    (medium / "a-1.veenb").symlink_to(outside)
    with pytest.raises(BridgeError, match="not replaced"):
        copy_bundle(source, medium)
    (medium / "a-1.veenb").unlink()
    (medium / "a-1.veenb").write_bytes(b"another")
    with pytest.raises(BridgeError, match="not replaced"):
        copy_bundle(source, medium)
    assert outside.read_bytes() == b"mine"
    link_name = tmp_path / "b-1.veenb"
    link_name.symlink_to(outside)
    with pytest.raises(BridgeError, match="cannot be copied"):
        copy_bundle(link_name, medium)
    with pytest.raises(BridgeError, match="is full"):
        copy_bundle(source, inside, FolderBounds(files=1, size=1))


def test_rejected_bundles_are_kept_up_to_a_bound(tmp_path):
    """The oldest go first."""
    files = BridgeFiles(tmp_path, ("rejected",))
    for number in range(5):
        path = files.path("rejected", f"{number}.veenb")
        path.write_bytes(b"x" * 10)
        os.utime(path, (number, number))
    files.trim("rejected", FolderBounds(files=3, size=1 << 20))
    assert files.bundles("rejected") == ["2.veenb", "3.veenb", "4.veenb"]
    files.trim("rejected", FolderBounds(files=3, size=10))
    assert files.bundles("rejected") == ["4.veenb"]


def test_a_sender_keeps_its_pace(tmp_path):
    """The clock is the test's: nothing waits for real."""
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    sender = LinkSender(
        ("127.0.0.1", 9), LinkOptions(rate=10_000, rounds=1, redundancy=0.0), clock=lambda: now[0], sleep=sleep
    )
    count = sender.send(path)
    sender.close()
    assert count == 77
    assert 10.0 < sum(slept) < 11.0


def test_addresses_and_options_are_judged():
    assert parse_address("10.0.0.1:4000") == ("10.0.0.1", 4000)
    assert parse_address("[::1]:4000") == ("::1", 4000)
    for text in ("here", ":1", "h:70000", "h:x"):
        with pytest.raises(BridgeMisconfigured):
            parse_address(text)
    for bad in ({"k": 0}, {"symbol_bytes": 9_000}, {"rounds": 0}, {"rate": 1}, {"redundancy": 2}):
        with pytest.raises(BridgeMisconfigured):
            LinkOptions(**bad)


def _ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def one_way():
    """Two network namespaces and a wire on which nothing comes back; skipped where the machine does not allow it."""
    if shutil.which("ip") is None or shutil.which("iptables") is None:
        pytest.skip("ip and iptables are not installed (packages iproute2, iptables)")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    names = f"veenz1-{os.getpid()}", f"veenz2-{os.getpid()}"
    results = [_ip("netns", "add", name) for name in names]
    if any(done.returncode for done in results):
        for name in names:
            _ip("netns", "del", name)
        pytest.skip(
            f"network namespaces are not allowed here: {results[0].stderr.strip() or results[1].stderr.strip()}"
        )
    try:
        steps = [
            ("link", "add", "v1", "netns", names[0], "type", "veth", "peer", "name", "v2", "netns", names[1]),
            ("-n", names[0], "addr", "add", "10.77.0.1/24", "dev", "v1"),
            ("-n", names[1], "addr", "add", "10.77.0.2/24", "dev", "v2"),
            ("-n", names[1], "link", "set", "v2", "address", "02:00:00:00:00:02"),
            ("-n", names[0], "link", "set", "v1", "up"),
            ("-n", names[1], "link", "set", "v2", "up"),
            ("-n", names[0], "neigh", "add", "10.77.0.2", "lladdr", "02:00:00:00:00:02", "dev", "v1"),
            ("netns", "exec", names[1], "iptables", "-A", "OUTPUT", "-j", "DROP"),
        ]  # fmt: skip
        for step in steps:
            if (done := _ip(*step)).returncode:
                pytest.skip(f"ip {' '.join(step)}: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            _ip("netns", "del", name)


@pytest.mark.req("AGB-03")
@pytest.mark.system
def test_a_bundle_crosses_between_two_namespaces_with_no_way_back(one_way, tmp_path):
    z1, z2 = one_way
    log = SmallLog(200)
    (tmp_path / "out.veenb").write_bytes(log.bundle())
    (tmp_path / "incoming").mkdir()
    receive = (
        "import sys; from pathlib import Path; from veen.products.bridge.link import LinkReceiver\n"
        "receiver = LinkReceiver(('10.77.0.2', 4000), Path(sys.argv[1])); print('ready', flush=True)\n"
        "for reports in receiver.receive(wait=10.0):\n"
        "    print(reports.path, reports.blocks_lost, flush=True); break\n"
        "receiver.close()\n"
    )
    send = (
        "import sys; from pathlib import Path; from veen.products.bridge.link import LinkOptions, LinkSender\n"
        "sender = LinkSender(('10.77.0.2', 4000), LinkOptions()); print(sender.send(Path(sys.argv[1])))\n"
    )
    inside = lambda zone, code, *args: ["ip", "netns", "exec", zone, sys.executable, "-c", code, *map(str, args)]  # noqa: E731
    child = subprocess.Popen(inside(z2, receive, tmp_path / "incoming"), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    sent = subprocess.run(inside(z1, send, tmp_path / "out.veenb"), capture_output=True, text=True, check=True)
    assert int(sent.stdout) > 0
    path, lost = child.stdout.readline().split()
    assert child.wait(timeout=60) == 0
    child.stdout.close()
    assert lost == "0"
    assert Path(path).read_bytes() == log.bundle()
    way_back = "import socket; s = socket.create_connection(('10.77.0.1', 4000), timeout=2)"
    assert subprocess.run(inside(z2, way_back), capture_output=True, check=False).returncode != 0
