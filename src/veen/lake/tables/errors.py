"""Errors of tables."""

from veen.lake.log.errors import PipelineError


class NoTable(PipelineError):
    """No table of this name at this place."""

    hint = "Make them with `veen table load TABLES --data-dir DIR`."


class TableBusy(PipelineError):
    """Tables that another writer changed meanwhile."""

    hint = "One writer at a time: run the command again when the other one is done. Nothing was changed."


class TableDamaged(PipelineError):
    """A file of a table that is missing or differs from what was written."""

    hint = "Load the tables again into a new place: the log has everything."


class LogMoved(PipelineError):
    """A chunk that the hub removed or moved while the directory was read."""

    hint = "Run the command again: it looks again, and nothing was committed."


class LoadFailed(PipelineError):
    """A Spark task failed; nothing was committed."""

    hint = "Run the command again: a load that is repeated doubles nothing."


class OtherHub(PipelineError):
    """The tables were made from the log of another hub."""

    hint = "Use separate tables for each hub, and read them together in a query."
