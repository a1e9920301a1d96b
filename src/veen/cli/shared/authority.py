"""The capability token that a command writes with: the given one, or the best one held where the hub asks for one."""

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from veen.cli.shared.files import OBJECT_FILE, read_object
from veen.cli.shared.output import Exit, Fail

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.client.client import Client
    from veen.client.send.captokens import HeldToken, TokenStore
    from veen.client.send.grants import TokenGrant
    from veen.core.objects.captoken import CapToken

CAP = click.option("--cap", type=OBJECT_FILE, help="Capability token to write with. Default: one that you hold.")


def read_token(path: Path) -> "CapToken":
    """Read a cap_token from a file."""
    from veen.core.objects.captoken import CapToken

    token = read_object(path, exit_code=Exit.BAD_EVIDENCE)[1].obj
    if not isinstance(token, CapToken):
        raise Fail("E.USAGE", f"{path}: not a cap_token", f"it is a {token.KIND}", "give a file of `veen cap issue`")
    return token


def token_store(session: "CliSession") -> "TokenStore":
    """Return the store of the tokens of the identity in use."""
    from veen.client.send.captokens import TokenStore

    return TokenStore(session.home.tokens_fs(session.identity_name))


def authorize_token(session: "CliSession", token: "CapToken") -> "tuple[TokenGrant, bool]":
    """Show a token to the hub and store its start of validity. Return also if it was stored, which only own ones are.

    A keystore on a read-only file system, such as a mounted Secret, stores nothing: the token is used anyway.
    """
    client = session.client()
    grant = client.authorize(token)
    if token.subject_pk not in (client.client_id, session.keystore.identity.id_sign_pk):
        return grant, False
    store = token_store(session)
    try:
        store.put(token)
        store.add_grant(grant.auth_ref, client.hub_id, grant.issued_at)
    except OSError as exc:
        if exc.errno != errno.EROFS:
            raise
        return grant, False
    return grant, True


def authority(session: "CliSession", stream: str, cap: Path | None, *, contact: bool = True) -> "CapToken | None":
    """Return the token for a message to `stream`, known to the hub; None if the hub asks for none.

    Without `contact` the hub is not called.
    """
    client = session.client()
    if cap is not None:
        token = read_token(cap)
        stored = token_store(session).get(token.auth_ref())
        if contact and (stored is None or stored.issued_at(client.hub_id) is None):
            authorize_token(session, token)
            return token
    elif not client.status().capability_gating:
        return None
    else:
        stream_id = session.keystore.secrets.keyring.for_stream(stream).stream_id
        if contact:
            return _find_token(session, stream, stream_id)
        stored = token_store(session).usable(client.hub_id, client.client_id, stream_id, int(time.time()))
        token = stored.token
    if stored is not None:
        _remind(session, stored)
    return token


def _find_token(session: "CliSession", stream: str, stream_id: bytes) -> "CapToken":
    """Return a token that the hub knows. Without one, the error tells an owner how to issue one to herself."""
    from veen.client.errors import TokenMissing

    try:
        return session.client().run(lambda inner: inner.token(stream_id))
    except TokenMissing as exc:
        secrets = session.keystore.secrets
        if secrets.keyring.owner_of(stream) != secrets.identity.id_sign_pk:
            raise
        raise Fail(
            "E.LOCAL.TOKEN",
            str(exc),
            f"the hub asks for a token also from you, who own {stream}",
            f"veen authorize --stream {stream}, if the hub trusts you as an issuer; else ask an issuer for a token",
        ) from exc


async def takes_derived(client: "Client") -> bool:
    """Return True if the hub takes tokens that a principal issues for its client keys."""
    return client.session.takes_derived


def _remind(session: "CliSession", stored: "HeldToken") -> None:
    """Give the client an authorisation of an earlier run, so that it does not ask again."""
    from veen.client.send.grants import TokenGrant

    client = session.client()
    issued_at = stored.issued_at(client.hub_id)
    if issued_at is not None:
        client.remember(
            TokenGrant(
                token=stored.token,
                auth_ref=stored.auth_ref,
                issued_at=issued_at,
                expires_at=issued_at + stored.token.allow.ttl,
            )
        )
