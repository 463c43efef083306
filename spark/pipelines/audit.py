"""audit: the fate of every message in the journal of a store, by destination and over time.

Invariant: a message counts once, however often compaction copied it, and however many records name it. All figures are
of one moment, at which the pipeline listed the journal. It asks no broker and disturbs none.
"""

from __future__ import annotations

import os
from typing import Any

import click

from pyspark_amq.options import LEFT, MESSAGES, MOVES
from pyspark_amq.pipelines.frame import (
    Options,
    Pipeline,
    PipelineError,
    destinations_option,
    in_range,
    is_local,
    range_options,
)
from pyspark_amq.pipelines.page import write_page
from pyspark_amq.pipelines.progress import Say

BUCKETS_MAX = 120  # points in a curve
WIDTHS_S = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400, 604800)
WAITING, PREPARED, ROLLED_BACK = "waiting", "prepared", "rolled back"
OUTCOMES = ("acked", "expired", "dead-lettered", "purged", "fired", ROLLED_BACK, PREPARED, WAITING)


def run(spark: Any, options: Options, say: Say) -> dict[str, Any]:
    """Write Parquet to OUTPUT/destinations and OUTPUT/series, and a page to OUTPUT/audit.html. Returns totals."""
    from pyspark.sql import functions as F

    output = options["output"]
    rows = spark.read.format("amq-journal").options(kinds="all", includeValue="false").load(options["store"])
    known = _messages(rows).persist()
    try:
        unknown = _of(known.where(F.col("sent").isNull()), options).count()
        messages = _wanted(known, options)
        destinations = _destinations(messages).coalesce(1)
        destinations.write.mode("overwrite").parquet(os.path.join(output, "destinations"))
        by_destination = destinations.orderBy(F.desc("messages"), "destination").toArrow().to_pylist()
        say(f"{sum(row['messages'] for row in by_destination):,} messages of {len(by_destination):,} destinations")
        width_s = _width_s(by_destination)
        series = _series(messages, width_s).coalesce(1)
        series.write.mode("overwrite").parquet(os.path.join(output, "series"))
        points = series.orderBy("destination", "second").toArrow().to_pylist()
    finally:
        known.unpersist()
    page = os.path.join(output, "audit.html")
    write_page(page, options["store"], by_destination, points, width_s)
    totals = {name: sum(row[name] for row in by_destination) for name in ("messages", "bytes", "redelivered")}
    outcomes = {_column(name): sum(row[_column(name)] for row in by_destination) for name in OUTCOMES}
    return {"destinations": len(by_destination), **totals, **outcomes, "left_before": unknown, "page": page}


def _column(outcome: str) -> str:
    return outcome.replace("-", "_").replace(" ", "_")


def _messages(rows: Any) -> Any:
    """One row for each message.

    sent, left   times of its arrival at the broker and of its end in the queue; null = not in the journal
    destination  to which it was sent
    outcome      one of OUTCOMES
    wait_s       from `sent` to `left`, for acknowledged messages; the journal times acknowledgements by the second
    """
    from pyspark.sql import functions as F

    kind = F.col("kind")
    place = [F.col(name) for name in ("epoch", "segment", "position")]
    is_hidden = F.col("target").startswith("sent://") | F.col("target").startswith("held://")
    found = rows.groupBy("offset").agg(
        F.min(F.when(kind == MESSAGES, F.struct(*place, "destination", "queue", "timestamp", "bodyBytes"))).alias(
            "message"
        ),
        F.max(F.when(kind == LEFT, F.struct(*place, "destination", "queue", "timestamp", "reason"))).alias("gone"),
        F.max(F.when((kind == MOVES) & ~is_hidden, F.struct(*place, "target"))).alias("move"),
        F.max("deliveries").alias("deliveries"),
        F.max("failures").alias("failures"),
    )
    staged = F.col("message.queue").startswith("sent://") & F.col("move").isNull()
    outcome = (
        F.when(F.col("gone.queue").startswith("sent://"), ROLLED_BACK)
        .when(F.col("gone").isNotNull(), F.col("gone.reason"))
        .when(staged, PREPARED)
        .otherwise(WAITING)
    )
    destination = F.coalesce("message.destination", "gone.destination", "move.target")
    wait_s = F.col("gone.timestamp").cast("double") - F.col("message.timestamp").cast("double")
    return found.select(
        "offset",
        destination.alias("destination"),
        F.col("message.timestamp").alias("sent"),
        F.col("gone.timestamp").alias("left"),
        F.col("message.bodyBytes").alias("body_bytes"),
        outcome.alias("outcome"),
        F.coalesce("deliveries", F.lit(0)).alias("deliveries"),
        F.coalesce("failures", F.lit(0)).alias("failures"),
        F.when(outcome == "acked", F.greatest(wait_s, F.lit(0.0))).alias("wait_s"),
    )


def _of(messages: Any, options: Options) -> Any:
    """The messages of the destinations in the options."""
    from pyspark.sql import functions as F

    return messages.where(F.col("destination").isin(options["destination"])) if options["destination"] else messages


def _wanted(messages: Any, options: Options) -> Any:
    """The messages whose sending is known and in the range."""
    from pyspark.sql import functions as F

    found = _of(messages.where(F.col("sent").isNotNull()), options)
    return in_range(found, "sent", options)


def _destinations(messages: Any) -> Any:
    """One row for each destination: sizes, times, outcomes, waiting."""
    from pyspark.sql import functions as F

    outcomes = [F.count_if(F.col("outcome") == name).alias(_column(name)) for name in OUTCOMES]
    sizes = F.percentile_approx("body_bytes", [0.5, 0.99], 1000)
    waits = F.percentile_approx("wait_s", [0.5, 0.95, 0.99], 1000)
    found = messages.groupBy("destination").agg(
        F.count("*").alias("messages"),
        F.sum("body_bytes").alias("bytes"),
        F.min("body_bytes").alias("body_bytes_min"),
        sizes.alias("sizes"),
        F.max("body_bytes").alias("body_bytes_max"),
        F.min("sent").alias("first_sent"),
        F.max("sent").alias("last_sent"),
        F.max("left").alias("last_left"),
        *outcomes,
        F.count_if(F.col("deliveries") > 0).alias("redelivered"),
        F.sum("deliveries").alias("redeliveries"),
        F.sum("failures").alias("failures"),
        F.avg("wait_s").alias("wait_s_mean"),
        waits.alias("waits"),
        F.max("wait_s").alias("wait_s_max"),
        F.min(F.when(F.col("outcome") == WAITING, F.col("sent"))).alias("oldest"),
    )
    span_s = F.greatest(F.col("last_sent").cast("double") - F.col("first_sent").cast("double"), F.lit(1.0))
    return found.select(
        "*",
        (F.col("messages") / span_s).alias("messages_per_s"),
        (F.col("bytes") / span_s).alias("bytes_per_s"),
        *(F.col("sizes")[i].alias(f"body_bytes_p{name}") for i, name in enumerate((50, 99))),
        *(F.col("waits")[i].alias(f"wait_s_p{name}") for i, name in enumerate((50, 95, 99))),
    ).drop("sizes", "waits")


def _width_s(destinations: list[dict[str, Any]]) -> int:
    """The number of seconds for each point of a curve."""
    if not destinations:
        return WIDTHS_S[0]
    ends = [row[name] for row in destinations for name in ("last_sent", "last_left") if row[name] is not None]
    span_s = (max(ends) - min(row["first_sent"] for row in destinations)).total_seconds()
    return next((width for width in WIDTHS_S if span_s / width < BUCKETS_MAX), WIDTHS_S[-1])


def _series(messages: Any, width_s: int) -> Any:
    """The numbers of messages that were sent, and that left, in the `width_s` seconds from each `second` since 1970."""
    from pyspark.sql import functions as F

    def counted(column: str) -> Any:
        second = F.floor(F.col(column).cast("double") / width_s) * width_s
        known = messages.where(F.col(column).isNotNull())
        return known.groupBy("destination", second.alias("second")).agg(F.count("*").alias(f"{column}_messages"))

    found = counted("sent").join(counted("left"), ["destination", "second"], "full_outer")
    return found.fillna(0, ["sent_messages", "left_messages"])


def _check(options: Options) -> None:
    from pyspark_amq import journal

    journal.plan(options["store"])
    if not is_local(options["output"]):
        raise PipelineError(f"{options['output']}: is a URI: give a directory of this host, for the page")
    os.makedirs(options["output"], exist_ok=True)


PIPELINE = Pipeline(
    "audit",
    """Statistics of a store by destination, from its journal.

    Counts messages, their sizes, rates, outcomes, waits from send to acknowledgement, and redeliveries. Writes
    OUTPUT/audit.html, a self-contained page with tables and curves. Writes the figures as Parquet to
    OUTPUT/destinations (one row each) and OUTPUT/series (counts over time). Brokers may run meanwhile. The figures do
    not include trimmed segments.
    """,
    [
        click.Option(["--store"], metavar="DIR", required=True, help="Store directory."),
        click.Option(["--output"], metavar="DIR", required=True, help="Directory for the results; replaces old ones."),
        destinations_option(
            "--destination", "Only this destination: orders, /queue/orders or /topic/prices. May be repeated."
        ),
        *range_options(),
    ],
    [
        "--store /mnt/shared/amq --output /tmp/audit",
        "--store DIR --output OUT --destination /queue/orders --starting-timestamp 2026-01-31T06:00:00 --json",
        "--store DIR --output OUT --master spark://HOST:7077",
    ],
    _check,
    run,
)
