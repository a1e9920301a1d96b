"""`--as-of`: the moment of a log at which a state is shown. Imports little, since TAB must stay fast."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

import click

from veen.cli.shared import options
from veen.cli.shared.values import MOMENT

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment of the log: a position of its one stream, or a time of the hub."""

    position: int | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Request for a state: its moment, and permission to use kept summaries of earlier folds."""

    moment: AsOf | None
    keep: bool


class _AsOf(click.ParamType[AsOf]):
    """A plain number is a position, all else a time: `120`, `2026-11-16T10:00:00Z`, `-15m`, `@1763287200`."""

    name = "moment"

    def convert(self, value: str | AsOf, param: click.Parameter | None, ctx: click.Context | None) -> AsOf:
        if isinstance(value, AsOf):
            return value
        if value.isascii() and value.isdecimal() and len(value) <= 18:
            if int(value) < 1:
                self.fail("positions count from 1", param, ctx)
            return AsOf(position=int(value))
        return AsOf(time=MOMENT.convert(value.removeprefix("@"), param, ctx))


AS_OF: Final = _AsOf()


def view_options(command: F) -> F:
    """Give a command its `view`, a View."""

    @click.option("--as-of", "moment", type=AS_OF, help=options.AS_OF)
    @click.option("--no-cache", is_flag=True, help="Fold the whole log, without the stored summary.")
    @wraps(command)
    def run(*args: Any, moment: AsOf | None, no_cache: bool, **kwargs: Any) -> Any:
        return command(*args, view=View(moment, not no_cache), **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters
