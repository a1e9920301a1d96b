"""`veen op`: the operation profiles of 001 spec-3, as `veen.overlays.operations.nouns` declares them."""

from typing import Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.op.args import OpPlace, op_options
from veen.cli.shared.as_of import view_options
from veen.cli.shared.command import FILE
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, index

_MODULE: Final = "veen.overlays.operations.nouns"
_OFFLINE: Final = {
    "root": ("veen.cli.op.views:publication_root", "The content root of files or of a directory."),
    "manifest": ("veen.cli.op.views:publication_manifest", "Write the list of files behind a content root."),
}


class _OpGroup(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _noun(cmd_name) if cmd_name in self.table else None


def _noun(name: str) -> NounGroup:
    from veen.cli.op.views import VERIFY, audit_missing, publication_verify
    from veen.cli.op.write import options_of, write_operation

    group = NounGroup(
        name,
        index()[f"{_MODULE}:{name}"]["about"],
        takes=[click.argument("stream", type=STREAM)],
        writes=[op_options],
        reads=[op_options, view_options],
        others=_OFFLINE if name == "publication" else None,
    )
    group.declare(
        f"{_MODULE}:{name}",
        OpPlace,
        list_text="{}\n\nNow, or at another moment: --as-of takes a position (120) or a time (-1d).",
        more=options_of,
        write=write_operation,
    )
    if name == "publication":
        group.read("verify", "Check files or a directory against what was published.", *VERIFY)(publication_verify)
    if name == "audit":
        group.read("missing", "Accesses of a list that no message tells of.", click.argument("file", type=FILE))(
            audit_missing
        )
    return group


op: Final = _OpGroup(
    "op",
    help="""Payments, grants, agreements, publications, recoveries, audits and mirror records (001 spec-3).

    Who may do what is the reader's policy, a JSON file given by --policy: docs/overlays-operations.md. After writing,
    the log is folded and the command says whether the message counts.
    """,
    table={
        noun.partition(":")[2]: ("", declared["help"]) for noun, declared in index().items() if noun.startswith(_MODULE)
    },
)
