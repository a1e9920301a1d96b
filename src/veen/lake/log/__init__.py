"""Bulk reading of a log without Spark: a pinned prefix of a directory, a bucket or a hub, its entries and events."""
