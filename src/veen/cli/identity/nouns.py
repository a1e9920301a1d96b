"""The nouns of the identity overlay under `veen id`: one group each, with add, show, list and revoke (ID v0.0.1)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.identity.args import Realm, ctx_of, folded_ids, id_options, now, org_of
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession
from veen.cli.shared.identities import principal_of
from veen.cli.shared.nouns import Noun, Outgoing, Parameter
from veen.cli.shared.overlay_commands import absent, drafted, show_folded, show_rows
from veen.cli.shared.overlay_values import HEX32, json_value, plain
from veen.cli.shared.values import MOMENT

if TYPE_CHECKING:
    from veen.overlays.id.drafts import Addressed
    from veen.overlays.id.state import IdState

Rows = list[dict[str, Any]]
Statement = tuple[Callable[[], "Addressed"], Mapping[str, Any]]  # what is said, and facts to print
Drafting = Callable[..., Statement]

_REASON: Final = option("--reason", help="Why: it stands in the log.")
_EXPIRES: Final = option("--expires", type=MOMENT, help="Until when: a time, or +30d.")
_NAME: Final = option("--display-name", help="What people read; it identifies nobody.")
_PRINCIPAL: Final = option("--principal", help="A card (veen1…) or a key in hex; default: your own.")
_ORG: Final = option("--org", help="A card (veen1…) or an org_id; default: the organization of your own key.")


def _says(noun: Noun, verb: str, short: str, *parameters: Parameter) -> Callable[[Drafting], Drafting]:
    """A row of the table: a message that goes to the stream it belongs into."""

    def add(drafting: Drafting) -> Drafting:
        @noun.write(verb, short, *parameters, text=drafting.__doc__)
        def _send(session: CliSession, realm: Realm, keys: bool, **values: Any) -> Outgoing:
            make, facts = drafting(session, realm, **values)
            message = drafted(make)
            stream = realm.stream_of(message)
            facts = {**facts, "stream": stream}
            return Outgoing(stream, lambda: message.draft, facts, fold=realm.fold, make_keys=keys)

        return drafting

    return add


def _noun(
    name: str,
    about: str,
    rows: "Callable[[IdState, int], Rows]",
    *,
    columns: Sequence[str],
    keys: Sequence[str],
    listed: str,
    shown: str,
) -> Noun:
    """A noun with its two views: the list of all, and one of them by any of its `keys`."""
    noun = Noun(
        name,
        about,
        writes=[
            id_options,
            option("--make-keys", "keys", is_flag=True, help="Make the keys of the stream, if there are none."),
        ],
        reads=[view_options, id_options],
    )

    @noun.read("list", listed, text=f"{listed} From every stream of identities that you can read.")
    def _list(session: CliSession, realm: Realm, view: View) -> None:
        folded = folded_ids(session, realm, view)
        show_rows(session, folded, f"{name}s", rows(folded.state, folded.as_of), columns)

    @noun.read("show", shown, argument("key", metavar="/".join(keys).upper()), text=f"{shown} Now, or as of a moment.")
    def _show(session: CliSession, key: str, realm: Realm, view: View) -> None:
        folded = folded_ids(session, realm, view)
        matches = [row for row in rows(folded.state, folded.as_of) if key in [row[member] for member in keys]]
        if not matches:
            raise absent(f"{name} {key!r}", " ".join(("veen", "id", name, "list")))
        if len(matches) > 1:
            raise click.UsageError(f"{key!r} fits {len(matches)} of them: give the id")
        show_folded(session, folded, matches[0], lambda: session.output.fields(matches[0].items()))

    return noun


def _object(text: str | None) -> dict[str, Any] | None:
    """An option that is a JSON object."""
    if text is None:
        return None
    value = json_value(text)
    if type(value) is not dict:
        raise click.UsageError(f"{text!r} is no JSON object")
    return value


# --- principals ------------------------------------------------------------------------------------------------

principal: Final = _noun(
    "principal",
    "Principals: root identities. Yours is the long-term key of your identity (id_sign_pk).",
    lambda state, as_of: [
        {**plain(entry), "devices": len(state.devices_of(pk))} for pk, entry in state.principals.items()
    ],
    columns=("principal_pk", "created_at", "devices"),
    keys=("principal_pk",),
    listed="The principals that the log knows.",
    shown="One principal.",
)


@_says(
    principal,
    "add",
    "Record a principal: a root identity.",
    _PRINCIPAL,
    option("--info", help="A JSON object to go with it."),
)
def _principal_add(session: CliSession, realm: Realm, principal: str | None, info: str | None) -> Statement:
    """Record a principal.

    \b
    veen id principal add --make-keys
    """
    from veen.overlays.id import drafts

    pk = principal_of(session, principal)
    return lambda: drafts.principal(pk, created_at=now(), info=_object(info)), {"principal_pk": pk}


@_says(
    principal,
    "revoke",
    "A principal takes back a token that it gave.",
    argument("auth_ref", type=HEX32),
    _PRINCIPAL,
    _REASON,
)
def _principal_revoke(
    session: CliSession, realm: Realm, auth_ref: bytes, principal: str | None, reason: str | None
) -> Statement:
    """A principal takes back the token AUTH_REF that it gave. Its key itself is for life."""
    from veen.overlays.id import drafts

    pk = principal_of(session, principal)
    facts = {"revoked_auth_ref": auth_ref}
    return lambda: drafts.revoke_by_principal(pk, auth_ref=auth_ref, reason=reason, ts=now()), facts


# --- devices ---------------------------------------------------------------------------------------------------

device: Final = _noun(
    "device",
    "Devices: keys that act for a principal. Yours is the client key of your identity.",
    lambda state, as_of: [{**plain(entry), "status": entry.status(as_of).value} for entry in state.devices.values()],
    columns=("device_id", "label", "status", "principal_pk"),
    keys=("device_id", "device_pk", "label"),
    listed="The devices, and whether they may act.",
    shown="One device.",
)


@_says(
    device,
    "add",
    "Record a device: a key that may act for a principal.",
    option("--card", help="The card of the device (veen1…); default: the keys of your own identity."),
    _PRINCIPAL,
    option("--label", help="What people call the device."),
    _EXPIRES,
    option("--disabled/--enabled", default=None, help="Switch a known device off or on again."),
)
def _device_add(
    session: CliSession,
    realm: Realm,
    card: str | None,
    principal: str | None,
    label: str | None,
    expires: int | None,
    disabled: bool | None,
) -> Statement:
    """Record a device of a principal, or new flags and expiry of a known one.

    \b
    veen id device add --label laptop --make-keys
    veen id device add --card veen1xyz --label phone
    """
    from veen.client.identity.card import IdentityCard
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import device_id_of

    pk = principal_of(session, principal)
    own = session.keystore.identity.card() if card is None else IdentityCard.from_text(card)
    facts = {"principal_pk": pk, "device_id": device_id_of(own.client_id), "device_pk": own.client_id}
    return lambda: drafts.device(
        pk,
        device_pk=own.client_id,
        dh_pk=own.dh_pk,
        label=label,
        created_at=now(),
        expires_at=expires,
        disabled=disabled,
    ), facts


@_says(device, "revoke", "Take a device back, for good.", argument("device_id", type=HEX32), _PRINCIPAL, _REASON)
def _device_revoke(
    session: CliSession, realm: Realm, device_id: bytes, principal: str | None, reason: str | None
) -> Statement:
    """Take the device DEVICE_ID back, for good: it acts for its principal no more."""
    from veen.overlays.id import drafts

    pk = principal_of(session, principal)
    facts = {"device_id": device_id}
    return lambda: drafts.revoke_by_principal(pk, device_id=device_id, reason=reason, ts=now()), facts


# --- accounts --------------------------------------------------------------------------------------------------


def _contexts(state: "IdState", as_of: int) -> Rows:
    rows = []
    for entry in state.contexts.values():
        roles = {
            org_id.hex(): sorted(state.roles_of(entry.ctx_id, org_id=org_id, realm_id=entry.realm_id, as_of=as_of))
            for org_id in {org for org, _, _ in state.roles}
        }
        rows.append(
            {
                **plain(entry),
                "principal_pk": plain(state.principal_of(entry.ctx_id, entry.realm_id)),
                "revoked": state.ctx_revocation(entry.ctx_id, entry.realm_id, as_of) is not None,
                "roles": {org_id: names for org_id, names in sorted(roles.items()) if names},
            }
        )
    return rows


context: Final = _noun(
    "context",
    "Accounts: a principal in a realm. In another realm it has another one, and nobody sees that they are the same.",
    _contexts,
    columns=("ctx_id", "display_name", "revoked", "realm_id"),
    keys=("ctx_id", "display_name"),
    listed="The accounts that have a profile.",
    shown="One account, and its roles.",
)


@_says(
    context,
    "add",
    "Set the profile of an account in a realm.",
    _PRINCIPAL,
    _NAME,
    option("--prefs", help="A JSON object to go with it."),
)
def _context_add(
    session: CliSession, realm: Realm, principal: str | None, display_name: str | None, prefs: str | None
) -> Statement:
    """Set the profile of a principal's account in a realm; what is left out is gone.

    \b
    veen id context add --realm shop --display-name Ann --make-keys
    """
    from veen.overlays.id import drafts

    ctx_id = ctx_of(session, realm, principal)
    facts = {"ctx_id": ctx_id, "realm_id": realm.id, "display_name": display_name}
    return lambda: drafts.ctx_profile(
        ctx_id, realm.id, display_name=display_name, prefs=_object(prefs), updated_at=now()
    ), facts


@_says(context, "revoke", "Disable an account in its realm, for good.", _PRINCIPAL, _REASON)
def _context_revoke(session: CliSession, realm: Realm, principal: str | None, reason: str | None) -> Statement:
    """Disable a principal's account in its realm, for good."""
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import ctx_id_of

    pk = principal_of(session, principal)
    ctx_id = ctx_id_of(pk, realm.id)
    return lambda: drafts.revoke_by_principal(pk, ctx_id=ctx_id, realm_id=realm.id, reason=reason, ts=now()), {
        "ctx_id": ctx_id
    }


# --- organizations ---------------------------------------------------------------------------------------------

org: Final = _noun(
    "org",
    "Organizations. One is an identity of its own: its org_id comes from its long-term key.",
    lambda state, as_of: [
        {**plain(entry), "revoked": state.org_revocation(org_id, as_of) is not None}
        for org_id, entry in state.orgs.items()
    ],
    columns=("org_id", "display_name", "revoked"),
    keys=("org_id", "display_name"),
    listed="The organizations.",
    shown="One organization.",
)


@_says(
    org,
    "add",
    "Set the profile of an organization.",
    _ORG,
    _NAME,
    option("--metadata", help="A JSON object to go with it."),
)
def _org_add(
    session: CliSession, realm: Realm, org: str | None, display_name: str | None, metadata: str | None
) -> Statement:
    """Set the profile of an organization."""
    from veen.overlays.id import drafts

    org_id, ts = org_of(session, org), now()
    return lambda: drafts.org_profile(
        org_id, display_name=display_name, metadata=_object(metadata), created_at=ts, updated_at=ts
    ), {"org_id": org_id, "display_name": display_name}


@_says(org, "revoke", "End an organization, for good.", _ORG, _REASON)
def _org_revoke(session: CliSession, realm: Realm, org: str | None, reason: str | None) -> Statement:
    """End an organization, for good: its tokens, groups and roles count no more."""
    from veen.overlays.id import drafts

    org_id = org_of(session, org)
    return lambda: drafts.revoke_by_org(org_id, reason=reason, ts=now()), {"org_id": org_id}


# --- groups ----------------------------------------------------------------------------------------------------

group: Final = _noun(
    "group",
    "Groups of accounts within an organization.",
    lambda state, as_of: [{**plain(entry), "size": len(entry.members)} for entry in state.groups.values()],
    columns=("group_id", "name", "size", "org_id"),
    keys=("group_id", "name"),
    listed="The groups.",
    shown="One group and its members.",
)


@_says(
    group,
    "add",
    "Put accounts into a group of an organization.",
    argument("group"),
    argument("members", metavar="[CTX]...", nargs=-1),
    _ORG,
    option("--title", help="What people read instead of GROUP, which never changes."),
    _EXPIRES,
)
def _group_add(
    session: CliSession,
    realm: Realm,
    group: str,
    members: tuple[str, ...],
    org: str | None,
    title: str | None,
    expires: int | None,
) -> Statement:
    """Put accounts into GROUP: `me`, cards (veen1…) or ctx_ids. The group need not exist before.

    \b
    veen id group add staff veen1xyz veen1abc --realm shop --make-keys
    """
    return _group_change(session, realm, group, org, add=members, title=title, expires=expires)


@_says(
    group,
    "revoke",
    "Take accounts out of a group.",
    argument("group"),
    argument("members", metavar="CTX...", nargs=-1, required=True),
    _ORG,
)
def _group_revoke(
    session: CliSession, realm: Realm, group: str, members: tuple[str, ...], org: str | None
) -> Statement:
    """Take accounts out of GROUP."""
    return _group_change(session, realm, group, org, remove=members)


def _group_change(
    session: CliSession,
    realm: Realm,
    group: str,
    org: str | None,
    *,
    add: tuple[str, ...] = (),
    remove: tuple[str, ...] = (),
    title: str | None = None,
    expires: int | None = None,
) -> Statement:
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import group_id_of

    org_id = org_of(session, org)
    added, removed = ([ctx_of(session, realm, name) for name in names] for names in (add, remove))
    facts = {"org_id": org_id, "group_id": group_id_of(org_id, group), "added": added, "removed": removed}
    return lambda: drafts.change_group(
        org_id, group, add=added, remove=removed, name=title, updated_at=now(), expires_at=expires
    ), facts


# --- roles -----------------------------------------------------------------------------------------------------

role: Final = _noun(
    "role",
    "Roles that an organization gives to accounts and groups.",
    lambda state, as_of: [plain(entry) for entry in state.roles.values()],
    columns=("role", "org_id", "realm_id"),
    keys=("role",),
    listed="The roles of organizations.",
    shown="Who has a role.",
)


@_says(
    role,
    "add",
    "Give a role to accounts or groups.",
    argument("role"),
    _ORG,
    option("--ctx", "accounts", multiple=True, help="An account: `me`, a card or a ctx_id. Repeatable."),
    option("--group", "groups", multiple=True, help="A group of the organization. Repeatable."),
    option("--everywhere", is_flag=True, help="In every realm, not only in --realm."),
    _EXPIRES,
)
def _role_add(
    session: CliSession,
    realm: Realm,
    role: str,
    org: str | None,
    accounts: tuple[str, ...],
    groups: tuple[str, ...],
    everywhere: bool,
    expires: int | None,
) -> Statement:
    """Give ROLE to accounts or groups. Roles only add up: one that shall end gets --expires, or goes by a group.

    \b
    veen id role add clerk --group staff --realm shop
    """
    from veen.overlays.id import drafts
    from veen.overlays.id.ids import group_id_of

    if not accounts and not groups:
        raise click.UsageError("give --ctx or --group")
    org_id = org_of(session, org)
    return lambda: drafts.bind_role(
        org_id,
        role,
        ctx=[ctx_of(session, realm, name) for name in accounts],
        groups=[group_id_of(org_id, name) for name in groups],
        realm_id=None if everywhere else realm.id,
        ts=now(),
        expires_at=expires,
    ), {"org_id": org_id, "role": role}


@_says(
    role,
    "revoke",
    "An organization takes back all that an account is within it.",
    argument("ctx"),
    _ORG,
    _REASON,
)
def _role_revoke(session: CliSession, realm: Realm, ctx: str, org: str | None, reason: str | None) -> Statement:
    """The organization takes back all that the account CTX is within it, for good: every role and group."""
    from veen.overlays.id import drafts

    org_id, ctx_id = org_of(session, org), ctx_of(session, realm, ctx)
    return lambda: drafts.revoke_by_org(org_id, ctx_id=ctx_id, realm_id=realm.id, reason=reason, ts=now()), {
        "org_id": org_id,
        "ctx_id": ctx_id,
    }


# --- handles ---------------------------------------------------------------------------------------------------

handle: Final = _noun(
    "handle",
    "Handles: names of a realm for accounts and organizations.",
    lambda state, as_of: [
        {**plain(entry), "means": state.resolve(entry.realm_id, entry.handle, as_of=as_of) is not None}
        for entry in state.handles.values()
    ],
    columns=("handle", "target_type", "target_id", "means"),
    keys=("handle",),
    listed="The handles.",
    shown="One handle.",
)


def _target(session: CliSession, realm: Realm, ctx: str | None, org: str | None) -> tuple[str, bytes]:
    """The account or the organization that a name means."""
    if ctx is not None and org is not None:
        raise click.UsageError("give one of --ctx and --org")
    return ("ctx", ctx_of(session, realm, ctx)) if org is None else ("org", org_of(session, org))


@_says(
    handle,
    "add",
    "Let a handle mean an account or an organization.",
    argument("handle"),
    option("--ctx", help="The account it means: `me`, a card or a ctx_id; default: yours."),
    option("--org", help="The organization it means, instead."),
    _EXPIRES,
)
def _handle_add(
    session: CliSession, realm: Realm, handle: str, ctx: str | None, org: str | None, expires: int | None
) -> Statement:
    """Let HANDLE mean an account or an organization in a realm; the last mapping counts.

    \b
    veen id handle add @ann --realm shop --make-keys
    """
    from veen.overlays.id import drafts

    kind, target = _target(session, realm, ctx, org)
    facts = {"handle": handle, "realm_id": realm.id, "target_type": kind, "target_id": target}
    return lambda: drafts.handle(
        realm.id, handle, target_type=kind, target_id=target, ts=now(), expires_at=expires
    ), facts


@_says(handle, "revoke", "Let a handle mean nobody.", argument("handle"))
def _handle_revoke(session: CliSession, realm: Realm, handle: str) -> Statement:
    """Let HANDLE mean nobody: its last mapping is repeated as one that has expired."""
    from veen.overlays.id import drafts

    mapping = folded_ids(session, realm, View(None, keep=True)).state.handles.get((realm.id, handle))
    if mapping is None:
        raise absent(f"handle {handle!r}", "veen id handle list")
    ts = now()
    return lambda: drafts.handle(
        realm.id,
        handle,
        target_type=mapping.target_type,
        target_id=mapping.target_id,
        ts=max(ts, mapping.ts),
        expires_at=ts - 1,
    ), {"handle": handle, "realm_id": realm.id}


# --- accounts elsewhere ----------------------------------------------------------------------------------------

external: Final = _noun(
    "external",
    "Links between accounts elsewhere and accounts here. Readers say whose links they believe.",
    lambda state, as_of: [
        {
            **plain(link),
            "subject": f"{link.provider}:{link.external_sub}",
            "active": link.until is None or as_of <= link.until,
        }
        for links in state.links.values()
        for link in links
    ],
    columns=("subject", "ctx_id", "org_id", "active", "client_id"),
    keys=("subject", "external_sub"),
    listed="The links to accounts elsewhere.",
    shown="One link, by provider and subject.",
)
_SUBJECT: Final = (argument("provider"), argument("subject"))


@_says(
    external,
    "add",
    "Link an account elsewhere to one here.",
    *_SUBJECT,
    option("--ctx", help="The account here: `me`, a card or a ctx_id; default: yours."),
    option("--org", help="The organization here, instead."),
    option("--attributes", help="A JSON object to go with it."),
    _EXPIRES,
)
def _external_add(
    session: CliSession,
    realm: Realm,
    provider: str,
    subject: str,
    ctx: str | None,
    org: str | None,
    attributes: str | None,
    expires: int | None,
) -> Statement:
    """Link SUBJECT at PROVIDER to an account or an organization here.

    \b
    veen id external add corp 4711 --realm shop
    """
    from veen.overlays.id import drafts

    kind, identity = _target(session, realm, ctx, org)
    target = {f"{kind}_id": identity}
    return lambda: drafts.external_link(
        realm.id,
        provider=provider,
        external_sub=subject,
        attributes=_object(attributes),
        ts=now(),
        expires_at=expires,
        **target,
    ), {"provider": provider, "external_sub": subject, **target}


@_says(external, "revoke", "End a link.", *_SUBJECT)
def _external_revoke(session: CliSession, realm: Realm, provider: str, subject: str) -> Statement:
    """End the link that you wrote for SUBJECT at PROVIDER."""
    from veen.overlays.id import drafts

    links = folded_ids(session, realm, View(None, keep=True)).state.links.get((realm.id, provider, subject), ())
    own = next((link for link in links if link.client_id == session.client().client_id), None)
    if own is None:
        raise absent(f"link of yours for {provider}:{subject}", "veen id external list")
    ts = now()
    return lambda: drafts.external_link(
        realm.id,
        provider=provider,
        external_sub=subject,
        ctx_id=own.ctx_id,
        org_id=own.org_id,
        ts=max(ts, own.ts),
        expires_at=ts - 1,
    ), {"provider": provider, "external_sub": subject}
