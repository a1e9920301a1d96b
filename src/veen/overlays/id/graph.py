"""Graph of identities: nodes and edges, for `veen id graph` and the console."""

from typing import Any

from veen.overlays.id.state import IdState

Edge = tuple[str, str, str]  # from, relation, to


def nodes_of(state: IdState, as_of: int) -> dict[str, dict[str, Any]]:
    """Return every identity by `kind:id`."""
    nodes: dict[str, dict[str, Any]] = {}
    for pk in {*state.principals, *(entry.principal_pk for entry in state.devices.values())}:
        nodes[f"principal:{pk.hex()}"] = {"kind": "principal", "id": pk.hex(), "name": None}
    for device in state.devices.values():
        about = {"kind": "device", "id": device.device_id.hex(), "name": device.label}
        nodes[f"device:{device.device_id.hex()}"] = {**about, "status": device.status(as_of).value}
    for account in state.contexts.values():
        about = {"kind": "ctx", "id": account.ctx_id.hex(), "name": account.display_name}
        gone = state.ctx_revocation(account.ctx_id, account.realm_id, as_of)
        nodes[f"ctx:{account.ctx_id.hex()}"] = {**about, "status": "active" if gone is None else "revoked"}
    for org in state.orgs.values():
        gone = state.org_revocation(org.org_id, as_of)
        about = {"kind": "org", "id": org.org_id.hex(), "name": org.display_name}
        nodes[f"org:{org.org_id.hex()}"] = {**about, "status": "active" if gone is None else "revoked"}
    for group in state.groups.values():
        nodes[f"group:{group.group_id.hex()}"] = {"kind": "group", "id": group.group_id.hex(), "name": group.name}
    return nodes


def edges_of(state: IdState, as_of: int) -> list[Edge]:
    """Return the relations between identities, sorted."""
    edges: set[Edge] = set()
    for device in state.devices.values():
        edges.add((f"principal:{device.principal_pk.hex()}", "device", f"device:{device.device_id.hex()}"))
    for account in state.contexts.values():
        pk = state.principal_of(account.ctx_id, account.realm_id)
        if pk is not None:
            edges.add((f"principal:{pk.hex()}", "account", f"ctx:{account.ctx_id.hex()}"))
    for group in state.groups.values():
        edges.add((f"org:{group.org_id.hex()}", "group", f"group:{group.group_id.hex()}"))
        for ctx_id, until in group.members.items():
            if until is None or as_of <= until:
                edges.add((f"group:{group.group_id.hex()}", "member", f"ctx:{ctx_id.hex()}"))
    for role in state.roles.values():
        for kind, targets in (("ctx", role.targets_ctx), ("group", role.targets_group)):
            for target, until in targets.items():
                if until is None or as_of <= until:
                    edges.add((f"org:{role.org_id.hex()}", f"role {role.role}", f"{kind}:{target.hex()}"))
    for mapping in state.handles.values():
        if state.resolve(mapping.realm_id, mapping.handle, as_of=as_of) is not None:
            edges.add((f"handle:{mapping.handle}", "means", f"{mapping.target_type}:{mapping.target_id.hex()}"))
    for links in state.links.values():
        for link in links:
            if link.until is None or as_of <= link.until:
                kind, target = ("ctx", link.ctx_id) if link.ctx_id is not None else ("org", link.org_id or b"")
                edges.add((f"external:{link.provider}:{link.external_sub}", "stands for", f"{kind}:{target.hex()}"))
    return sorted(edges)
