"""Tables of the identity state: identities, what belongs to them, and revocations (docs/typed-tables.md)."""

from collections.abc import Iterator
from typing import Final

from veen.overlays.framework.typed_table import StateTable, TypedColumn
from veen.overlays.id.fold import IdFold
from veen.overlays.id.nouns import CONTEXT, DEVICE, EXTERNAL, GROUP, HANDLE, ORG, PRINCIPAL
from veen.overlays.id.state import IdRevocation, IdState


def _targets(view: IdState) -> Iterator[dict[str, object]]:
    for grant in view.roles.values():
        for kind, targets in (("ctx", grant.targets_ctx), ("group", grant.targets_group)):
            for target, until in targets.items():
                place = {"org_id": grant.org_id, "realm_id": grant.realm_id, "role": grant.role}
                yield {**place, "target_type": kind, "target_id": target, "until": until}


STATES: Final = (
    *(noun.state_table() for noun in (PRINCIPAL, DEVICE, CONTEXT, ORG, GROUP)),
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
    HANDLE.state_table(),
    EXTERNAL.state_table(),
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
