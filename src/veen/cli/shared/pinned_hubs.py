"""The hubs of contexts, for commands that speak to several."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from veen.cli.shared.command import CliSession

if TYPE_CHECKING:
    from veen.client.pinned_hub import PinnedHub


def hubs_of(session: CliSession, contexts: Sequence[str] = ()) -> "list[PinnedHub]":
    """Return the hubs of some contexts; that of the current one if none is named."""
    return [_hub_of(session.in_context(name)) for name in contexts] or [_hub_of(session)]


def _hub_of(session: CliSession) -> "PinnedHub":
    from veen.client.pinned_hub import PinnedHub

    settings = session.settings
    return PinnedHub(
        name=str(settings.context.value or session.hub_url),
        url=session.hub_url,
        pin=session.pin,
        ca_file=settings.path("ca_file"),
        token_file=settings.path("token_file"),
        insecure_http=bool(settings.insecure_http.value),
    )
