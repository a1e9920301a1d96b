"""`veen id handle` and `external`, add and revoke: names of accounts and organizations."""

from pathlib import Path

import click

from veen.cli.asof import View
from veen.cli.clictx import Session
from veen.cli.idargs import EXPIRES, Realm, ctx_of, folded_ids, id_write, json_object, now, org_of, send_addressed
from veen.cli.output import Output
from veen.cli.overlaycmd import absent, drafted

__all__ = ["external_add", "external_revoke", "handle_add", "handle_revoke"]


@click.command("add")
@click.argument("handle")
@click.option("--ctx", help="The account it means: `me`, a card or a ctx_id; default: yours.")
@click.option("--org", help="The organization it means, instead.")
@EXPIRES
@id_write
def handle_add(
    output: Output,
    session: Session,
    handle: str,
    ctx: str | None,
    org: str | None,
    expires: int | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Let HANDLE mean an account or an organization in a realm; the last mapping counts.

    \b
    veen id handle add @ann --realm shop --make-keys
    """
    from veen.overlays.id import drafts

    if ctx is not None and org is not None:
        raise click.UsageError("give one of --ctx and --org")
    kind, target = ("ctx", ctx_of(session, realm, ctx)) if org is None else ("org", org_of(session, org))
    message = drafted(
        lambda: drafts.handle(realm.id, handle, target_type=kind, target_id=target, ts=now(), expires_at=expires)
    )
    facts = {"handle": handle, "realm_id": realm.id, "target_type": kind, "target_id": target}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)


@click.command("revoke")
@click.argument("handle")
@id_write
def handle_revoke(output: Output, session: Session, handle: str, realm: Realm, keys: bool, cap: Path | None) -> None:
    """Let HANDLE mean nobody: its last mapping is repeated as one that has expired."""
    from veen.overlays.id import drafts

    known = folded_ids(session, realm, View(None, keep=True)).state.handles.get((realm.id, handle))
    if known is None:
        raise absent(f"handle {handle!r}", "veen id handle list")
    ts = now()
    message = drafted(
        lambda: drafts.handle(
            realm.id,
            handle,
            target_type=known.target_type,
            target_id=known.target_id,
            ts=max(ts, known.ts),
            expires_at=ts - 1,
        )
    )
    send_addressed(output, session, realm, message, {"handle": handle, "realm_id": realm.id}, keys=keys, cap=cap)


@click.command("add")
@click.argument("provider")
@click.argument("subject")
@click.option("--ctx", help="The account here: `me`, a card or a ctx_id; default: yours.")
@click.option("--org", help="The organization here, instead.")
@click.option("--attributes", help="A JSON object to go with it.")
@EXPIRES
@id_write
def external_add(
    output: Output,
    session: Session,
    provider: str,
    subject: str,
    ctx: str | None,
    org: str | None,
    attributes: str | None,
    expires: int | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Link SUBJECT at PROVIDER to an account or an organization here.

    \b
    veen id external add corp 4711 --realm shop
    """
    from veen.overlays.id import drafts

    if ctx is not None and org is not None:
        raise click.UsageError("give one of --ctx and --org")
    target = {"ctx_id": ctx_of(session, realm, ctx)} if org is None else {"org_id": org_of(session, org)}
    message = drafted(
        lambda: drafts.external_link(
            realm.id,
            provider=provider,
            external_sub=subject,
            attributes=json_object(attributes),
            ts=now(),
            expires_at=expires,
            **target,
        )
    )
    facts = {"provider": provider, "external_sub": subject, **target}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)


@click.command("revoke")
@click.argument("provider")
@click.argument("subject")
@id_write
def external_revoke(
    output: Output, session: Session, provider: str, subject: str, realm: Realm, keys: bool, cap: Path | None
) -> None:
    """End the link that you wrote for SUBJECT at PROVIDER."""
    from veen.overlays.id import drafts

    links = folded_ids(session, realm, View(None, keep=True)).state.links.get((realm.id, provider, subject), ())
    known = next((one for one in links if one.client_id == session.client().client_id), None)
    if known is None:
        raise absent(f"link of yours for {provider}:{subject}", "veen id external list")
    ts = now()
    message = drafted(
        lambda: drafts.external_link(
            realm.id,
            provider=provider,
            external_sub=subject,
            ctx_id=known.ctx_id,
            org_id=known.org_id,
            ts=max(ts, known.ts),
            expires_at=ts - 1,
        )
    )
    facts = {"provider": provider, "external_sub": subject}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)
