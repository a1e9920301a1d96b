"""Identities: who belongs to whom, as layers of principals, devices, accounts, groups and organizations (ID)."""

from typing import Any

from veen.overlays.framework.plain import plain
from veen.overlays.id.fold import IdFold
from veen.overlays.id.graph import edges_of, nodes_of
from veen.products.console.charts import layers
from veen.products.console.pages.common import fold_page, now
from veen.products.console.report import DigestCell, MarkCell, Section
from veen.products.console.views import Console, PageView, Query

_LAYERS = (
    ("handle", "handles"),
    ("external", "accounts elsewhere"),
    ("device", "devices"),
    ("principal", "principals"),
    ("ctx", "accounts"),
    ("group", "groups"),
    ("org", "organizations"),
)


async def identity(console: Console, query: Query) -> PageView:
    folded = await console.events.fold(IdFold(), now=now(), only=lambda keys: keys.name is None)
    nodes, edges = nodes_of(folded.state, folded.as_of), edges_of(folded.state, folded.as_of)
    for source, _, target in edges:  # handles and links are ends of edges and nothing else
        for key in (source, target):
            kind, _, name = key.partition(":")
            nodes.setdefault(key, {"kind": kind, "id": name, "name": name if kind == "handle" else None})
    columns = [
        (title, [(key, _words(node), _kind(node)) for key, node in sorted(nodes.items()) if node["kind"] == kind])
        for kind, title in _LAYERS
    ]
    conflicts = plain(folded.state.conflicts())
    sections = [
        Section(
            title="Who belongs to whom",
            picture=layers("Identities in layers", columns, edges),
            columns=("From", "Relation", "To"),
            rows=tuple((_end(source, nodes), words, _end(target, nodes)) for source, words, target in edges),
            folded=True,
        ),
        Section(
            title="Identities",
            columns=("Kind", "Name", "Id", "State"),
            rows=tuple(
                (node["kind"], node["name"], DigestCell(node["id"]), MarkCell(node.get("status") or "", _kind(node)))
                for _, node in sorted(nodes.items())
            ),
        ),
    ]
    return fold_page(
        folded,
        title="Identities",
        command="veen id graph",
        data={
            "nodes": nodes,
            "edges": [{"from": source, "relation": words, "to": target} for source, words, target in edges],
            "conflicts": conflicts,
        },
        sections=sections,
        nothing="no stream of your keyring has events of identities.",
    )


def _words(node: dict[str, Any]) -> str:
    name = node["name"] or f"{node['id'][:8]}…"
    return f"{name} ({node['status']})" if node.get("status") not in (None, "active") else str(name)


def _kind(node: dict[str, Any]) -> str:
    status = node.get("status")
    return "" if status is None else "good" if status == "active" else "bad"


def _end(key: str, nodes: dict[str, dict[str, Any]]) -> str:
    node = nodes[key]
    return f"{node['kind']} {node['name'] or node['id'][:8] + '…'}"
