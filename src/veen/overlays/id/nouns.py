"""The nouns of the identity overlay and their verbs: `veen id principal add` … (ID v0.0.1, docs/overlays-id.md)."""

from collections.abc import Mapping
from typing import Any, Final

from veen.overlays.framework.args import Arg
from veen.overlays.framework.nouns import Noun, Row, Verb
from veen.overlays.id import bodies
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, device_id_of, group_id_of
from veen.overlays.id.state import (
    AccountLink,
    Device,
    GroupState,
    Handle,
    IdContext,
    IdPrincipal,
    IdState,
    Org,
    RoleGrant,
)

Values = dict[str, Any]
Args = Mapping[str, Arg]

# Kinds of the place, beside those that all overlays have: account, org, card, and realm, which --realm names.
_PRINCIPAL: Final[Args] = {
    "principal_pk": Arg("identity", "A card (veen1…) or a key in hex; default: your own.", "--principal", own=True)
}
_ORG: Final[Args] = {
    "org_id": Arg("org", "A card (veen1…) or an org_id; default: the organization of your own key.", "--org", own=True)
}
_REALM: Final[Args] = {"realm_id": Arg("realm")}
_NAME: Final[Args] = {"display_name": Arg(help="What people read; it identifies nobody.")}
_REASON: Final[Args] = {"reason": Arg(help="Why: it stands in the log.")}
_EXPIRES: Final[Args] = {"expires_at": Arg("time", "Until when: a time, or +30d.", "--expires")}


def _object(name: str) -> Args:
    return {name: Arg("object", "A JSON object to go with it.")}


# --- principals ------------------------------------------------------------------------------------------------

PRINCIPAL: Final = Noun(
    name="principal",
    about="Principals: root identities. Yours is the long-term key of your identity (id_sign_pk).",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Record a principal: a root identity.",
            about="Record a principal.",
            examples=["veen id principal add --make-keys"],
            schema=bodies.PRINCIPAL,
            args={**_PRINCIPAL, **_object("info")},
            facts=("principal_pk",),
        ),
        Verb(
            name="revoke",
            help="A principal takes back a token that it gave.",
            about="A principal takes back the token AUTH_REF that it gave. Its key itself is for life.",
            schema=bodies.REVOCATION,
            args={"revoked_auth_ref": Arg("reference", word="auth_ref"), **_PRINCIPAL, **_REASON},
            facts=("revoked_auth_ref",),
        ),
    ],
    entry=IdPrincipal,
    entries=lambda state: state.principals.values(),
    derived=lambda state, entry, as_of: {"devices": len(state.devices_of(entry.principal_pk))},
    columns=("principal_pk", "created_at", "devices"),
    keys=("principal_pk",),
    list_help="The principals that the log knows.",
    show_help="One principal.",
    table="people and services",
    id=("principal_pk",),
)

# --- devices ---------------------------------------------------------------------------------------------------


def _device(values: Values) -> Row:
    device_pk, disabled = values["card"].client_id, values["disabled"]
    return {
        "device_pk": device_pk,
        "device_id": device_id_of(device_pk),
        "dh_pk": values["card"].dh_pk,
        "flags": None if disabled is None else bodies.DeviceFlags(disabled=disabled),
    }


DEVICE: Final = Noun(
    name="device",
    about="Devices: keys that act for a principal. Yours is the client key of your identity.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Record a device: a key that may act for a principal.",
            about="Record a device of a principal, or new flags and expiry of a known one.",
            examples=[
                "veen id device add --label laptop --make-keys",
                "veen id device add --card veen1xyz --label phone",
            ],
            schema=bodies.DEVICE,
            args={
                "card": Arg(
                    "card", "The card of the device (veen1…); default: the keys of your own identity.", own=True
                ),
                **_PRINCIPAL,
                "label": Arg(help="What people call the device."),
                **_EXPIRES,
                "disabled": Arg("flag", "Switch a known device off or on again.", "--disabled/--enabled"),
            },
            derive=_device,
            facts=("principal_pk", "device_id", "device_pk"),
        ),
        Verb(
            name="revoke",
            help="Take a device back, for good.",
            about="Take the device DEVICE_ID back, for good: it acts for its principal no more.",
            schema=bodies.REVOCATION,
            args={"device_id": Arg("reference"), **_PRINCIPAL, **_REASON},
            facts=("device_id",),
        ),
    ],
    entry=Device,
    entries=lambda state: state.devices.values(),
    derived=lambda state, entry, as_of: {"status": entry.status(as_of).value},
    columns=("device_id", "label", "status", "principal_pk"),
    keys=("device_id", "device_pk", "label"),
    list_help="The devices, and whether they may act.",
    show_help="One device.",
    table="the devices of principals",
    id=("principal_pk", "device_id"),
)

# --- accounts --------------------------------------------------------------------------------------------------


def _account(values: Values) -> Row:
    return {"ctx_id": ctx_id_of(values["principal_pk"], values["realm_id"])}


def _roles_of(state: IdState, entry: IdContext, as_of: int) -> Row:
    roles = {
        org_id.hex(): sorted(state.roles_of(entry.ctx_id, org_id=org_id, realm_id=entry.realm_id, as_of=as_of))
        for org_id in {org for org, _, _ in state.roles}
    }
    return {
        "principal_pk": state.principal_of(entry.ctx_id, entry.realm_id),
        "revoked": state.ctx_revocation(entry.ctx_id, entry.realm_id, as_of) is not None,
        "roles": {org_id: names for org_id, names in sorted(roles.items()) if names},
    }


CONTEXT: Final = Noun(
    name="context",
    about="Accounts: a principal in a realm. In another realm it has another one, and nobody sees that they are the "
    "same.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Set the profile of an account in a realm.",
            about="Set the profile of a principal's account in a realm; what is left out is gone.",
            examples=["veen id context add --realm shop --display-name Ann --make-keys"],
            schema=bodies.CTX_PROFILE,
            args={**_PRINCIPAL, **_NAME, **_object("prefs"), **_REALM},
            derive=_account,
            facts=("ctx_id", "realm_id", "display_name"),
        ),
        Verb(
            name="revoke",
            help="Disable an account in its realm, for good.",
            about="Disable a principal's account in its realm, for good.",
            schema=bodies.REVOCATION,
            args={**_PRINCIPAL, **_REASON, **_REALM},
            derive=_account,
            facts=("ctx_id",),
        ),
    ],
    entry=IdContext,
    entries=lambda state: state.contexts.values(),
    derived=_roles_of,
    columns=("ctx_id", "display_name", "revoked", "realm_id"),
    keys=("ctx_id", "display_name"),
    list_help="The accounts that have a profile.",
    show_help="One account, and its roles.",
    table="accounts and their profiles",
    id=("ctx_id", "realm_id"),
)

# --- organizations ---------------------------------------------------------------------------------------------

ORG: Final = Noun(
    name="org",
    about="Organizations. One is an identity of its own: its org_id comes from its long-term key.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Set the profile of an organization.",
            schema=bodies.ORG_PROFILE,
            args={**_ORG, **_NAME, **_object("metadata")},
            facts=("org_id", "display_name"),
        ),
        Verb(
            name="revoke",
            help="End an organization, for good.",
            about="End an organization, for good: its tokens, groups and roles count no more.",
            schema=bodies.REVOCATION,
            args={**_ORG, **_REASON},
            facts=("org_id",),
        ),
    ],
    entry=Org,
    entries=lambda state: state.orgs.values(),
    derived=lambda state, entry, as_of: {"revoked": state.org_revocation(entry.org_id, as_of) is not None},
    columns=("org_id", "display_name", "revoked"),
    keys=("org_id", "display_name"),
    list_help="The organizations.",
    show_help="One organization.",
    table="organizations",
    id=("org_id",),
)

# --- groups ----------------------------------------------------------------------------------------------------


def _group(values: Values) -> Row:
    added, removed = (list(values.get(name) or ()) for name in ("added", "removed"))
    name = values["group"] if values.get("title") is None else values["title"]
    return {
        "group_id": group_id_of(values["org_id"], values["group"]),
        "name": name,
        "added": added,
        "removed": removed,
        "members_add": _ids(added),
        "members_remove": _ids(removed),
    }


def _ids(ids: list[bytes]) -> tuple[bytes, ...] | None:
    return tuple(sorted(set(ids))) or None


_MEMBERSHIP: Final = ("org_id", "group_id", "added", "removed")

GROUP: Final = Noun(
    name="group",
    about="Groups of accounts within an organization.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Put accounts into a group of an organization.",
            about="Put accounts into GROUP: `me`, cards (veen1…) or ctx_ids. The group need not exist before.",
            examples=["veen id group add staff veen1xyz veen1abc --realm shop --make-keys"],
            schema=bodies.GROUP,
            args={
                "group": Arg(),
                "added": Arg("account", many=True, word="members", metavar="[CTX]..."),
                **_ORG,
                "title": Arg(help="What people read instead of GROUP, which never changes."),
                **_EXPIRES,
            },
            derive=_group,
            facts=_MEMBERSHIP,
        ),
        Verb(
            name="revoke",
            help="Take accounts out of a group.",
            about="Take accounts out of GROUP.",
            schema=bodies.GROUP,
            args={
                "group": Arg(),
                "removed": Arg("account", many=True, required=True, word="members", metavar="CTX..."),
                **_ORG,
            },
            derive=_group,
            facts=_MEMBERSHIP,
        ),
    ],
    entry=GroupState,
    entries=lambda state: state.groups.values(),
    derived=lambda state, entry, as_of: {"size": len(entry.members)},
    columns=("group_id", "name", "size", "org_id"),
    keys=("group_id", "name"),
    list_help="The groups.",
    show_help="One group and its members.",
    table="groups of organizations; members with the time until when, null for ever",
    id=("org_id", "group_id"),
)

# --- roles -----------------------------------------------------------------------------------------------------


def _targets(values: Values) -> Row:
    groups = [group_id_of(values["org_id"], name) for name in values["groups"] or ()]
    return {
        "targets_ctx": _ids(list(values["accounts"] or ())),
        "targets_group": _ids(groups),
        "realm_id": None if values["everywhere"] else values["realm_id"],
    }


ROLE: Final = Noun(
    name="role",
    about="Roles that an organization gives to accounts and groups.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Give a role to accounts or groups.",
            about="Give ROLE to accounts or groups. Roles only add up: one that shall end gets --expires, or goes by a "
            "group.",
            examples=["veen id role add clerk --group staff --realm shop"],
            schema=bodies.ROLE_BINDING,
            args={
                "role": Arg(),
                **_ORG,
                "accounts": Arg("account", "An account: `me`, a card or a ctx_id. Repeatable.", "--ctx", many=True),
                "groups": Arg("text", "A group of the organization. Repeatable.", "--group", many=True),
                "everywhere": Arg("flag", "In every realm, not only in --realm."),
                **_EXPIRES,
                **_REALM,
            },
            any_of=("accounts", "groups"),
            derive=_targets,
            facts=("org_id", "role"),
        ),
        Verb(
            name="revoke",
            help="An organization takes back all that an account is within it.",
            about="The organization takes back all that the account CTX is within it, for good: every role and group.",
            schema=bodies.REVOCATION,
            args={"ctx_id": Arg("account", word="ctx"), **_ORG, **_REASON, **_REALM},
            facts=("org_id", "ctx_id"),
        ),
    ],
    entry=RoleGrant,
    entries=lambda state: state.roles.values(),
    columns=("role", "org_id", "realm_id"),
    keys=("role",),
    list_help="The roles of organizations.",
    show_help="Who has a role.",
)

# --- handles ---------------------------------------------------------------------------------------------------


def _target(values: Values) -> Row:
    """Return the target of a handle or link: the account, unless an organization is named."""
    kind = "ctx" if values["org"] is None else "org"
    return {"target_type": kind, "target_id": values[kind], f"{kind}_id": values[kind]}


def _either(ctx: str, org: str) -> Args:
    return {"ctx": Arg("account", ctx, own=True), "org": Arg("org", org)}


def _mapping(state: IdState, values: Row, client_id: bytes) -> Row | None:
    handle = state.handles.get((values["realm_id"], values["handle"]))
    return (
        None if handle is None else {"target_type": handle.target_type, "target_id": handle.target_id, "ts": handle.ts}
    )


HANDLE: Final = Noun(
    name="handle",
    about="Handles: names of a realm for accounts and organizations.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Let a handle mean an account or an organization.",
            about="Let HANDLE mean an account or an organization in a realm; the last mapping counts.",
            examples=["veen id handle add @ann --realm shop --make-keys"],
            schema=bodies.HANDLE_MAP,
            args={
                "handle": Arg(),
                **_either(
                    "The account it means: `me`, a card or a ctx_id; default: yours.",
                    "The organization it means, instead.",
                ),
                **_EXPIRES,
                **_REALM,
            },
            one_of=("ctx", "org"),
            derive=_target,
            facts=("handle", "realm_id", "target_type", "target_id"),
        ),
        Verb(
            name="revoke",
            help="Let a handle mean nobody.",
            about="Let HANDLE mean nobody: its last mapping is repeated as one that has expired.",
            schema=bodies.HANDLE_MAP,
            args={"handle": Arg(), **_REALM},
            repeat=_mapping,
            missing="handle {handle!r}",
            facts=("handle", "realm_id"),
        ),
    ],
    entry=Handle,
    entries=lambda state: state.handles.values(),
    derived=lambda state, entry, as_of: {"means": state.resolve(entry.realm_id, entry.handle, as_of=as_of) is not None},
    columns=("handle", "target_type", "target_id", "means"),
    keys=("handle",),
    list_help="The handles.",
    show_help="One handle.",
    table="names of accounts and organizations",
    id=("realm_id", "handle"),
)

# --- accounts elsewhere ----------------------------------------------------------------------------------------


def _own_link(state: IdState, values: Row, client_id: bytes) -> Row | None:
    links = state.links.get((values["realm_id"], values["provider"], values["external_sub"]), ())
    own = next((link for link in links if link.client_id == client_id), None)
    return None if own is None else {"ctx_id": own.ctx_id, "org_id": own.org_id, "ts": own.ts}


_SUBJECT: Final[Args] = {"provider": Arg(), "external_sub": Arg(word="subject"), **_REALM}

EXTERNAL: Final = Noun(
    name="external",
    about="Links between accounts elsewhere and accounts here. Readers say whose links they believe.",
    fold=IdFold,
    verbs=[
        Verb(
            name="add",
            help="Link an account elsewhere to one here.",
            about="Link SUBJECT at PROVIDER to an account or an organization here.",
            examples=["veen id external add corp 4711 --realm shop"],
            schema=bodies.EXTERNAL_LINK,
            args={
                **_SUBJECT,
                **_either(
                    "The account here: `me`, a card or a ctx_id; default: yours.", "The organization here, instead."
                ),
                **_object("attributes"),
                **_EXPIRES,
            },
            one_of=("ctx", "org"),
            derive=_target,
            facts=("provider", "external_sub", "ctx_id", "org_id"),
        ),
        Verb(
            name="revoke",
            help="End a link.",
            about="End the link that you wrote for SUBJECT at PROVIDER.",
            schema=bodies.EXTERNAL_LINK,
            args=_SUBJECT,
            repeat=_own_link,
            missing="link of yours for {provider}:{external_sub}",
            facts=("provider", "external_sub"),
        ),
    ],
    entry=AccountLink,
    entries=lambda state: (link for links in state.links.values() for link in links),
    derived=lambda state, entry, as_of: {
        "subject": f"{entry.provider}:{entry.external_sub}",
        "active": entry.until is None or as_of <= entry.until,
    },
    columns=("subject", "ctx_id", "org_id", "active", "client_id"),
    keys=("subject", "external_sub"),
    list_help="The links to accounts elsewhere.",
    show_help="One link, by provider and subject.",
    table="links to accounts elsewhere, the last of each writer",
    part="links",
    id=("realm_id", "provider", "external_sub", "client_id"),
)

NOUNS: Final = {noun.name: noun for noun in (PRINCIPAL, DEVICE, CONTEXT, ORG, GROUP, ROLE, HANDLE, EXTERNAL)}
