"""All load attacks at once against one hub process, while an honest writer goes on writing.

Nothing here asserts on a clock: the figures for throughput and latency are made by `python -m benchmarks.hostile`.
What is asserted are correctness and bounds: every honest message gets its receipt, the hub lives and stops in order,
its memory and its connections stay below what the configuration says, and its log is whole.
"""

import asyncio
import contextlib
import http.client
import resource
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.hubprocess import HubProcess
from tests.hub.hostile import attacks
from tests.waiting import until

from veen.io.local import OsFs
from veen.verify.directory import verify_data

HONEST_MESSAGES = 300  # that must be accepted while the attacks go on
ANSWER_BYTES = 32 << 20
MEMORY_BYTES = 512 << 20  # of the hub under all attacks; docs/operations.md says how to calculate it
MAX_CONNECTIONS, TURNED_AWAY, OWN_SOCKETS = 2_000, 64, 16
LARGE_ENTRIES, LARGE_BYTES = 40, 100_000  # one page of the label that the readers ask for: 4 MB, in JSON 8 MB
PATIENCE_SEC = 300.0  # for a machine that does many other things

OPTIONS = (
    "--dev",
    "--set",
    "engine.workers=1",
    "--set",
    "log.level=error",
    "--set",
    f"admission.pow_difficulty={attacks.POW_BITS}",
    "--set",
    f"listen.max_answer_bytes={ANSWER_BYTES}",
    "--set",
    f"listen.max_connections={MAX_CONNECTIONS}",
    "--set",
    "listen.max_event_stream_seconds=2",
    "--set",
    "limits.max_checkpoint_interval=256",
)


class Hub(HubProcess):
    """What the kernel and the hub itself say about the process."""

    @property
    def port(self):
        return urlsplit(self.url).port

    def resident_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def sockets(self):
        """Connections, and the few sockets that every hub has: it listens, and it talks to its verifiers."""
        count = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                count += link.readlink().name.startswith("socket:")
        return count

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))


@contextlib.contextmanager
def running(data_dir, *options, files=None):
    """A hub that may open `files` files, if that is given."""
    command = [sys.executable, "-m", "veen", "hub", "start"]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    hub = Hub(data_dir, *options, program=command)
    try:
        yield hub
    finally:
        if hub.process.poll() is None:
            hub.stop(signal.SIGKILL)
        hub.stdout.close()


async def fight(hub, writer, names, *, messages=HONEST_MESSAGES):
    """Run attacks until the honest writer has had `messages` answers; the most memory and connections
    there were, and the bytes of answers that were unread at the end."""
    battle = attacks.Battle(hub.port)
    fighters = [asyncio.ensure_future(attacks.ATTACKS[name](battle)) for name in names]
    memory = connections = 0
    try:
        async with asyncio.timeout(PATIENCE_SEC):
            while len(writer.seconds) < messages or not all_there(battle, names):
                assert hub.process.poll() is None, hub.log.read_text()[-2000:]
                assert not writer.failure, writer.failure
                assert not any(fighter.done() for fighter in fighters), fighters
                memory = max(memory, hub.resident_bytes())
                connections = max(connections, hub.sockets())
                await asyncio.sleep(0.1)
            unread = await asyncio.to_thread(hub.metric, "veen_unread_answer_bytes")
    finally:
        battle.over.set()
        for fighter in fighters:
            fighter.cancel()
        results = await asyncio.gather(*fighters, return_exceptions=True)
    assert [error for error in results if isinstance(error, Exception)] == []
    return battle.counts, memory, connections, unread


DONE = {  # what an attack must have got done before the battle may end: how its counts begin, and how many
    "idle connections": ("idle: connected", attacks.IDLE),
    "slow heads": ("slow heads: bytes", attacks.SLOW_HEADS * 5),
    "unread reads": ("unread reads: sent", attacks.UNREAD * attacks.PIPELINED),
    "tiny chunks": ("tiny chunks: sent", attacks.TINY_CHUNKS * 8192 * 10),
    "event streams": ("event streams: 200", attacks.STREAMS // 2 + 4),  # some came back after their time was up
    "refused requests": ("refused requests: 4", 100),
    "replays": ("replays: 4", 50),
    "expensive requests": ("expensive requests: 200", 5),
}


def all_there(battle, names):
    def count(begin):
        return sum(number for what, number in battle.counts.items() if what.startswith(begin))

    return all(count(begin) >= least for begin, least in (DONE[name] for name in names))


@pytest.fixture
def many_files():
    """This process opens as many sockets as all attackers together."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"1,500 attackers need 4096 file descriptors, and this process may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_an_honest_writer_goes_on_under_all_attacks(tmp_path, many_files):
    with running(tmp_path / "hub", *OPTIONS) as hub:
        attacks.fill(hub.port, "large", LARGE_ENTRIES, LARGE_BYTES)
        writer = attacks.Writer(hub.port)
        writer.start()
        try:
            counts, memory, connections, unread = asyncio.run(fight(hub, writer, attacks.ATTACKS))
        finally:
            writer.stop()
        assert not writer.failure, writer.failure
        assert set(writer.statuses) == {200}, writer.statuses
        accepted = hub.metric(
            "veen_submit_ok_total"
        )  # of the replays one at most, which its attacker may not have read
        assert accepted - LARGE_ENTRIES - len(writer.seconds) in (0, 1)
        assert unread <= ANSWER_BYTES, unread
        assert memory < MEMORY_BYTES, (memory >> 20, counts)
        assert connections <= MAX_CONNECTIONS + TURNED_AWAY + OWN_SOCKETS
        assert counts["idle: refused"] or counts["idle: thrown out"], counts  # one address does not get them all
        assert counts["replays: 200"] <= 1, counts
        assert hub.stop() == 0
    report = verify_data(OsFs(tmp_path / "hub"))
    assert not [finding for finding in report.findings if finding.severity == "error"], report.findings


def test_more_idle_connections_than_descriptors_do_not_end_the_hub(tmp_path):
    """The journal, the chunks of many labels and the index go on opening files; the connections leave room for them."""
    files, idle, labels = 128, 300, 40
    options = (*OPTIONS, "--set", "engine.retire_seconds=1", "--set", "limits.max_checkpoint_interval=4")
    with running(tmp_path / "hub", *options, files=files) as hub:
        assert hub.metric("veen_max_connections") < files

        def write():
            for number in range(labels):
                attacks.fill(hub.port, f"label {number}", 6, 24)
            until(lambda: hub.metric("veen_retire_seconds_count") > 0)  # the index is open and all files are synced
            assert hub.metric("process_open_fds") <= files

        async def scenario():
            battle = attacks.Battle(hub.port)
            connections = []
            for number in range(idle):  # from three addresses: a quarter of all places stays free
                with contextlib.suppress(OSError):
                    connections.append(await battle.connect(f"127.0.0.{10 + number % 3}"))
            await asyncio.to_thread(write)
            for _, writer in connections:
                writer.transport.abort()

        asyncio.run(scenario())
        assert hub.process.poll() is None, hub.log.read_text()[-2000:]
        assert hub.stop() == 0
    report = verify_data(OsFs(tmp_path / "hub"))
    assert not [finding for finding in report.findings if finding.severity == "error"], report.findings
