"""The data pipeline: from a hub's directory to verified, typed, queryable tables, on Spark (DESIGN §7).

Nothing outside this package, and the module by which Spark finds its data source, imports pyspark.
"""
