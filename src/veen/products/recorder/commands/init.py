"""`veen recorder init`: roles, keys, tokens and the configuration at the hub (SDR-02 … SDR-06).

The identity that a command uses in a recorder.
"""

import time
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import connector
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.values import SIZE, SPAN

if TYPE_CHECKING:
    from veen.client.home import Home
    from veen.client.identity.identity import Identity
    from veen.products.recorder.roles import Equipped, RecorderRole
    from veen.products.recorder.setup import Wanted


def role_of(session: CliSession, home: "Home", name: str) -> "RecorderRole":
    """Open the identity `name`."""
    from veen.client.send.captokens import TokenStore
    from veen.products.recorder.roles import RecorderRole

    return RecorderRole(session.open_keystore(home, name), TokenStore(home.tokens_fs(name)), lambda: home.lock(name))


def _pairs(values: tuple[str, ...], what: str) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not (name and equals and rest):
            raise click.UsageError(f"{value!r} is not of the form {what}")
        pairs.setdefault(name, []).extend(part for part in rest.split(",") if part)
    return pairs


@click.command()
@click.option(
    "--producer",
    "producers",
    multiple=True,
    metavar="NAME=STREAM[,STREAM]",
    help="Producer and its streams. Repeatable.",
)
@click.option("--map", "mapping", multiple=True, metavar="TYPE=STREAM", help="Stream of an event type. Repeatable.")
@click.option(
    "--withdraw", "withdrawn", multiple=True, metavar="NAME|CLIENT_ID",
    help="Producer to withdraw from now on. Repeatable.",
)  # fmt: skip
@click.option("--admin", default="recorder-admin", help="Identity of the admin; created if missing.")
@click.option("--disclosure", default="recorder-privacy", help="Identity that can read redacted values.")
@click.option("--every", "every_sec", type=SPAN, help="Time between checkpoints. Default: 5m.")
@click.option("--every-events", type=click.IntRange(1), help="Events between checkpoints. Default: 10000.")
@click.option("--max-payload", type=SIZE, help="Largest payload of an event. Default: 256KiB.")
@click.option("--token-ttl", type=SPAN, default="30d", help="Validity of the producers' tokens.")
@click.option(
    "--keys-ahead",
    type=click.IntRange(0, 64),
    help="Future client keys of each producer that get a token. Default: one for each day of --token-ttl.",
)
@click.option("--insecure-plain-keystore", "insecure", is_flag=True, help="Create new identities without a passphrase.")
@client_options
def init(
    output: Output,
    session: CliSession,
    producers: tuple[str, ...],
    mapping: tuple[str, ...],
    withdrawn: tuple[str, ...],
    admin: str,
    disclosure: str,
    every_sec: int | None,
    every_events: int | None,
    max_payload: int | None,
    token_ttl: int,
    keys_ahead: int | None,
    insecure: bool,
) -> None:
    """Create the identities of the roles, their keys and tokens, and write the configuration to the hub.

    Run it again to add producers or streams, or to renew tokens: it writes only what is missing. The hub must trust the
    admin's key as an issuer (admission.trusted_issuers).

    --withdraw ends a producer's right: `veen recorder verify` reports its later events (SDR.PRODUCER).
    Its tokens stay valid until they expire or are revoked at the hub (`veen revoke writer NAME`).

    An agent replaces its client key every day, and a token names one key: so tokens for its next keys are issued, too.

    \b
    veen recorder init --producer web=record/app/web --producer gate=record/security/gate
    veen recorder init --producer web=record/app/web --map login=record/app/web --every 1m
    veen recorder init --withdraw web
    """
    import asyncio

    from veen.client.identity.rotation import MAX_LIFETIME_SEC
    from veen.core.limits import DEFAULT_LIMITS
    from veen.products.recorder.roles import MAX_SUCCESSORS, check_roles
    from veen.products.recorder.setup import Wanted

    if max_payload is not None and not 1024 <= max_payload <= DEFAULT_LIMITS.max_body_bytes - 16_384:
        raise click.UsageError("--max-payload is from 1KiB to 1007KiB: an event must fit into one message")
    producer_streams = _pairs(producers, "NAME=STREAM")
    types = {kind: streams[-1] for kind, streams in _pairs(mapping, "TYPE=STREAM").items()}
    check_roles(admin, disclosure, producer_streams)
    ahead = min(MAX_SUCCESSORS, -(-token_ttl // MAX_LIFETIME_SEC)) if keys_ahead is None else keys_ahead
    home = session.user_home
    roles = {name: _role(session, home, name, insecure) for name in (admin, disclosure, *producer_streams)}
    wanted = Wanted(
        producers={
            producer: streams
            for name, streams in producer_streams.items()
            for producer in _producers_of(roles[name].keystore.identity)
        },
        mapping=types,
        every_sec=every_sec,
        every_events=every_events,
        max_payload=max_payload,
        withdrawn=[client_id for name in withdrawn for client_id in _client_ids(session, home, name)],
    )
    with output.progress("writing the configuration"):
        equipped, lines, about = asyncio.run(
            _set_up(session, roles, admin, disclosure, producer_streams, wanted, token_ttl, ahead)
        )
    data = {
        **about,
        "admin": admin,
        "issuer": roles[admin].keystore.identity.id_sign_pk.hex(),
        "producers": {name: {"streams": streams, "client_id": roles[name].keystore.identity.client_id.hex()}
                      for name, streams in producer_streams.items()},
        "tokens": {name: token.auth_ref().hex() for name, token in equipped.tokens.items()},
        "tokens_ahead": {name: [token.auth_ref().hex() for token in tokens]
                         for name, tokens in equipped.successors.items()},
        "new_streams": list(equipped.new_streams),
        "written": lines,
    }  # fmt: skip

    def human() -> None:
        output.fields(
            (name, value)
            for name, value in data.items()
            if name not in ("producers", "tokens", "tokens_ahead", "written")
        )
        for name, streams in producer_streams.items():
            output.line(f"producer {name}: {', '.join(streams)}")
            if tokens := equipped.successors.get(name):
                output.line(f"tokens for {len(tokens)} further keys of {name}")
        for line in lines:
            output.line(f"wrote {line}")

    output.result(data, human)
    if producer_streams:
        name, streams = next(iter(producer_streams.items()))
        output.next(f"veen recorder emit {streams[0]} --identity {name} --type hello --subject me '{{}}'")


def _client_ids(session: CliSession, home: "Home", name: str) -> list[bytes]:
    """Return every client key of a producer: an identity of this machine, or one client_id in hex."""
    if home.has_identity(name):
        identity = role_of(session, home, name).keystore.identity
        return [identity.id_sign_pk, *(key.client_id for key in identity.client_keys)]
    try:
        client_id = bytes.fromhex(name)
    except ValueError:
        client_id = b""
    if len(client_id) != 32:
        raise click.UsageError(f"{name!r} is neither an identity of this machine nor a client_id in 64 hex digits")
    return [client_id]


def _producers_of(identity: "Identity") -> tuple[bytes, bytes]:
    """Return the ids that name a producer: its client key, and the principal that later keys are bound to (D-179)."""
    return identity.client_id, identity.id_sign_pk


def _role(session: CliSession, home: "Home", name: str, insecure: bool) -> "RecorderRole":
    from veen.client.identity.keystore import create_identity

    if not home.has_identity(name):
        from veen.cli.identity.group import default_identity

        secret = None if insecure else session.first_passphrase(name)
        default_identity(session, None)
        create_identity(home, name, secret, now=int(time.time()))
    return role_of(session, home, name)


async def _set_up(
    session: CliSession,
    roles: dict[str, "RecorderRole"],
    admin: str,
    disclosure: str,
    producers: dict[str, list[str]],
    wanted: "Wanted",
    ttl: int,
    keys_ahead: int,
) -> tuple["Equipped", list[str], dict[str, Any]]:
    from veen.api.token_authority import TokenAuthority
    from veen.client.errors import HubRefused
    from veen.products.recorder.roles import equip
    from veen.products.recorder.setup import apply

    connect, now = connector(session, session.user_home), int(time.time())
    chief = roles[admin]
    async with connect(chief.keystore.identity, chief.keystore.secrets.keyring) as client:
        hub_id, derived = client.hub_id, client.session.takes_derived
    named = {name: (roles[name], streams) for name, streams in producers.items()}
    equipped = equip(
        chief, named, roles[disclosure], ttl=ttl, hub_id=hub_id, now=now, keys_ahead=keys_ahead, derived=derived
    )
    ring = chief.keystore.secrets.keyring
    try:
        async with connect(chief.keystore.identity, ring) as client:
            authority = TokenAuthority(client, chief.tokens)
            gated = await authority.is_gated()
            lines = await apply(authority, chief.keystore.identity, ring, wanted, now=now)
    except HubRefused as exc:
        if exc.code != "E.CAP":
            raise
        issuer = chief.keystore.identity.id_sign_pk.hex()
        raise Fail(
            "SDR.ISSUER",
            "the hub does not take the admin's tokens",
            f"{exc}: the keys and tokens are made, and nothing is written at the hub yet",
            f"add {issuer} to admission.trusted_issuers of the hub, then run this command again",
        ) from exc
    return equipped, lines, {"hub_id": hub_id.hex(), "capability_gating": gated}
