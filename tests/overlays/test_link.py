"""The client of the SDK is a link: overlays talk over real streams without knowing of it."""

from typing import TYPE_CHECKING

from veen.overlays import kv
from veen.overlays.framework.fold import fold_async
from veen.testing.events import FakeLog
from veen.testing.links import FakeHub, FakeLink

if TYPE_CHECKING:  # what matters here is what the type checker says
    from veen.client.client import Client
    from veen.overlays.framework.link import Link

    def real(client: Client) -> Link:
        return client

    def fake(link: FakeLink) -> Link:
        return link


def test_a_client_has_the_verbs_of_a_link():
    from veen.client.client import Client

    for verb in ("send", "read", "follow"):
        assert callable(getattr(Client, verb))
        assert callable(getattr(FakeLink, verb))


def test_events_that_arrive_over_time_fold_to_the_same_summary():
    import asyncio

    log = FakeLog()
    log.extend(kv.put(f"key {n % 7}", n) for n in range(50))

    async def fold():
        hub = FakeHub()
        hub.log = log
        fold = kv.KvFold()
        events = (entry.event async for entry in hub.link("reader").read("main"))
        return fold.view(await fold_async(fold, events, batch=8)) == fold.view(fold.summarize(log.all()))

    assert asyncio.run(fold())
