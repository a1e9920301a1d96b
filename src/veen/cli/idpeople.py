"""`veen id principal`, `device` and `context`, add and revoke: messages in the streams of principals and accounts."""

from pathlib import Path

import click

from veen.cli.clictx import Session
from veen.cli.idargs import (
    EXPIRES,
    NAME,
    REASON,
    Realm,
    ctx_of,
    id_write,
    json_object,
    now,
    principal_of,
    send_addressed,
)
from veen.cli.output import Output
from veen.cli.overlaycmd import drafted
from veen.cli.overlayvalues import HEX32

__all__ = ["context_add", "context_revoke", "device_add", "device_revoke", "principal_add", "principal_revoke"]

_PRINCIPAL = click.option("--principal", help="A card (veen1…) or a key in hex; default: your own.")


@click.command("add")
@_PRINCIPAL
@click.option("--info", help="A JSON object to go with it.")
@id_write
def principal_add(
    output: Output,
    session: Session,
    principal: str | None,
    info: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Record a principal.

    \b
    veen id principal add --make-keys
    """
    from veen.overlays.id import drafts

    pk = principal_of(session, principal)
    message = drafted(lambda: drafts.principal(pk, created_at=now(), info=json_object(info)))
    send_addressed(output, session, realm, message, {"principal_pk": pk}, keys=keys, cap=cap)


@click.command("revoke")
@click.argument("auth_ref", type=HEX32)
@_PRINCIPAL
@REASON
@id_write
def principal_revoke(
    output: Output,
    session: Session,
    auth_ref: bytes,
    principal: str | None,
    reason: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """A principal takes back the token AUTH_REF that it gave. Its key itself is for life."""
    from veen.overlays.id import drafts

    pk = principal_of(session, principal)
    message = drafted(lambda: drafts.revoke_by_principal(pk, auth_ref=auth_ref, reason=reason, ts=now()))
    send_addressed(output, session, realm, message, {"revoked_auth_ref": auth_ref}, keys=keys, cap=cap)


@click.command("add")
@click.option("--card", help="The card of the device (veen1…); default: the keys of your own identity.")
@_PRINCIPAL
@click.option("--label", help="What people call the device.")
@EXPIRES
@click.option("--disabled/--enabled", default=None, help="Switch a known device off or on again.")
@id_write
def device_add(
    output: Output,
    session: Session,
    card: str | None,
    principal: str | None,
    label: str | None,
    expires: int | None,
    disabled: bool | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Record a device of a principal, or new flags and expiry of a known one.

    \b
    veen id device add --label laptop --make-keys
    veen id device add --card veen1xyz --label phone
    """
    from veen.client.card import IdentityCard
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import device_id_of

    pk = principal_of(session, principal)
    found = session.keystore.identity.card() if card is None else IdentityCard.from_text(card)
    message = drafted(
        lambda: drafts.device(
            pk,
            device_pk=found.client_id,
            dh_pk=found.dh_pk,
            label=label,
            created_at=now(),
            expires_at=expires,
            disabled=disabled,
        )
    )
    facts = {"principal_pk": pk, "device_id": device_id_of(found.client_id), "device_pk": found.client_id}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)


@click.command("revoke")
@click.argument("device_id", type=HEX32)
@_PRINCIPAL
@REASON
@id_write
def device_revoke(
    output: Output,
    session: Session,
    device_id: bytes,
    principal: str | None,
    reason: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Take the device DEVICE_ID back, for good: it acts for its principal no more."""
    from veen.overlays.id import drafts

    pk = principal_of(session, principal)
    message = drafted(lambda: drafts.revoke_by_principal(pk, device_id=device_id, reason=reason, ts=now()))
    send_addressed(output, session, realm, message, {"device_id": device_id}, keys=keys, cap=cap)


@click.command("add")
@_PRINCIPAL
@NAME
@click.option("--prefs", help="A JSON object to go with it.")
@id_write
def context_add(
    output: Output,
    session: Session,
    principal: str | None,
    display_name: str | None,
    prefs: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Set the profile of a principal's account in a realm; what is left out is gone.

    \b
    veen id context add --realm shop --display-name Ann --make-keys
    """
    from veen.overlays.id import drafts

    ctx_id = ctx_of(session, realm, principal)
    message = drafted(
        lambda: drafts.ctx_profile(
            ctx_id, realm.id, display_name=display_name, prefs=json_object(prefs), updated_at=now()
        )
    )
    facts = {"ctx_id": ctx_id, "realm_id": realm.id, "display_name": display_name}
    send_addressed(output, session, realm, message, facts, keys=keys, cap=cap)


@click.command("revoke")
@_PRINCIPAL
@REASON
@id_write
def context_revoke(
    output: Output,
    session: Session,
    principal: str | None,
    reason: str | None,
    realm: Realm,
    keys: bool,
    cap: Path | None,
) -> None:
    """Disable a principal's account in its realm, for good."""
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import ctx_id_of

    pk = principal_of(session, principal)
    ctx_id = ctx_id_of(pk, realm.id)
    message = drafted(lambda: drafts.revoke_by_principal(pk, ctx_id=ctx_id, realm_id=realm.id, reason=reason, ts=now()))
    send_addressed(output, session, realm, message, {"ctx_id": ctx_id}, keys=keys, cap=cap)
