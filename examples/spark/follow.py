"""Follow a log while a hub writes to it, and count the entries of each label; stops when it has seen all there is.

python examples/spark/follow.py ./hub ./checkpoint
"""

import sys

from pyspark.sql import DataFrame

from veen.contrib.spark import using_session


def main(place: str, checkpoint: str) -> None:
    with using_session(app="veen follow") as spark:
        entries = spark.readStream.format("veen").option("maxEntriesPerTrigger", 10_000).load(place)

        def tell(batch: DataFrame, number: int) -> None:
            for row in batch.groupBy("label").count().orderBy("label").collect():
                print(number, bytes(row["label"]).hex()[:12], row["count"], sep="\t")

        query = (
            entries.writeStream.foreachBatch(tell)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
