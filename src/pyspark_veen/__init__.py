"""Lets Spark find `format("veen")` by itself: it looks for modules called pyspark_… that have a DefaultSource."""

from veen.lake.spark.source import EntrySource as DefaultSource

__all__ = ["DefaultSource"]
