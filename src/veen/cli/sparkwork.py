"""Commands that let Spark work: they say so, from the start of the JVM to the last task."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veen.pipeline.progress import Tell

__all__ = ["spark_at_work"]


@contextmanager
def spark_at_work(
    app: str, master: str | None, progress: "Tell", settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Any, "Tell"]]:
    """A session, and whom to tell the phase: the line of `progress` then shows the tasks of that phase as well."""
    from veen.pipeline.progress import STARTING, watching
    from veen.pipeline.session import using_session

    progress(STARTING)
    with using_session(app=app, master=master, settings=settings) as session:
        progress("")
        with watching(session, progress) as tell:
            yield session, tell
