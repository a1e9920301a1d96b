"""Errors of tables."""

from veen.lake.log.errors import PipelineError


class NoTable(PipelineError):
    """There is no such table at this place."""

    hint = "Make them with `veen table load TABLES --data-dir DIR`."


class TableBusy(PipelineError):
    """Somebody else has changed the tables meanwhile."""

    hint = "One writer at a time: run the command again when the other one is done. Nothing was changed."


class TableDamaged(PipelineError):
    """A file of a table is not as it was written, or is gone."""

    hint = "Load the tables again into a new place: the log has everything."


class LogMoved(PipelineError):
    """A chunk was let go or moved by the hub between the look at the directory and the reading of it."""

    hint = "Run the command again: it looks again, and nothing was committed."


class LoadFailed(PipelineError):
    """A task of Spark failed; nothing was committed."""

    hint = "Run the command again: a load that is repeated doubles nothing."


class OtherHub(PipelineError):
    """The tables were made from the log of another hub."""

    hint = "Give each hub tables of its own; read them together in a query."
