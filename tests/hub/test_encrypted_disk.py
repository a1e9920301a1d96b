"""A disk that encrypts what is written to it: a hub need not know, and nobody who talks to it can tell (COMP0.2)."""

import hashlib

import pytest
from tests.client.hubs import ORDERS, Clock, client_at, copy_of, hub_at, person, pin_of, run

from veen.client.transport.inprocess import InProcess
from veen.hub.process import runtime
from veen.io.local import OsFs
from veen.storage import layout

NOW = 1_800_000_000
BLOCK_BYTES = 32
TEXTS = [b"message %d" % number for number in range(7)]


def encrypt(data, offset=0):
    """XOR with a key stream that depends on the place in the file; the same function decrypts."""
    first, skip = divmod(offset, BLOCK_BYTES)
    blocks = range(first, first + (skip + len(data)) // BLOCK_BYTES + 1)
    stream = b"".join(hashlib.sha256(b"key of the disk" + number.to_bytes(8, "big")).digest() for number in blocks)
    return bytes(a ^ b for a, b in zip(data, stream[skip:], strict=False))


class EncryptedFile:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read_at(self, offset, size):
        return encrypt(self._file.read_at(offset, size), offset)

    def write_at(self, offset, data):
        self._file.write_at(offset, encrypt(data, offset))


class EncryptedFs(OsFs):
    """All files but the index, which SQLite opens by itself and which is rebuilt from the others."""

    def open(self, path, *, create=False):
        return EncryptedFile(super().open(path, create=create))

    def replace(self, path, data, *, private=False):
        super().replace(path, encrypt(data), private=private)


class Recorded(InProcess):
    """Keeps what is asked and what is answered, byte by byte."""

    def __init__(self, handler):
        super().__init__(handler)
        self.exchanges = []

    async def call(self, operation, body=b"", **more):
        answer = await super().call(operation, body, **more)
        self.exchanges.append((operation, body, answer.status, answer.body))
        return answer


def files_of(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.req("COMP-03")
def test_a_hub_on_an_encrypted_disk_answers_the_same_bytes(tmp_path, monkeypatch):
    clock, plain, encrypted = Clock(NOW), tmp_path / "plain", tmp_path / "encrypted"
    who = person("alice", NOW)

    async def create_hub():
        async with hub_at(plain, clock=clock):
            pass

    async def record():
        async with hub_at(plain, clock=clock) as hub:
            wire = Recorded(hub.api)
            async with client_at(wire, pin_of(hub), who, tmp_path / "home", clock=clock) as client:
                await client.send("orders", TEXTS[0])
                await client.send_many("orders", TEXTS[1:])
                assert [entry.body async for entry in client.read("orders", with_proofs=True)] == TEXTS
                await client.proof("orders", 3)
            return wire.exchanges

    async def replay(exchanges):
        """The same requests; one half after a restart, which reads the encrypted files."""
        answers, half = [], len(exchanges) // 2
        for part in (exchanges[:half], exchanges[half:]):
            async with hub_at(encrypted, clock=clock) as hub:
                wire = InProcess(hub.api)
                for operation, body, _, _ in part:
                    answer = await wire.call(operation, body)
                    answers.append((operation, body, answer.status, answer.body))
        return answers

    run(create_hub())
    copy_of(plain, encrypted)
    for name, data in files_of(encrypted).items():
        if not name.startswith(layout.INDEX):
            (encrypted / name).write_bytes(encrypt(data))
    exchanges = run(record())
    monkeypatch.setattr(runtime, "data_fs", lambda path, _keys: EncryptedFs(path))
    assert {"v1/submit", "v1/stream", "v1/proof"} <= {operation for operation, *_ in exchanges}
    assert run(replay(exchanges)) == exchanges
    ids = (who.client_id, ORDERS.stream_id)
    on_disk = {name: data for name, data in files_of(encrypted).items() if not name.startswith(layout.INDEX)}
    assert any(who.client_id in data for data in files_of(plain).values())
    assert not [name for name, data in on_disk.items() if any(each in data for each in ids)]
