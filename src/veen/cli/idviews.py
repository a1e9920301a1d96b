"""`veen id NOUN list` and `show`: what the streams of identities amount to."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from veen.cli.asof import View, view_options
from veen.cli.clictx import Session, client_options
from veen.cli.idargs import Realm, folded_ids, id_options
from veen.cli.idnouns import NOUNS
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import absent, show_folded
from veen.cli.overlayvalues import plain

if TYPE_CHECKING:
    from veen.overlays.id.state import IdState

__all__ = ["context_list", "context_show", "device_list", "device_show", "external_list", "external_show"]
__all__ += ["group_list", "group_show", "handle_list", "handle_show", "org_list", "org_show"]
__all__ += ["principal_list", "principal_show", "role_list", "role_show"]

Rows = list[dict[str, Any]]


def _principals(state: "IdState", as_of: int) -> Rows:
    return [{**plain(one), "devices": len(state.devices_of(pk))} for pk, one in state.principals.items()]


def _devices(state: "IdState", as_of: int) -> Rows:
    return [{**plain(one), "status": one.status(as_of).value} for one in state.devices.values()]


def _contexts(state: "IdState", as_of: int) -> Rows:
    found = []
    for one in state.contexts.values():
        gone = state.ctx_revocation(one.ctx_id, one.realm_id, as_of)
        roles = {
            org_id.hex(): sorted(state.roles_of(one.ctx_id, org_id=org_id, realm_id=one.realm_id, as_of=as_of))
            for org_id in {org for org, _, _ in state.roles}
        }
        found.append(
            {
                **plain(one),
                "principal_pk": plain(state.principal_of(one.ctx_id, one.realm_id)),
                "revoked": gone is not None,
                "roles": {org_id: names for org_id, names in sorted(roles.items()) if names},
            }
        )
    return found


def _orgs(state: "IdState", as_of: int) -> Rows:
    return [
        {**plain(one), "revoked": state.org_revocation(org_id, as_of) is not None} for org_id, one in state.orgs.items()
    ]


def _groups(state: "IdState", as_of: int) -> Rows:
    return [{**plain(one), "size": len(one.members)} for one in state.groups.values()]


def _roles(state: "IdState", as_of: int) -> Rows:
    return [plain(one) for one in state.roles.values()]


def _handles(state: "IdState", as_of: int) -> Rows:
    return [
        {**plain(one), "means": state.resolve(one.realm_id, one.handle, as_of=as_of) is not None}
        for one in state.handles.values()
    ]


def _links(state: "IdState", as_of: int) -> Rows:
    return [
        {
            **plain(one),
            "subject": f"{one.provider}:{one.external_sub}",
            "active": one.until is None or as_of <= one.until,
        }
        for links in state.links.values()
        for one in links
    ]


class _Noun(NamedTuple):
    rows: "Callable[[IdState, int], Rows]"
    columns: Sequence[str]
    keys: Sequence[str]  # by which one is found


_VIEWS = {
    "principal": _Noun(_principals, ("principal_pk", "created_at", "devices"), ("principal_pk",)),
    "device": _Noun(_devices, ("device_id", "label", "status", "principal_pk"), ("device_id", "device_pk", "label")),
    "context": _Noun(_contexts, ("ctx_id", "display_name", "revoked", "realm_id"), ("ctx_id", "display_name")),
    "org": _Noun(_orgs, ("org_id", "display_name", "revoked"), ("org_id", "display_name")),
    "group": _Noun(_groups, ("group_id", "name", "size", "org_id"), ("group_id", "name")),
    "role": _Noun(_roles, ("role", "org_id", "realm_id"), ("role",)),
    "handle": _Noun(_handles, ("handle", "target_type", "target_id", "means"), ("handle",)),
    "external": _Noun(_links, ("subject", "ctx_id", "org_id", "active", "client_id"), ("subject", "external_sub")),
}


def _list(noun: str) -> click.Command:
    what = _VIEWS[noun]

    @view_options
    @id_options
    @output_options
    @client_options
    def run(output: Output, session: Session, realm: Realm, view: View) -> None:
        folded = folded_ids(session, realm, view)
        rows = what.rows(folded.state, folded.as_of)
        cells = [[row[column] for column in what.columns] for row in rows]
        show_folded(output, folded, {f"{noun}s": rows}, lambda: output.table(what.columns, cells))

    return click.command("list", help=f"{NOUNS[noun]['list']} From every stream of identities that you can read.")(run)


def _show(noun: str) -> click.Command:
    what = _VIEWS[noun]

    @click.argument("key", metavar="/".join(what.keys).upper())
    @view_options
    @id_options
    @output_options
    @client_options
    def run(output: Output, session: Session, key: str, realm: Realm, view: View) -> None:
        folded = folded_ids(session, realm, view)
        rows = [row for row in what.rows(folded.state, folded.as_of) if key in [row[name] for name in what.keys]]
        if not rows:
            raise absent(f"{noun} {key!r}", " ".join(("veen", "id", noun, "list")))
        if len(rows) > 1:
            raise click.UsageError(f"{key!r} fits {len(rows)} of them: give the id")
        show_folded(output, folded, rows[0], lambda: output.fields(rows[0].items()))

    return click.command("show", help=f"{NOUNS[noun]['show']} Now, or as of a moment.")(run)


principal_list, principal_show = _list("principal"), _show("principal")
device_list, device_show = _list("device"), _show("device")
context_list, context_show = _list("context"), _show("context")
org_list, org_show = _list("org"), _show("org")
group_list, group_show = _list("group"), _show("group")
role_list, role_show = _list("role"), _show("role")
handle_list, handle_show = _list("handle"), _show("handle")
external_list, external_show = _list("external"), _show("external")
