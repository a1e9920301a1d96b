"""`veen id org`, `group` and `role`, add and revoke: messages in the streams of organizations."""

from pathlib import Path

import click

from veen.cli.clictx import Session
from veen.cli.idargs import EXPIRES, NAME, REASON, Realm, ctx_of, id_write, json_object, now, org_of, send_addressed
from veen.cli.output import Output
from veen.cli.overlaycmd import drafted

__all__ = ["group_add", "group_revoke", "org_add", "org_revoke", "role_add", "role_revoke"]

_ORG = click.option("--org", help="A card (veen1…) or an org_id; default: the organization of your own key.")


@click.command("add")
@_ORG
@NAME
@click.option("--metadata", help="A JSON object to go with it.")
@id_write
def org_add(
    output: Output,
    session: Session,
    org: str | None,
    display_name: str | None,
    metadata: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Set the profile of an organization."""
    from veen.overlays.id import drafts

    org_id, ts = org_of(session, org), now()
    message = drafted(
        lambda: drafts.org_profile(
            org_id, display_name=display_name, metadata=json_object(metadata), created_at=ts, updated_at=ts
        )
    )
    facts = {"org_id": org_id, "display_name": display_name}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)


@click.command("revoke")
@_ORG
@REASON
@id_write
def org_revoke(
    output: Output, session: Session, org: str | None, reason: str | None, realm: Realm, keys: bool, cap: Path | None
) -> None:
    """End an organization, for good: its tokens, groups and roles count no more."""
    from veen.overlays.id import drafts

    org_id = org_of(session, org)
    message = drafted(lambda: drafts.revoke_by_org(org_id, reason=reason, ts=now()))
    send_addressed(output, session, realm, message, {"org_id": org_id}, keys=keys, cap=cap)


@click.command("add")
@click.argument("group")
@click.argument("members", metavar="[CTX]...", nargs=-1)
@_ORG
@click.option("--title", help="What people read instead of GROUP, which never changes.")
@EXPIRES
@id_write
def group_add(
    output: Output,
    session: Session,
    group: str,
    members: tuple[str, ...],
    org: str | None,
    title: str | None,
    expires: int | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Put accounts into GROUP: `me`, cards (veen1…) or ctx_ids. The group need not exist before.

    \b
    veen id group add staff veen1xyz veen1abc --realm shop --make-keys
    """
    _group(output, session, group, org, realm, keys, cap, add=members, title=title, expires=expires)


@click.command("revoke")
@click.argument("group")
@click.argument("members", metavar="CTX...", nargs=-1, required=True)
@_ORG
@id_write
def group_revoke(
    output: Output,
    session: Session,
    group: str,
    members: tuple[str, ...],
    org: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Take accounts out of GROUP."""
    _group(output, session, group, org, realm, keys, cap, remove=members)


def _group(
    output: Output,
    session: Session,
    group: str,
    org: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
    *,
    add: tuple[str, ...] = (),
    remove: tuple[str, ...] = (),
    title: str | None = None,
    expires: int | None = None,
) -> None:
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import group_id_of

    org_id = org_of(session, org)
    added, removed = ([ctx_of(session, realm, one) for one in names] for names in (add, remove))
    message = drafted(
        lambda: drafts.change_group(
            org_id, group, add=added, remove=removed, name=title, updated_at=now(), expires_at=expires
        )
    )
    facts = {"org_id": org_id, "group_id": group_id_of(org_id, group), "added": added, "removed": removed}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)


@click.command("add")
@click.argument("role")
@_ORG
@click.option("--ctx", "accounts", multiple=True, help="An account: `me`, a card or a ctx_id. Repeatable.")
@click.option("--group", "groups", multiple=True, help="A group of the organization. Repeatable.")
@click.option("--everywhere", is_flag=True, help="In every realm, not only in --realm.")
@EXPIRES
@id_write
def role_add(
    output: Output,
    session: Session,
    role: str,
    org: str | None,
    accounts: tuple[str, ...],
    groups: tuple[str, ...],
    everywhere: bool,
    expires: int | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Give ROLE to accounts or groups. Roles only add up: one that shall end gets --expires, or goes by a group.

    \b
    veen id role add clerk --group staff --realm shop
    """
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import group_id_of

    if not accounts and not groups:
        raise click.UsageError("give --ctx or --group")
    org_id = org_of(session, org)
    message = drafted(
        lambda: drafts.bind_role(
            org_id,
            role,
            ctx=[ctx_of(session, realm, one) for one in accounts],
            groups=[group_id_of(org_id, one) for one in groups],
            realm_id=None if everywhere else realm.id,
            ts=now(),
            expires_at=expires,
        )
    )
    send_addressed(output, session, realm, message, {"org_id": org_id, "role": role}, keys=keys, cap=cap)


@click.command("revoke")
@click.argument("ctx")
@_ORG
@REASON
@id_write
def role_revoke(
    output: Output,
    session: Session,
    ctx: str,
    org: str | None,
    reason: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """The organization takes back all that the account CTX is within it, for good: every role and group."""
    from veen.overlays.id import drafts

    org_id, ctx_id = org_of(session, org), ctx_of(session, realm, ctx)
    message = drafted(lambda: drafts.revoke_by_org(org_id, ctx_id=ctx_id, realm_id=realm.id, reason=reason, ts=now()))
    send_addressed(output, session, realm, message, {"org_id": org_id, "ctx_id": ctx_id}, keys=keys, cap=cap)
