"""`veen id graph`: relations between identities, as a list of edges, as text, or for Graphviz."""

from typing import Any

import click

from veen.cli.identity.args import Realm, folded_ids, id_options
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import show_folded
from veen.cli.shared.text import compact
from veen.overlays.framework.plain import plain

Edge = tuple[str, str, str]  # from, relation, to


@click.command()
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz: pipe it into `dot -Tsvg`.")
@view_options
@id_options
@client_options
def graph(output: Output, session: CliSession, dot: bool, realm: Realm, view: View) -> None:
    """Print the relations between identities, from every stream of identities that you can read."""
    from veen.overlays.id.graph import edges_of, nodes_of

    folded = folded_ids(session, realm, view)
    nodes, edges = nodes_of(folded.state, folded.as_of), edges_of(folded.state, folded.as_of)
    data = {
        "nodes": nodes,
        "edges": [{"from": source, "relation": what, "to": other} for source, what, other in edges],
        "conflicts": plain(folded.state.conflicts()),
    }

    def human() -> None:
        if dot:
            output.line(_dot(nodes, edges))
        else:
            output.table(
                ("from", "relation", "to"), [(_short(a, nodes), what, _short(b, nodes)) for a, what, b in edges]
            )

    show_folded(session, folded, data, human)


def _short(key: str, nodes: dict[str, dict[str, Any]]) -> str:
    """Return a node as text: its kind, its name if it has one, and the start of its id."""
    kind, _, name = key.partition(":")
    node = nodes.get(key)
    title = node["name"] if node is not None else None
    head = f"{name[:8]}…" if len(name) == 64 else name
    return f"{kind} {title} ({head})" if title else f"{kind} {head}"


def _dot(nodes: dict[str, dict[str, Any]], edges: list[Edge]) -> str:
    """Return the graph in the language of Graphviz. Names are foreign input: JSON quoting makes them safe."""
    ends = sorted({*nodes, *(end for source, _, other in edges for end in (source, other))})
    lines = [f"  {compact(end)} [label={compact(_short(end, nodes))}];" for end in ends]
    lines += [f"  {compact(source)} -> {compact(other)} [label={compact(what)}];" for source, what, other in edges]
    return "digraph identities { rankdir=LR; " + " ".join(line.strip() for line in lines) + " }"
