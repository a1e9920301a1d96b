"""Reading a log in bulk, without Spark: a pinned prefix of a directory, a bucket or a hub, its entries, its events."""
