"""Who writes how much, hour by hour: plain DataFrames over a log, without a key.

python examples/spark/writers.py ./hub
"""

import sys

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from veen.contrib.spark import reader, using_session


def main(place: str) -> None:
    with using_session(app="veen writers") as spark:
        entries = reader(spark).option("verify", "full").load(place)
        hour = F.date_trunc("hour", F.timestamp_seconds("hub_ts")).cast("string").alias("hour")
        writer = F.substring(F.hex("client_id"), 1, 12).alias("writer")
        counted = entries.where("ok").groupBy(hour, writer).agg(F.count("*").alias("entries")).orderBy("hour", "writer")
        for row in counted.collect():
            print(row["hour"], row["writer"], row["entries"], sep="\t")
        damaged = entries.where("NOT ok").select("path", "stream_seq", "reason").orderBy("path", "stream_seq")
        for row in damaged.collect():
            print("damaged", row["path"], row["stream_seq"], row["reason"], sep="\t", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
