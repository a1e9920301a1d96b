"""One Spark session for the whole run of these tests."""

from importlib.util import find_spec

import pytest

# Spark is an extra; without it there is nothing here to test. `make test` installs it.
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]


@pytest.fixture(scope="session")
def spark():
    from veen.pipeline.session import spark_session

    session = spark_session(
        "veen tests",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "4",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        },
    )
    yield session
    session.stop()
