"""Queries, tables, Spark."""
