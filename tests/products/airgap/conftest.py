"""The Spark session that the tests of the pipeline use, too."""

from tests.pipeline.conftest import spark

__all__ = ["spark"]
