"""Commands of bulk work: folds, queries, tables, Spark."""
