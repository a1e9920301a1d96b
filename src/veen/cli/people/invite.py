"""`veen invite` and `veen join`: one file with all that somebody needs to use a stream."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.people.contacts import file_name, with_authority
from veen.cli.people.keys import note_ended, rotate_keys
from veen.cli.shared import options
from veen.cli.shared.authority import takes_derived
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.entries import when
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.people import card_of, contact_store
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.identity.card import IdentityCard
    from veen.client.identity.contacts import ContactBook
    from veen.client.identity.identity import Identity
    from veen.client.identity.keyring import StreamKeys
    from veen.client.invites import Invitation
    from veen.client.send.grants import TokenGrant
    from veen.core.objects.captoken import CapToken

_WEEK: Final = 7 * 86_400
_MONTH: Final = 30 * 86_400
_MAX_CODE: Final = 256


@click.command()
@click.argument("streams", type=STREAM, nargs=-1, required=True, metavar="STREAM...")
@click.option("--for", "who", metavar="NAME", help="Contact, or card (veen1…), who alone can open it.")
@click.option("--code", "by_code", is_flag=True, help="Protect it by a one-time code, for a person without a card.")
@click.option("--read", is_flag=True, help="Grant the right to read. Default: to read and to write.")
@click.option("--write", is_flag=True, help="Grant the right to write. Default: to read and to write.")
@click.option("--no-history", is_flag=True, help="Make a new generation first, and hand over no earlier one.")
@click.option("--expires", type=SPAN, default=_WEEK, help="Time until the invitation expires. Default: 7d.")
@click.option("--ttl", type=SPAN, default=_MONTH, help=f"{options.TOKEN_TTL} Default: 30d.")
@click.option("--address", metavar="URL", help="URL of the hub for the other machine. Default: that of this one.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write. Default: NAME.veen-invite."
)
@client_options
def invite(
    output: Output,
    session: CliSession,
    streams: tuple[str, ...],
    who: str | None,
    by_code: bool,
    read: bool,
    write: bool,
    no_history: bool,
    expires: int,
    ttl: int,
    address: str | None,
    out: Path | None,
) -> None:
    """Write an invitation to STREAM: the address of the hub with its pin, the keys, and a capability token.

    Sealed for a card (--for), or protected by a code that is shown once (--code); send the code over another channel
    than the file. The hand-over of a read key is written into the stream. The other side runs `veen join FILE`.

    The invitation hands over the generations since the last `veen keys rotate STREAM --no-history`. With --no-history a
    new generation is announced first, and it is the only one that is handed over.

    \b
    veen invite orders --for bob
    veen invite orders --code --expires 1h
    """
    from veen.client.invites import SUFFIX, Invitation, SealedInvite, new_code
    from veen.client.transport.addresses import without_credentials

    if by_code == (who is not None):
        raise click.UsageError("give --for NAME, or --code")
    read, write = (read, write) if read or write else (True, True)
    rights = " and ".join(word for word, right in (("read", read), ("write", write)) if right)
    card, contact = (None, None) if who is None else card_of(session, who)
    out = out or Path(f"{file_name(streams[0] if contact is None else contact.name)}{SUFFIX}")
    if out.exists():
        raise Fail(
            "E.LOCAL.INPUT",
            f"{out}: the file exists",
            "an invitation is not overwritten",
            "give --out FILE with another name, or remove the file",
        )
    client, now = session.client(), int(time.time())
    rings = [_keys(session, stream, read=read, history=not no_history) for stream in streams]
    seed = os.urandom(32) if card is None else None
    ca_file = session.settings.path("ca_file")
    token = _token(session, streams, card, ttl) if write else None
    invitation = Invitation(
        hub=without_credentials(address or session.hub_url),
        pin=session.pinned.to_text(),
        hub_id=None if session.pinned.is_root else client.hub_id,
        ca_pem=None if ca_file is None else ca_file.read_bytes(),
        keys=tuple(replace(keys, bound_to=None) for ring in rings for keys in ring),
        token=token,
        inviter=session.keystore.identity.card(),
        context=str(session.settings.context.value or "shared"),
        invite_seed=seed,
        expires_at=now + expires,
        rights=rights,
    ).sign(session.keystore.identity)
    code = None if card is not None else new_code()
    with output.progress("sealing the invitation"):
        sealed = (
            SealedInvite.for_code(invitation, code or "") if card is None else SealedInvite.for_card(invitation, card)
        )
    seqs = []
    if read:
        for stream, ring in zip(streams, rings, strict=True):
            seqs.append(_hand_over(session, stream, card, seed, invitation.expires_at, ring[1:]))
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{sealed.to_text()}\n")
    if token is not None and contact is not None:
        contact_store(session).change(lambda book: book.with_contact(book.get(contact.name).with_token(token)))
    data: dict[str, Any] = {
        "file": str(out),
        "streams": list(streams),
        "rights": rights,
        "for": None if card is None else (card.name if contact is None else contact.name),
        "token": None if token is None else token.auth_ref().hex(),
        "expires": when(invitation.expires_at),
        "hand_over_seqs": seqs,
        "code": code,
    }
    shown = [(name, value) for name, value in data.items() if value is not None and name != "hand_over_seqs"]
    output.result(data, lambda: output.fields(shown))
    if code is not None:
        output.note("the code is shown this once; send it over another channel than the file")
    if "127.0.0.1" in invitation.hub or "localhost" in invitation.hub:
        output.note(f"{invitation.hub} is an address of this machine: for another one give --address URL")
    output.next(f"veen join {out}")


def _keys(session: CliSession, stream: str, *, read: bool, history: bool) -> "list[StreamKeys]":
    """Return the newest generation, by the log up to now, and for readers the earlier ones that they get (D-182)."""
    client = session.client()
    if read:
        from veen.client.generations import owning

        identity = session.keystore.identity
        if not history:
            done = rotate_keys(session, stream, (), reason="a new reader without history")
            session.output.note(f"{stream}: generation {done.keys.generation} was announced, for the new reader")
            note_ended(session.output, done)
        _, state = client.run(lambda client: owning.require_owned(client, identity, stream))
        newest, *older = client.keyring.readers(stream)
        newest.secret()  # or say that there is none
        first = state.first_for_new_readers() if history else newest.generation
        return [newest, *(keys for keys in older if keys.can_read and keys.generation >= first)]
    client.run(lambda client: client.key_state(stream))
    return [client.keyring.for_stream(stream).for_writers()]


def _token(session: CliSession, streams: tuple[str, ...], card: "IdentityCard | None", ttl: int) -> "CapToken | None":
    """Issue a token for the identity on the card, where the hub asks for one; also for inboxes and its own stream."""
    from veen.client.identity.identity import principal_stream
    from veen.client.personal import inbox_id
    from veen.client.send.captokens import issue

    client = session.client()
    if not client.status().capability_gating:
        return None
    if card is None:
        raise Fail(
            "E.LOCAL.TOKEN",
            "the hub asks writers for a capability token, and a token is for one identity",
            "an invitation by code is for a person whose card is unknown",
            "invite by card (`veen invite STREAM --for NAME`), or to read only: `veen invite STREAM --code --read`",
        )
    identity = session.keystore.identity
    ids = [client.keyring.for_stream(stream).stream_id for stream in streams]
    # For the identity itself, where the hub lets it derive tokens for its client keys: those change every day.
    subject = card.id_sign_pk if client.run(takes_derived) else card.client_id
    ids += [inbox_id(card.id_sign_pk), inbox_id(identity.id_sign_pk), principal_stream(card.id_sign_pk)]
    return issue(identity.id_sign, subject, ids, ttl=ttl)


def _hand_over(
    session: CliSession,
    stream: str,
    card: "IdentityCard | None",
    seed: bytes | None,
    expires_at: int,
    earlier: "list[StreamKeys]",
) -> int:
    from veen.client.generations import owning
    from veen.core.crypto.ed25519 import SigningKey

    identity = session.keystore.identity
    invite_pk = None if seed is None else SigningKey(seed).public
    cards = () if card is None else (card,)
    until = None if seed is None else expires_at
    sent = with_authority(
        session,
        stream,
        lambda client: owning.hand_over(
            client, identity, stream, cards, earlier=earlier if cards else (), invite_pk=invite_pk, expires_at=until
        ),
    )
    return sent.seq


# --- joining ----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("invitation", metavar="FILE|WORD")
@click.option("--code", "code_source", metavar="SOURCE", help='Source of the code: "@FILE" or "-". Default: a prompt.')
@click.option("--name", "context_name", help="Name of the new context. Default: that of the inviter.")
@click.option("--use/--no-use", "chosen", default=None, help=options.USE)
@identity_options
def join(
    output: Output,
    session: CliSession,
    invitation: str,
    code_source: str | None,
    context_name: str | None,
    chosen: bool | None,
) -> None:
    """Use an invitation: FILE (or "-"), or the word itself. Pins the hub, and keeps its keys, token and inviter.

    The hub is asked first, and must be the one that the inviter pinned; until then nothing is kept. A code is never an
    argument, where other processes and the history of the shell would see it.

    \b
    veen join orders.veen-invite
    veen join orders.veen-invite --code @code.txt
    """
    from veen.client.invites import SealedInvite

    sealed = SealedInvite.from_text(_text_of(invitation))
    code = _code(session, code_source) if sealed.mode == "code" else None
    keystore, now = session.keystore, int(time.time())
    with output.progress("opening the invitation"):
        opened = sealed.open(now, identities=[keystore.identity], code=code)
    name, context, is_new = _context(session, opened, context_name)
    with output.progress(f"connecting to {opened.hub}"):
        hub_id, grant = _ask_hub(keystore.identity, opened, now)
    ring = opened.add_to(keystore.secrets.keyring, hub_id)
    inviter = _choose_name(contact_store(session).load(), opened.inviter)
    # From here on it is kept: keys first, the context that uses them last.
    with session.home.lock(session.identity_name):
        keystore.save(replace(keystore.secrets, keyring=ring))
    if opened.token is not None and grant is not None:
        from veen.cli.shared.authority import token_store

        store = token_store(session)
        store.put(opened.token)
        store.add_grant(grant.auth_ref, hub_id, grant.issued_at)
    if inviter is not None:
        contact_store(session).change(lambda book: book.with_card(inviter, opened.inviter, now))
    if is_new:
        _keep_context(session, name, context, opened, hub_id, chosen)
    enrolled = _enrol(session, name, opened)
    for keys in opened.keys:
        session.remember_stream(str(keys))
    names = sorted({str(keys) for keys in opened.keys})
    data = {
        "context": name,
        "hub": opened.hub,
        "pin": opened.pin,
        "hub_id": hub_id.hex(),
        "streams": names,
        "rights": opened.rights_text,
        "inviter": inviter or f"?{opened.inviter.name}",
        "inviter_card_id": opened.inviter.card_id,
        "token": None if opened.token is None else opened.token.auth_ref().hex(),
        "enrolled": enrolled,
    }
    output.result(data)
    output.note(f"compare the card id of {opened.inviter.name} with its owner: {opened.inviter.card_id}")
    output.next(f"veen stream {names[0]} --context {name}" if names else f"veen context use {name}")


def _text_of(invitation: str) -> str:
    from veen.client.errors import NotAnInvite
    from veen.client.invites import MAX_INVITE_CHARS, PREFIX

    if invitation.startswith(PREFIX):
        return invitation
    if invitation == "-":
        data = sys.stdin.buffer.read(MAX_INVITE_CHARS + 1)
    else:
        path = Path(invitation)
        if not path.is_file():
            raise NotAnInvite(f"{invitation}: neither a file nor the text of an invitation")
        with path.open("rb") as file:
            data = file.read(MAX_INVITE_CHARS + 1)
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as exc:
        raise NotAnInvite(f"{invitation}: not a line of text") from exc


def _code(session: CliSession, source: str | None) -> str:
    if source is None:
        return session.prompt("one-time code", hint="put the code into a file for you alone, and give --code @FILE")
    if source == "-":
        return sys.stdin.readline(_MAX_CODE)
    if source.startswith("@"):
        with Path(source[1:]).open(encoding="utf-8", errors="replace") as file:
            return file.readline(_MAX_CODE)
    raise Fail(
        "E.USAGE",
        "a code must not be an argument",
        "other processes and the history of the shell can see it now",
        "leave out --code to be asked for it, or put it into a file: --code @FILE",
    )


def _ask_hub(identity: "Identity", opened: "Invitation", now: int) -> "tuple[bytes, TokenGrant | None]":
    """Check that the hub is the pinned one; return its hub_id, and its answer to the token. Store nothing."""
    import asyncio
    from tempfile import TemporaryDirectory

    from veen.client.send.grants import Grants
    from veen.client.session import HubSession
    from veen.client.transport.calls import NO_RETRY, Calls
    from veen.client.transport.opening import open_transport
    from veen.client.verify.pin import HubPin
    from veen.core.objects.trusted_root import PinnedKey

    pinned = PinnedKey.parse(opened.pin)
    pin = (HubPin.of_root if pinned.is_root else HubPin.of_key)(pinned.public, opened.hub_id)

    async def ask(ca_file: Path | None) -> "tuple[bytes, TokenGrant | None]":
        transport = open_transport(opened.hub, ca_file=ca_file)
        try:
            hub = HubSession(Calls(transport, NO_RETRY), pin)
            await hub.open()
            opened.check(max(now, hub.hub_now()))  # the hub's clock counts as well
            grant = None
            if opened.token is not None:
                grant = await Grants(hub, identity).authorize(opened.token)
            return hub.hub_id, grant
        finally:
            await transport.aclose()

    with TemporaryDirectory(prefix="veen-join-") as directory:
        ca_file = None
        if opened.ca_pem is not None:
            ca_file = Path(directory) / "ca.pem"
            ca_file.write_bytes(opened.ca_pem)
        return asyncio.run(ask(ca_file))


def _choose_name(book: "ContactBook", card: "IdentityCard") -> str | None:
    """Return the inviter's name among the contacts; for a new one that of her card, unless it is in use."""
    from veen.client.errors import ContactUnknown, NameInvalid
    from veen.client.identity.identity import check_name

    contact = book.by_identity(card.id_sign_pk)
    if contact is not None:
        return contact.name
    try:
        check_name(card.name)
        book.get(card.name)
    except ContactUnknown:
        return card.name
    except NameInvalid:
        return None
    return None


def _context(session: CliSession, opened: "Invitation", wanted: str | None) -> "tuple[str, dict[str, Any], bool]":
    """Return the name of the context to use or to make. One that names this hub with this pin is used as it is."""
    from veen.client.config.file import check_value, read

    contexts = read(session.user_home.config_file).contexts
    for name, table in contexts.items():
        same = table.get("hub") == opened.hub and table.get("hub_pk") == opened.pin
        if same and wanted in (None, name):
            return name, dict(table), False
    name = wanted or file_name(opened.context).replace(".", "-")
    if wanted is not None and name in contexts:
        raise Fail(
            "E.LOCAL.CONTEXT",
            f"the context {name!r} exists",
            f"it names {contexts[name].get('hub')}",
            "give another name: --name NAME",
        )
    free = next(
        candidate
        for number in range(1, len(contexts) + 3)
        if (candidate := name if number == 1 else f"{name}-{number}") not in contexts
    )
    values = {"hub": opened.hub, "hub_pk": opened.pin}
    try:
        return free, {key: check_value(f"context.{free}.{key}", text) for key, text in values.items()}, True
    except ValueError as exc:
        from veen.client.errors import InviteDamaged

        raise InviteDamaged(f"its hub cannot be used: {exc}") from exc


def _keep_context(
    session: CliSession, name: str, table: "dict[str, Any]", opened: "Invitation", hub_id: bytes, chosen: bool | None
) -> None:
    from veen.client.config.file import read
    from veen.client.config.projects import change

    home: Home = session.user_home
    values: dict[str, Any] = {f"context.{name}.{key}": value for key, value in table.items()}
    if opened.hub_id is not None:
        values[f"context.{name}.hub_id"] = hub_id.hex()
    if opened.ca_pem is not None:
        fs = home.authorities_fs()
        fs.replace(f"{name}.pem", opened.ca_pem)
        values[f"context.{name}.ca_file"] = str(fs.root / f"{name}.pem")
    if session.settings.identity.value is not None:
        values[f"context.{name}.identity"] = session.settings.identity.value
    if chosen or (chosen is None and "current_context" not in read(home.config_file).top):
        values["current_context"] = name
    change(home.config_file, values)


def _enrol(session: CliSession, context: str, opened: "Invitation") -> bool:
    """Send the owner the card for which the code was used, so that it gets later generations."""
    from veen.client.errors import ClientError
    from veen.client.generations import owning

    invite = opened.enrolling
    readable = {keys.stream_id: keys for keys in reversed(opened.keys) if keys.can_read}
    if invite is None or not readable:
        return False
    there = session.in_context(context)
    try:
        identity = there.keystore.identity

        async def tell(client: "Client") -> None:
            for keys in readable.values():
                await owning.enrol(client, identity, keys, invite)

        there.client().run(tell)
    except ClientError as exc:
        session.output.note(
            f"your card could not be sent to the owner: after a new generation you need another invitation: {exc}"
        )
        return False
    finally:
        there.close()
    return True
