"""`veen cap` and `veen authorize`: capability tokens, from the issuer to the hub (spec §6, D-43 … D-49).

`veen pow`: the proof of work that a hub asks for, and its computation (001 SH1+ §5.2, D-59).
"""

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.evidence.proof import OUT
from veen.cli.hub.common import hub_options
from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.authority import authorize_token, read_token, takes_derived, token_store
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.entries import when
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.names import IDENTITY, STREAM
from veen.cli.shared.output import Exit, Fail, Mode, Output, output_options
from veen.cli.shared.values import RATE, SPAN

if TYPE_CHECKING:
    from veen.client.send.captokens import TokenInfo
    from veen.client.send.grants import TokenGrant
    from veen.client.transport.hubapi import HubApi
    from veen.core.crypto.ed25519 import SigningKey
    from veen.core.objects.captoken import CapToken

_ISSUER = click.option(
    "--issuer", type=IDENTITY, help="Identity that issues the token, or its directory. Default: yours."
)

cap = LazyGroup(
    "cap",
    help="Capability tokens: who may write where, until when, how fast.",
    table={
        "authorize": ("veen.cli.capabilities.group:cap_authorize", "Show a token to the hub: from then on it counts."),
        "serve": (
            "veen.products.issuance.commands.serving:serve",
            "Issue tokens to those that a policy names, over RPC.",
        ),
    },
)


def _issuer_key(session: CliSession, issuer: str | None) -> "SigningKey":
    """Return the long-term key of an issuer, which stays when client keys rotate, and which hubs list (D-45)."""
    home, name = session.place_of(issuer if issuer is not None else session.settings.identity.value)
    return session.open_keystore(home, name).identity.id_sign


@cap.verb("issue", "Issue a token to write to streams.")
@_ISSUER
@click.option("--subject", required=True, help="Writer: a card (veen1…), a client_id, an identity, a directory.")
@click.option("--stream", "streams", type=STREAM, multiple=True, required=True, help="Stream to write to. Repeatable.")
@click.option("--ttl", type=SPAN, required=True, help=options.TOKEN_TTL)
@click.option(
    "--rate",
    type=RATE,
    metavar="PER_SEC,BURST",
    help="Messages a second, and at once. Default: the hub's limit.",
)
@OUT
@identity_options
def issue(
    output: Output,
    session: CliSession,
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
    from veen.client.send.captokens import issue as mint
    from veen.core.objects.captoken import Rate

    who = _subject(session, subject)
    key = _issuer_key(session, issuer)
    limit = None if rate is None else Rate(per_sec=rate[0], burst=rate[1])
    token = mint(key, who, streams, ttl=ttl, rate=limit)
    _report_token(output, token, out)
    output.next(f"veen authorize {out or 'TOKEN'}")


def _subject(session: CliSession, text: str) -> bytes:
    """Return the client key of the subject."""
    from veen.client.identity.card import IdentityCard
    from veen.client.identity.keystore import read_card

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


def _report_token(output: Output, token: "CapToken", out: Path | None) -> None:
    from veen.client.send.captokens import describe

    raw = token.to_bytes()
    if out is not None:
        out.write_bytes(raw)
    data = _data(describe(token), token)
    rows = [*data.items(), ("file", str(out)) if out is not None else ("cbor", raw.hex())]
    output.result({**dict(rows), "token": token.to_json()}, lambda: output.fields(rows))


@cap.verb("show", "Rights and subject of a token.")
@click.argument("file", type=OBJECT_FILE)
@output_options
def show(output: Output, file: Path) -> None:
    """Show the rights in the token in FILE and its subject; of a forged one also the fault."""
    from veen.client.send.captokens import describe

    token = read_token(file)
    info = describe(token)
    data = {**_data(info, token), "fault": info.fault}

    def human() -> None:
        rows = {name: value for name, value in data.items() if name != "fault" or value is not None}
        if output.mode is Mode.HUMAN:
            rows["ttl"] = f"{info.ttl} s ({timedelta(seconds=info.ttl)}) from its first use at a hub"
            rate = info.rate
            rows["rate"] = "as the hub sets it" if rate is None else f"{rate.per_sec} a second, {rate.burst} at once"
        output.fields(rows.items())

    output.result(data, human)


@cap.verb("verify", "Check the signatures of a token.")
@click.argument("file", type=OBJECT_FILE)
@output_options
def verify(output: Output, file: Path) -> None:
    """Check every signature of the token in FILE. Whether the issuer may issue is for the hub to know."""
    from veen.cli.shared.verifying import check_object, show_checks
    from veen.core.checks import Given

    token = read_token(file)
    show_checks(
        output, file, token.to_bytes(), token, check_object(file, token, Given()), auth_ref=token.auth_ref().hex()
    )


@cap.verb("renew", "Sign a token once more, for another ttl.")
@click.argument("file", type=OBJECT_FILE)
@_ISSUER
@OUT
@identity_options
def renew(output: Output, session: CliSession, file: Path, issuer: str | None, out: Path | None) -> None:
    """Sign the token in FILE again: a new token with the same rights and a full ttl. Only its issuer can.

    \b
    veen cap renew cap.cbor --out renewed.cbor
    """
    from veen.core.errors import CapabilityError

    token = read_token(file)
    token.verify()
    key = _issuer_key(session, issuer)
    try:
        renewed = token.renew(key)
    except CapabilityError as exc:
        raise Fail(
            "E.LOCAL.TOKEN",
            f"{file}: cannot be renewed",
            str(exc),
            "give the identity that issued it by --issuer; `veen cap show FILE` names its key",
        ) from exc
    _report_token(output, renewed, out)
    output.next(f"veen authorize {out or 'TOKEN'}")


@click.command("authorize")
@click.argument("file", type=OBJECT_FILE, required=False)
@click.option(
    "--stream", "streams", type=STREAM, multiple=True, help="Stream to issue a token to yourself for. Repeatable."
)
@click.option("--ttl", type=SPAN, default="30d", show_default=True, help=options.TOKEN_TTL)
@client_options
def authorize(output: Output, session: CliSession, file: Path | None, streams: tuple[str, ...], ttl: int) -> None:
    """Show the token in FILE to the hub. Its ttl begins now, or began when the hub first saw it.

    The token is kept with the identity that it is for, and `veen send` uses it where the hub asks for one. Without
    FILE, an issuer that the hub trusts gives one to her own identity.
    """
    if (file is None) != bool(streams):
        raise click.UsageError("give FILE, or --stream to issue a token to yourself")
    if file is not None:
        grant, saved = authorize_token(session, read_token(file))
    else:
        grant, saved = _authorize_self(session, streams, ttl)
    output.result({**_grant_data(grant), "kept": saved})
    if not saved:
        output.note("it is for another identity than yours, so it is not kept here")


def _authorize_self(session: CliSession, streams: tuple[str, ...], ttl: int) -> "tuple[TokenGrant, bool]":
    """Issue a token to the identity in use, or to its client key at a hub that takes no derived tokens."""
    from veen.client.send.captokens import issue as mint

    identity, client = session.keystore.identity, session.client()
    subject = identity.id_sign_pk if client.run(takes_derived) else client.client_id
    token = mint(identity.id_sign, subject, streams, ttl=ttl)
    while True:
        grant, saved = authorize_token(session, token)
        if time.time() <= grant.expires_at:
            return grant, saved
        token = token.renew(identity.id_sign)  # equal bytes are an equal token: the hub had this one before


cap_authorize = authorize


def _grant_data(grant: "TokenGrant") -> dict[str, Any]:
    return {
        "auth_ref": grant.auth_ref.hex(),
        "issuer_pk": grant.token.issuer_pk.hex(),
        "subject_pk": grant.token.subject_pk.hex(),
        "issued_at": grant.issued_at,
        "expires_at": grant.expires_at,
        "expires": when(grant.expires_at),
        "live": int(time.time()) <= grant.expires_at,  # inclusive (D-48)
    }


@cap.verb("status", "State of a token at the hub, or of all that you hold.")
@click.argument("token", required=False)
@client_options
def status(output: Output, session: CliSession, token: str | None) -> None:
    """Show the hub's record of TOKEN (a file, or an auth_ref in hex); without it, the tokens that you hold.

    Exit code 6 if the hub knows it and it has expired.
    """
    if token is None:
        _list_tokens(output, session)
        return
    grant = session.client().cap_status(_auth_ref(token))
    data = _grant_data(grant)
    output.result(data)
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


def _list_tokens(output: Output, session: CliSession) -> None:
    """List the held tokens. No hub is asked: grants are stored with the tokens."""
    from veen.client.send.captokens import describe

    tokens = token_store(session).all()
    with output.records("tokens", ("auth_ref", "streams", "ttl", "hub_id", "expires"), (64, 20, 6, 64)) as records:
        for entry in tokens:
            info = describe(entry.token)
            grants = [
                {"hub_id": grant.hub_id.hex(), "issued_at": grant.issued_at, "expires_at": grant.issued_at + info.ttl}
                for grant in entry.grants
            ]
            streams = " ".join(info.streams)
            for grant in grants or [{"hub_id": None, "expires_at": None}]:
                end = grant["expires_at"]
                expires = when(end) if isinstance(end, int) else "not shown to a hub yet"
                records.add(
                    {**_data(info, entry.token), **grant},
                    (info.auth_ref.hex(), streams, info.ttl, grant["hub_id"] or "none", expires),
                )


_MAX_REQUEST_BYTES = 64 * 1024 * 1024

pow_ = LazyGroup("pow", help="Proof of work that a hub asks for.")


@pow_.verb("request", "Number of zero bits that a hub asks for.")
@hub_options
def request(output: Output, hub: "HubApi") -> None:
    """Show the number of zero bits that the hub asks for. `veen send --pow` pays by itself."""
    difficulty = hub.status().pow_difficulty
    output.result({"url": hub.url, "difficulty": difficulty, "expected_hashes": 1 << difficulty if difficulty else 0})


@pow_.verb("solve", "Compute the cookie for one request.")
@click.argument("file", type=OBJECT_FILE)
@click.option(
    "--difficulty", type=click.IntRange(1, 64), required=True, help="Number of zero bits. `veen pow request` shows it."
)
@click.option(
    "--start", type=click.IntRange(0, 2**63), default=0, help="First nonce to try. Another one gives another cookie."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help=options.CBOR_OUT)
@output_options
def solve(output: Output, file: Path, difficulty: int, start: int, out: Path | None) -> None:
    """Find a cookie for the request body in FILE ("-": standard input). It fits this body only, and passes once.

    The value goes into the header VEEN-PoW. Each bit doubles the work: 20 take about a second.
    """
    from veen.core.errors import LimitError
    from veen.core.pow import solve as solve_pow

    with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
        body = source.read(_MAX_REQUEST_BYTES + 1)
    if len(body) > _MAX_REQUEST_BYTES:
        raise LimitError("request bytes", len(body), _MAX_REQUEST_BYTES)
    started = time.perf_counter()
    with output.progress(f"looking for {difficulty} zero bits"):
        cookie = solve_pow(body, difficulty, start)
    if out is not None:
        out.write_bytes(cookie.to_bytes())
    data = {
        "header": f"VEEN-PoW: {cookie.to_bytes().hex()}",
        "challenge": cookie.challenge.hex(),
        "nonce": cookie.nonce,
        "difficulty": cookie.difficulty,
        "hashes": cookie.nonce - start + 1,
        "seconds": round(time.perf_counter() - started, 3),
    }
    output.result(data)
