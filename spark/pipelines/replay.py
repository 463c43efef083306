"""replay: messages that were sent before are sent again, out of the journal of a store or out of Parquet.

Invariant: a run sends each message of the range once, however often compaction copied it. It leaves out messages of
transactions that did not commit. All messages of a run become visible at once, or none (`exactly-once`). A second run
is a separate job and sends all of them again.
"""

from __future__ import annotations

import os
from typing import Any

import click

from amq.client.core import RESERVED_HEADERS
from amq.protocols.stomp.destination import wire_name
from pyspark_amq.options import MESSAGES, MOVES
from pyspark_amq.pipelines.frame import (
    Options,
    Pipeline,
    PipelineError,
    broker_options,
    check_sink,
    delivery_option,
    destinations_option,
    in_range,
    is_local,
    range_options,
    sink_settings,
)
from pyspark_amq.pipelines.progress import Say

COLUMNS = ("value", "key", "headers", "destination")
OF_A_DELIVERY = [
    *RESERVED_HEADERS,
    "ack",
    "JMSXDeliveryCount",
    "message-id",
    "redelivered",
    "subscription",
    "timestamp",
]


def run(spark: Any, options: Options, say: Say) -> dict[str, Any]:
    """Send the messages of the range. Returns their number, and the bytes of their bodies."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows = _of_journal(spark, options) if options["store"] else _of_parquet(spark, options)
    if options["ordered"]:
        rows = rows.repartition(1).sortWithinPartitions("offset")
    there = [name for name in COLUMNS if name in rows.columns and not (name == "destination" and options[name])]
    sent = Observation("sent")
    size = F.coalesce(F.sum(F.octet_length("value")), F.lit(0))
    rows = rows.select(*there).observe(sent, F.count(F.lit(1)).alias("messages"), size.alias("bytes"))
    say(f"sending to {options['destination'] or 'the destination of each message'}")
    rows.write.format("amq").options(**sink_settings(options)).mode("append").save()
    return dict(sent.get)


def _of_journal(spark: Any, options: Options) -> Any:
    """The messages of the range, once each."""
    from pyspark.sql import functions as F

    given = {"kinds": f"{MESSAGES},{MOVES}", "includeHeaders": "true", "destination": ",".join(options["source"])}
    names = {"startingOffset": "starting_offset", "endingOffset": "ending_offset"}
    given |= {name: str(options[key]) for name, key in names.items() if options[key] is not None}
    rows = spark.read.format("amq-journal").options(**given).load(options["store"])
    found = rows.where(F.col("kind") == MESSAGES)
    found = in_range(found, "timestamp", options).where(~F.col("queue").startswith("subscription://"))
    is_staged = F.col("queue").startswith("sent://")
    committed = rows.where((F.col("kind") == MOVES) & is_staged).select("offset").distinct()
    found = found.where(~is_staged).unionByName(found.where(is_staged).join(committed, "offset", "left_semi"))
    return found.dropDuplicates(["offset"])


def _of_parquet(spark: Any, options: Options) -> Any:
    """Rows of Parquet with the columns of `format("amq")`. Raises PipelineError."""
    from pyspark.sql import functions as F

    rows = spark.read.parquet(options["parquet"])
    needed = ["value", *(["offset"] if options["ordered"] else [])]
    needed += [] if options["destination"] else ["destination"]
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise PipelineError(f"{options['parquet']} has no column {missing[0]}: it has {', '.join(rows.columns)}")
    if options["source"]:
        names = [*options["source"], *(wire_name(name, "") for name in options["source"])]  # drained files have these
        rows = rows.where(F.col("destination").isin(names))
    if "headers" in rows.columns and rows.schema["headers"].dataType.typeName() == "map":
        rows = rows.withColumn("headers", F.map_filter("headers", lambda name, _: ~name.isin(OF_A_DELIVERY)))
    return rows


def _check(options: Options) -> None:
    from pyspark_amq import journal

    if bool(options["store"]) == bool(options["parquet"]):
        raise click.UsageError("give either --store, to replay a journal, or --parquet")
    bounds = ("starting_offset", "ending_offset", "starting_timestamp", "ending_timestamp")
    if options["parquet"]:
        if any(options[name] is not None for name in bounds):
            raise click.UsageError("a range applies to a journal: with --parquet select the rows beforehand")
        if is_local(options["parquet"]) and not os.path.exists(options["parquet"]):
            raise PipelineError(f"{options['parquet']}: there is no such file or directory")
    elif not options["source"]:
        raise click.UsageError("give --from: with --store it must name the destinations whose messages are sent again")
    else:
        journal.plan(options["store"])
    check_sink(options)


PIPELINE = Pipeline(
    "replay",
    """Send messages again, out of the journal of a store or out of Parquet.

    From a journal it sends all messages of --from that were sent in the range, once each, even if they were consumed
    since. From Parquet it sends all rows: the column value is required; key, headers and destination are optional.
    Without --destination each message goes to its former destination. Messages of durable subscriptions are left out.
    """,
    [
        click.Option(["--store"], metavar="DIR", help="Store directory with the journal."),
        click.Option(["--parquet"], metavar="PATH", help="Parquet files instead."),
        *broker_options(),
        destinations_option("--from", "Only from this destination; required with --store. May be repeated.", "source"),
        click.Option(["--destination"], metavar="NAME", default="", help="Send all messages there."),
        click.Option(["--starting-offset"], metavar="N", type=click.IntRange(min=0), help="Only from this offset on."),
        click.Option(["--ending-offset"], metavar="N", type=click.IntRange(min=0), help="Only before this offset."),
        *range_options(),
        click.Option(["--ordered"], is_flag=True, help="Keep the order of the first sending; uses a single task."),
        delivery_option(),
    ],
    [
        "--store /mnt/shared/amq --from /queue/orders --starting-timestamp 2026-01-31 --destination /queue/again",
        "--store DIR --from /queue/orders --starting-offset 17592186044417 --ending-offset 17592186054417 --ordered",
        "--parquet /tmp/drained --destination /queue/orders",
    ],
    _check,
    run,
)
