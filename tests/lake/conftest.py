"""One Spark session for the whole run of these tests."""

import pytest


@pytest.fixture(scope="session")
def spark():
    from veen.lake.spark.progress import FAIR
    from veen.lake.spark.session import spark_session

    session = spark_session(
        "veen tests",
        master="local[2]",
        settings={
            **FAIR,  # without pools it is what it would be anyway
            "spark.sql.shuffle.partitions": "4",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        },
    )
    yield session
    session.stop()
