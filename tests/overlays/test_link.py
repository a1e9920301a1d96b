"""The client of the SDK is a link: overlays talk over real streams without knowing of it."""

from typing import TYPE_CHECKING

from veen.testing.links import FakeLink

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
