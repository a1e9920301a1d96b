"""Tables of the identity state: who there is, what they have, and what was revoked (docs/typed-tables.md)."""

from collections.abc import Iterator
from typing import Final

from veen.overlays.framework.typed_table import StateTable, TypedColumn
from veen.overlays.id.fold import IdFold
from veen.overlays.id.state import (
    AccountLink,
    Device,
    GroupState,
    Handle,
    IdContext,
    IdPrincipal,
    IdRevocation,
    IdState,
    Org,
)


def _targets(view: IdState) -> Iterator[dict[str, object]]:
    for grant in view.roles.values():
        for kind, targets in (("ctx", grant.targets_ctx), ("group", grant.targets_group)):
            for target, until in targets.items():
                place = {"org_id": grant.org_id, "realm_id": grant.realm_id, "role": grant.role}
                yield {**place, "target_type": kind, "target_id": target, "until": until}


STATES: Final = (
    StateTable.of(
        IdFold.name,
        IdPrincipal,
        {"principal_pk": "hex"},
        lambda view: view.principals,
        part="principals",
        about="people and services",
        times=("created_at",),
    ),
    StateTable.of(
        IdFold.name,
        Device,
        {"principal_pk": "hex", "device_id": "hex"},
        lambda view: view.devices,
        part="devices",
        about="the devices of principals",
        times=("created_at", "expires_at", "revoked_since"),
    ),
    StateTable.of(
        IdFold.name,
        IdContext,
        {"ctx_id": "hex", "realm_id": "hex"},
        lambda view: view.contexts,
        part="contexts",
        about="accounts and their profiles",
        times=("updated_at", "until"),
    ),
    StateTable.of(
        IdFold.name,
        Org,
        {"org_id": "hex"},
        lambda view: view.orgs,
        part="orgs",
        about="organizations",
        times=("created_at", "updated_at", "until"),
    ),
    StateTable.of(
        IdFold.name,
        GroupState,
        {"org_id": "hex", "group_id": "hex"},
        lambda view: view.groups,
        part="groups",
        about="groups of organizations; members with the time until when, null for ever",
        times=("updated_at",),
    ),
    StateTable(
        fold=IdFold.name,
        part="members",
        about="the members of groups",
        columns=(
            TypedColumn("org_id", "hex", "the organization"),
            TypedColumn("group_id", "hex", "the group"),
            TypedColumn("ctx_id", "hex", "the account"),
            TypedColumn("until", "time", "until when; NULL for ever"),
        ),
        key=("org_id", "group_id", "ctx_id"),
        rows=lambda view: (
            {"org_id": group.org_id, "group_id": group.group_id, "ctx_id": ctx_id, "until": until}
            for group in view.groups.values()
            for ctx_id, until in group.members.items()
        ),
    ),
    StateTable(
        fold=IdFold.name,
        part="roles",
        about="who has which role",
        columns=(
            TypedColumn("org_id", "hex", "the organization"),
            TypedColumn("realm_id", "hex", "the realm; NULL for every realm"),
            TypedColumn("role", "text", "the role"),
            TypedColumn("target_type", "text", "ctx or group"),
            TypedColumn("target_id", "hex", "the account or group"),
            TypedColumn("until", "time", "until when; NULL for ever"),
        ),
        key=("org_id", "realm_id", "role", "target_type", "target_id"),
        rows=_targets,
    ),
    StateTable.of(
        IdFold.name,
        Handle,
        {"realm_id": "hex", "handle": "text"},
        lambda view: view.handles,
        part="handles",
        about="names of accounts and organizations",
        times=("until",),
    ),
    StateTable.of(
        IdFold.name,
        AccountLink,
        {"realm_id": "hex", "provider": "text", "external_sub": "text", "client_id": "hex"},
        lambda view: (
            ((link.realm_id, link.provider, link.external_sub, link.client_id), link)
            for links in view.links.values()
            for link in links
        ),
        part="links",
        about="links to accounts elsewhere, the last of each writer",
        times=("until",),
    ),
    StateTable.of(
        IdFold.name,
        IdRevocation,
        {"kind": "text", "target": "hex", "scope": "hex", "realm_id": "hex"},
        lambda view: (
            ((revocation.kind, revocation.target, revocation.scope, revocation.realm_id), revocation)
            for revocations in view.revocations.values()
            for revocation in revocations
        ),
        part="revocations",
        about="what was revoked, in whose stream",
        times=("since",),
    ),
)
