"""Bulk work over logs: `log` reads, `tables`, `folds` and `query` compute, in one process or by `spark`."""
