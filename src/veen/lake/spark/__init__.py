"""The pipeline on Spark: session, data source, writer, and the runner of what `log`, `verify`, `folds`, `query` do.

Besides this package only `veen.lake.folds.on_spark`, `veen.lake.query.on_spark`, `veen.lake.tables` and the module by
which Spark finds its data source import pyspark.
"""
