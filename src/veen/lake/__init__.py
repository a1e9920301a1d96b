"""Bulk work over whole logs: typed tables, states of overlays, and queries whose results anyone can check.

Work begins with a pinned prefix, so that a growing log gives one answer. One process, all cores and a Spark cluster cut
it differently and give the same bytes.

It imports client, overlays, verify and what is below, and no command or product. Start with `log.prefix` (what is read)
and `log.entries` (how). `tables`, `folds` and `query` compute; `spark` has the session, the data source and the runner,
and besides their engines for Spark it alone knows PySpark. docs/lake.md shows the way from a chunk to a row.
"""
