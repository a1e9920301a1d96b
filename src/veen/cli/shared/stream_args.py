"""STREAM as the first argument of a command, or as `--stream NAME`: the specifications have both (001 spec-4 §7)."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.names import STREAM

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

SEQ: Final = click.IntRange(min=1)
EPOCH: Final = click.option(
    "--epoch", type=click.IntRange(min=0), help="Epoch, where labels change with time. Default: the present one."
)


def stream_argument(*optional: str, **following: click.ParamType[Any]) -> Callable[[F], F]:
    """Give a command its `stream`, and the arguments behind it, which move up if --stream is given.

    click sees all of them as optional text: only after they have moved is their meaning known, and a missing one
    noticed.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def run(*args: Any, stream: str | None, stream_option: str | None, **kwargs: Any) -> Any:
            texts = [stream, *(kwargs.pop(name) for name in following)]
            if stream_option is not None:
                if texts.pop() is not None:
                    raise click.UsageError("too many arguments, as the stream is given by --stream")
                texts.insert(0, stream_option)
            for (name, kind), value in zip({"stream": STREAM, **following}.items(), texts, strict=True):
                if value is None and name not in optional:
                    raise click.UsageError(f"Missing argument '{name.upper()}'.")
                kwargs[name] = None if value is None else kind.convert(value, None, None)
            return command(*args, **kwargs)

        decorated: Any = click.option(
            "--stream", "stream_option", type=STREAM, help="Stream, instead of the argument STREAM."
        )(run)
        for name in reversed(following):
            decorated = click.argument(name, required=False)(decorated)
        return click.argument("stream", required=False, shell_complete=_complete)(decorated)  # type: ignore[no-any-return]  # click's decorators keep the type

    return decorate


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    return STREAM.shell_complete(ctx, param, incomplete)
