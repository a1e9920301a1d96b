"""`veen id delegate` and `veen id resolve`: tokens for devices, and the targets of names (ID §9, §10)."""

from pathlib import Path
from typing import Any

import click

from veen.cli.identity.args import Realm, folded_ids, id_options
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import absent, show_folded
from veen.cli.shared.values import RATE, SPAN
from veen.overlays.framework.plain import plain


@click.command()
@click.argument("device", metavar="CARD|DEVICE_PK")
@click.option(
    "--ttl", type=SPAN, default="1d", show_default=True, help="Lifetime, counted from the first use at a hub."
)
@click.option("--for-stream", "streams", type=STREAM, multiple=True, help="Additional stream to write to. Repeatable.")
@click.option("--rate", type=RATE, help="Messages per second and burst: 100,200.")
@click.option("--as-org", is_flag=True, help="Sign as an organization: the key need not be a device of yours.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write the token to."
)
@id_options
@client_options
def delegate(
    output: Output,
    session: CliSession,
    device: str,
    ttl: int,
    streams: tuple[str, ...],
    rate: tuple[int, int] | None,
    as_org: bool,
    out: Path,
    realm: Realm,
) -> None:
    """Let a device act for you: a capability token, signed by your long-term key, for its client key.

    It covers your own stream, your account in the realm, and --for-stream. The device must be an ACTIVE one of yours:
    see `veen id device add`. The holder shows it to a hub by `veen authorize FILE`.

    \b
    veen id delegate veen1xyz --realm shop --for-stream orders --ttl 7d --out phone.token
    """
    from veen.cli.shared.files import hex32
    from veen.client.identity.card import IdentityCard
    from veen.client.identity.keyring import StreamRef
    from veen.core.objects.captoken import Rate
    from veen.overlays.id.delegation import delegate as issue
    from veen.overlays.id.delegation import delegate_by_org

    device_pk = IdentityCard.from_text(device).client_id if device.startswith("veen1") else hex32(device)
    identity = session.keystore.identity
    allowed = [ref.stream_id for ref in map(StreamRef.parse, streams) if ref.stream_id is not None]
    limit = None if rate is None else Rate(per_sec=rate[0], burst=rate[1])
    if as_org:
        token = delegate_by_org(identity.id_sign, device_pk, ttl=ttl, streams=allowed, rate=limit)
    else:
        folded = folded_ids(session, realm, View(None, keep=True))
        token = issue(
            identity.id_sign,
            device_pk,
            state=folded.state,
            as_of=folded.as_of,
            ttl=ttl,
            realms=[realm.id],
            streams=allowed,
            rate=limit,
        )
    out.write_bytes(token.to_bytes())
    data: dict[str, Any] = {
        "auth_ref": token.auth_ref().hex(),
        "issuer_pk": token.issuer_pk.hex(),
        "subject_pk": token.subject_pk.hex(),
        "streams": [stream_id.hex() for stream_id in token.allow.stream_ids],
        "ttl": ttl,
        "file": str(out),
    }
    output.result(data)
    output.next(f"veen authorize {out}")


@click.command()
@click.argument("name", metavar="HANDLE|PROVIDER:SUBJECT")
@click.option("--external", is_flag=True, help="NAME is an external account, PROVIDER:SUBJECT.")
@click.option(
    "--writer", "writers", multiple=True, help="client_id of an accepted writer of links. Repeatable. Default: all."
)
@view_options
@id_options
@client_options
def resolve(
    output: Output,
    session: CliSession,
    name: str,
    external: bool,
    writers: tuple[str, ...],
    realm: Realm,
    view: View,
) -> None:
    """Print the target of a handle or of an external account in a realm. A revoked target is reported as none.

    \b
    veen id resolve @ann --realm shop
    veen id resolve corp:4711 --external --realm shop
    """
    from veen.cli.shared.files import hex32

    folded = folded_ids(session, realm, view)
    state, as_of = folded.state, folded.as_of
    kind, target = "ctx", None
    if external:
        provider, colon, subject = name.partition(":")
        if not colon:
            raise click.UsageError(f"{name!r} is not of the form PROVIDER:SUBJECT")
        trusted = [hex32(writer) for writer in writers] or None
        link = state.link(realm.id, provider, subject, as_of=as_of, writers=trusted)
        if link is not None:
            kind, target = ("ctx", link.ctx_id) if link.ctx_id is not None else ("org", link.org_id)
    elif (mapping := state.resolve(realm.id, name, as_of=as_of)) is not None:
        kind, target = mapping.target_type, mapping.target_id
    if target is None:
        raise absent(f"identity behind {name!r}", "veen id external list" if external else "veen id handle list")
    profile = state.contexts.get((target, realm.id)) if kind == "ctx" else state.orgs.get(target)
    data = {
        "name": name,
        "realm_id": realm.id,
        "target_type": kind,
        "target_id": target,
        "display_name": None if profile is None else profile.display_name,
        "principal_pk": state.principal_of(target, realm.id) if kind == "ctx" else None,
        "conflicts": plain(state.conflicts()),
    }
    show_folded(session, folded, data, lambda: output.fields((key, value) for key, value in data.items() if value))
