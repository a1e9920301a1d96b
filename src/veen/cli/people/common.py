"""Shared code of commands on shared streams: tokens for writing, announcements, file names."""

import re
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from veen.cli.shared.authority import authority
from veen.cli.shared.output import Fail

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.client.client import Client
    from veen.client.send.writing import Sent

T = TypeVar("T")


def with_authority(session: "CliSession", stream: str, work: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
    """Run work that writes to a stream, with the token that the hub asks for, if any."""
    client = session.client()
    token = authority(session, stream, None)
    if token is not None and client.keyring.for_stream(stream).stream_id in token.allow.stream_ids:
        client.authorize(token)
    return client.run(work)


def allow_writing(session: "CliSession", stream_id: bytes) -> None:
    """Show the hub a token for a stream id, if it asks for one. Raise TokenMissing if none is held."""
    client = session.client()
    if client.status().capability_gating:
        client.run(lambda inner: inner.token(stream_id))


def announce_card(session: "CliSession", stream: str) -> "Sent":
    """Announce the client key of this identity to the members of a stream."""
    from veen.client.generations import owning

    keys = session.client().keyring.for_stream(stream)
    if keys.owner_pk is None:
        raise Fail(
            "E.LOCAL.OWNER",
            f"{stream}: its owner is not known",
            "announcements are sealed for the members of a stream, whom its owner determines",
            f"veen keys owner {stream} NAME",
        )
    identity = session.keystore.identity
    return with_authority(session, stream, lambda client: owning.announce_card(client, identity, stream))


def announce_new_key(session: "CliSession", stream: str) -> None:
    """Announce the client key in use, if an earlier one of this identity was announced."""
    client, identity = session.client(), session.keystore.identity
    if client.keyring.owner_of(stream) is None:
        return
    state = client.run(lambda client: client.key_state(stream))
    own = {row.client_id for row in state.authors if row.id_sign_pk == identity.id_sign_pk} if state else set()
    if own and identity.client_id not in own:
        announce_card(session, stream)
        session.output.note(f"your client key is a new one: its card was announced in {stream}")


def file_name(text: str) -> str:
    """Return a file name made of the name of a stream or a person."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:64] or "stream"
