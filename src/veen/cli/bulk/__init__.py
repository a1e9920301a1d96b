"""Queries, tables, Spark."""

__all__: list[str] = []
