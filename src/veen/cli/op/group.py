"""`veen op`: the operation profiles of 001 spec-3. Every command comes from the table of `veen.cli.op.verbs`."""

from typing import Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.op.verbs import NOUNS


class _OpGroup(LazyGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        from veen.cli.op.views import noun_of

        return noun_of(NOUNS[cmd_name])


op: Final = _OpGroup(
    "op",
    help="""Payments, grants, agreements, publications, recoveries, audits and mirror records (001 spec-3).

    Who may do what is the reader's policy, a JSON file given by --policy: docs/overlays-operations.md. After writing,
    the log is folded and the command says whether the message counts.
    """,
    table={name: ("", noun.help) for name, noun in NOUNS.items()},
)
