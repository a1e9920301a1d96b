"""What a hub answers when its disk takes no record: an answer, always."""

import asyncio
import errno

import pytest
from tests.hub import builders as w
from tests.hub.test_runtime import running
from tests.waiting import DEADLINE_SEC, eventually

from veen.client.errors import HubRefused
from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.http import HttpTransport
from veen.core.objects.control import HubFence, root_of_heads
from veen.core.objects.tooling import RecordResponse, StreamRegisterRequest, VersionRequest
from veen.core.wire import Wire
from veen.hub.sequencer import sequencer as module

REQUESTS: dict[str, Wire] = {
    "streams": StreamRegisterRequest(stream_id=w.STREAM),
    "fence": VersionRequest(),
}


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, DEADLINE_SEC))


def fill_disk(hub):
    """Have the next journal write find no room; return how to make room again."""
    write, journal = hub.sequencer.store.journal.write, hub.sequencer.store.journal

    def full(payload):
        raise OSError(errno.ENOSPC, "No space left on device")

    journal.write = full
    return lambda: setattr(journal, "write", write)


@pytest.mark.parametrize("operation", REQUESTS)
def test_on_a_full_disk_an_administrative_call_gets_an_answer_and_its_connection_is_free_again(tmp_path, operation):
    """A future cancelled to say "failed" ended the task of the connection, and nobody was answered."""
    token = tmp_path / "token"
    token.write_text("t" * 40)
    token.chmod(0o600)

    async def scenario():
        flags = {"auth__admin_token_files": str(token), "engine__min_free_bytes": "0"}
        async with running(tmp_path, **flags) as hub:
            transport = HttpTransport(hub.url, token_file=token, timeout=30)
            calls = Calls(transport, NO_RETRY)
            fill_disk(hub)  # the store is opened anew, with a journal that has room
            with pytest.raises(HubRefused) as caught:
                await calls.ask(f"tooling/{operation}", REQUESTS[operation], RecordResponse)
            assert caught.value.code == "E.UNAVAILABLE"
            await eventually(lambda: hub.sequencer.no_space is None)
            record = (await calls.ask(f"tooling/{operation}", REQUESTS[operation], RecordResponse)).record
            await transport.aclose()
            await eventually(lambda: hub._server.connections == 0)
            return record

    assert run(scenario()).seq == 2


def test_a_fence_over_many_labels_lets_others_have_their_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_HEADS_AT_ONCE", 2)

    async def scenario():
        async with running(tmp_path) as hub:
            for number in range(9):
                await hub.sequencer.submit(w.msg(token=None, label=bytes([number]) * 32).to_bytes())
            turns = [0]

            async def count():
                while True:
                    turns[0] += 1
                    await asyncio.sleep(0)

            counting = asyncio.ensure_future(count())
            body = await hub.sequencer._fence_body()
            counting.cancel()
            store = hub.sequencer.store
            heads = [(files.label, files.size, files.root()) for files in store.labels() if files.size]
            assert body == HubFence(upto=9, root=root_of_heads(heads))
            return turns[0]

    assert run(scenario()) >= 4
