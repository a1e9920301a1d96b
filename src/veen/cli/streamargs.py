"""STREAM as the first argument of a command, or as `--stream NAME`: the specifications write both (001 spec-4 §7)."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypeVar

import click

from veen.cli.names import STREAM

__all__ = ["EPOCH", "SEQ", "stream_argument"]

F = TypeVar("F", bound=Callable[..., Any])

SEQ: Final = click.IntRange(min=1)
EPOCH: Final = click.option(
    "--epoch", type=click.IntRange(min=0), help="The epoch, where labels change with time; default: the present one."
)


def stream_argument(**following: click.ParamType[Any]) -> Callable[[F], F]:
    """Give a command its `stream`. `following` names the arguments behind it, which move up if --stream is given."""

    def decorate(command: F) -> F:
        @click.argument("stream", type=STREAM, required=False)
        @click.option("--stream", "stream_option", type=STREAM, help="The stream, instead of the argument STREAM.")
        @wraps(command)
        def run(*args: Any, stream: str | None, stream_option: str | None, **kwargs: Any) -> Any:
            if stream_option is not None:
                given: list[Any] = [stream, *(kwargs[name] for name in following)]
                if given.pop() is not None:
                    raise click.UsageError("the stream is given twice: as an argument and as --stream")
                for (name, kind), value in zip(following.items(), given, strict=True):
                    kwargs[name] = value if not isinstance(value, str) else kind.convert(value, None, None)
                stream = stream_option
            if stream is None:
                raise click.UsageError("Missing argument 'STREAM'.")
            for name in following:
                if kwargs[name] is None and name == "seq":
                    raise click.UsageError("Missing argument 'SEQ'.")
            return command(*args, stream=stream, **kwargs)

        return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters

    return decorate
