"""The Spark session that the tests of the pipeline use, too."""

from tests.lake.conftest import spark

__all__ = ["spark"]
