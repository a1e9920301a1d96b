"""`veen cap` and `veen authorize`: capability tokens, from the issuer to the hub (spec §6, D-43 … D-49)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.authority import authorized, read_token, token_store
from veen.cli.clictx import Session, client_options, identity_options
from veen.cli.entries import when
from veen.cli.files import OBJECT_FILE
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import IDENTITY, STREAM
from veen.cli.output import Exit, Fail, Output, output_options
from veen.cli.receipt import OUT
from veen.cli.values import RATE, SPAN

if TYPE_CHECKING:
    from veen.client.captokens import TokenInfo
    from veen.client.grants import Grant
    from veen.core.captoken import CapToken
    from veen.core.ed25519 import SigningKey

__all__ = ["authorize", "cap", "cap_authorize", "issue", "renew", "show", "status", "verify"]

_ISSUER = click.option(
    "--issuer", type=IDENTITY, help="Whose word it is: an identity or its directory; default: yours."
)


class _CapGroup(LazyGroup):
    table: ClassVar[Table] = {
        "authorize": ("veen.cli.cap:cap_authorize", "Show a token to the hub: from then on it counts."),
        "issue": ("veen.cli.cap:issue", "Let somebody write to streams, for a while."),
        "renew": ("veen.cli.cap:renew", "Sign a token once more, for another ttl."),
        "show": ("veen.cli.cap:show", "What a token allows, and whom."),
        "status": ("veen.cli.cap:status", "What the hub knows of a token, or of all that you hold."),
        "verify": ("veen.cli.cap:verify", "Check the signatures of a token."),
    }


@click.group(cls=_CapGroup)
def cap() -> None:
    """Capability tokens: who may write where, until when, how fast."""


def _signing_key(session: Session, issuer: str | None) -> "SigningKey":
    """Issuers sign with their long-term key: it stays when client keys rotate, and hubs list it (D-45)."""
    home, name = session.place_of(issuer if issuer is not None else session.settings.identity.value)
    return session.opened(home, name).identity.id_sign


@click.command()
@_ISSUER
@click.option("--subject", required=True, help="Who may write: a card (veen1…), a client_id, an identity, a directory.")
@click.option("--stream", "streams", type=STREAM, multiple=True, required=True, help="Where. Repeatable.")
@click.option("--ttl", type=SPAN, required=True, help="How long, from the first time a hub sees it: 600, 10m, 7d.")
@click.option("--rate", type=RATE, metavar="PER_SEC,BURST", help="How fast; default: as fast as the hub allows.")
@OUT
@output_options
@identity_options
def issue(
    output: Output,
    session: Session,
    issuer: str | None,
    subject: str,
    streams: tuple[str, ...],
    ttl: int,
    rate: tuple[int, int] | None,
    out: Path | None,
) -> None:
    """Sign a token that lets a client key write. Equal inputs give equal bytes; the hub must trust the issuer's key.

    \b
    veen cap issue --subject veen1… --stream core/quota --ttl 10m --rate 100,100 --out cap.cbor
    veen authorize cap.cbor
    """
    from veen.client.captokens import issue as mint
    from veen.core.captoken import Rate

    who = _subject(session, subject)
    key = _signing_key(session, issuer)
    limit = None if rate is None else Rate(per_sec=rate[0], burst=rate[1])
    token = mint(key, who, streams, ttl=ttl, rate=limit)
    _told(output, token, out)
    output.next(f"veen authorize {out or 'TOKEN'}")


def _subject(session: Session, text: str) -> bytes:
    """The client key of whoever is meant."""
    from veen.client.card import IdentityCard
    from veen.client.keystore import read_card

    if text.startswith("veen1"):
        return IdentityCard.from_text(text).client_id
    try:
        data = bytes.fromhex(text.removeprefix("ed25519:"))
    except ValueError:
        data = b""
    if len(data) == 32:
        return data
    home, name = session.place_of(text)
    return read_card(home.identity_fs(name)).client_id


def _data(info: "TokenInfo", token: "CapToken") -> dict[str, Any]:
    rate = info.rate
    return {
        "auth_ref": info.auth_ref.hex(),
        "issuer_pk": info.issuer_pk.hex(),
        "subject_pk": info.subject_pk.hex(),
        "streams": list(info.streams),
        "ttl": info.ttl,
        "rate": None if rate is None else {"per_sec": rate.per_sec, "burst": rate.burst},
        "links": info.links,
        "bytes": len(token.to_bytes()),
    }


def _told(output: Output, token: "CapToken", out: Path | None) -> None:
    from veen.client.captokens import describe

    raw = token.to_bytes()
    if out is not None:
        out.write_bytes(raw)
    data = _data(describe(token), token)
    rows = [*data.items(), ("file", str(out)) if out is not None else ("cbor", raw.hex())]
    output.result({**dict(rows), "token": token.to_json()}, lambda: output.fields(rows))


@click.command()
@click.argument("file", type=OBJECT_FILE)
@output_options
def show(output: Output, file: Path) -> None:
    """What the token in FILE allows, and whom; a forged one is shown too, with what is wrong."""
    from veen.client.captokens import describe

    token = read_token(file)
    info = describe(token)
    data = {**_data(info, token), "fault": info.fault}
    output.result(data, lambda: output.fields(data.items()))


@click.command()
@click.argument("file", type=OBJECT_FILE)
@output_options
def verify(output: Output, file: Path) -> None:
    """Check every signature of the token in FILE. Whether the issuer may issue is for the hub to know."""
    from veen.cli.verifying import told_checks, verified
    from veen.core.checks import Given

    token = read_token(file)
    told_checks(output, file, token.to_bytes(), token, verified(file, token, Given()), auth_ref=token.auth_ref().hex())


@click.command()
@click.argument("file", type=OBJECT_FILE)
@_ISSUER
@OUT
@output_options
@identity_options
def renew(output: Output, session: Session, file: Path, issuer: str | None, out: Path | None) -> None:
    """Sign the token in FILE once more: a new token with the same rights and a full ttl (D-44). Only its issuer can.

    \b
    veen cap renew cap.cbor --out renewed.cbor
    """
    from veen.core.errors import CapabilityError

    token = read_token(file)
    token.verify()
    key = _signing_key(session, issuer)
    try:
        renewed = token.renew(key)
    except CapabilityError as exc:
        raise Fail(
            Exit.LOCAL,
            f"{file}: cannot be renewed",
            str(exc),
            "give the identity that issued it by --issuer; `veen cap show FILE` names its key",
            "E.LOCAL.TOKEN",
        ) from exc
    _told(output, renewed, out)
    output.next(f"veen authorize {out or 'TOKEN'}")


def _authorize(output: Output, session: Session, file: Path) -> None:
    """Show the token in FILE to the hub. Its ttl begins now, or began when the hub first saw it (D-47).

    The token is kept with the identity that it is for, and `veen send` uses it where the hub asks for one.
    """
    grant, kept = authorized(session, read_token(file))
    data = {**_granted(grant), "kept": kept}
    output.result(data, lambda: output.fields(data.items()))
    if not kept:
        output.note("it is for another client key than yours, so it is not kept here")


authorize = click.command("authorize")(
    click.argument("file", type=OBJECT_FILE)(output_options(client_options(_authorize)))
)
cap_authorize = click.command("authorize")(
    click.argument("file", type=OBJECT_FILE)(output_options(client_options(_authorize)))
)


def _granted(grant: "Grant") -> dict[str, Any]:
    return {
        "auth_ref": grant.auth_ref.hex(),
        "issuer_pk": grant.token.issuer_pk.hex(),
        "subject_pk": grant.token.subject_pk.hex(),
        "issued_at": grant.issued_at,
        "expires_at": grant.expires_at,
        "expires": when(grant.expires_at),
        "live": int(time.time()) <= grant.expires_at,  # inclusive (D-48)
    }


@click.command()
@click.argument("token", required=False)
@output_options
@client_options
def status(output: Output, session: Session, token: str | None) -> None:
    """What the hub knows of TOKEN (a file, or an auth_ref in hex); without it, the tokens that you hold.

    Exit code 6 if the hub knows it and it has expired.
    """
    if token is None:
        _held(output, session)
        return
    grant = session.client().cap_status(_auth_ref(token))
    data = _granted(grant)
    output.result(data, lambda: output.fields(data.items()))
    if not data["live"]:
        raise click.exceptions.Exit(Exit.POLICY)


def _auth_ref(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) == 32:
        return data
    path = Path(text)
    if not path.is_file():
        raise click.UsageError(f"{text!r} is neither a file nor an auth_ref of 64 hex digits")
    return read_token(path).auth_ref()


def _held(output: Output, session: Session) -> None:
    """No hub is asked: grants are kept with the tokens."""
    from veen.client.captokens import describe

    found = token_store(session).all()
    with output.records("tokens", ("auth_ref", "streams", "ttl", "hub_id", "expires"), (64, 20, 6, 64)) as records:
        for held in found:
            info = describe(held.token)
            grants = [
                {"hub_id": grant.hub_id.hex(), "issued_at": grant.issued_at, "expires_at": grant.issued_at + info.ttl}
                for grant in held.grants
            ]
            streams = " ".join(info.streams)
            for grant in grants or [{"hub_id": None, "expires_at": None}]:
                end = grant["expires_at"]
                expires = when(end) if isinstance(end, int) else "not shown to a hub yet"
                records.add(
                    {**_data(info, held.token), **grant},
                    (info.auth_ref.hex(), streams, info.ttl, grant["hub_id"] or "none", expires),
                )
