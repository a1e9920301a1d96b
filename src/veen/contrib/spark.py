"""Spark, besides `spark.read.format("veen")`: sessions, SQL functions and an engine for audits (docs/pipeline.md)."""

from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.functions import register_functions
from veen.lake.spark.progress import entries_behind, watch_tasks
from veen.lake.spark.session import spark_session, using_session
from veen.lake.spark.settings import reader

__all__ = [
    "SparkEngine",
    "entries_behind",
    "reader",
    "register_functions",
    "spark_session",
    "using_session",
    "watch_tasks",
]
