"""drain: messages become rows of Parquet files.

Invariant: a reader that uses Spark finds every message in the files once, whatever was killed meanwhile. A micro-batch
always holds the same messages, and its number counts once. So a checkpoint and an output belong together. The pipeline
refuses two that do not: Spark would take new micro-batches for old ones, and drop them silently. Every acknowledged
message is in the files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from pyspark_amq.options import SourceOptions, read
from pyspark_amq.pipelines.frame import (
    Options,
    Pipeline,
    PipelineError,
    broker_options,
    duration_s,
    follow,
    is_local,
    log_in,
    pairs_option,
)
from pyspark_amq.pipelines.progress import CHECKPOINT, Say

CURSOR = "drain"  # default name of the cursor of a queue
METADATA = "_spark_metadata"  # of Spark's file sink
_BATCH = re.compile(r"([0-9]+)(?:\.compact)?")

Names = Callable[[str], Sequence[str]]  # names in a directory; none if it does not exist


def run(spark: Any, options: Options, say: Say) -> dict[str, Any]:
    """Write the waiting messages; with an interval also later ones. Returns numbers of messages and micro-batches."""
    from pyspark.sql import functions as F

    output, checkpoint = options["output"], _checkpoint(options)
    check_pair(lambda path: _names(spark, path), output, checkpoint)
    settings = source_settings(options)
    rows = spark.readStream.format("amq").options(**settings).load()
    if options["text"]:
        rows = rows.withColumn("value", F.col("value").cast("string"))
    say(f"writing {options['destination']} to {output}")
    writer = rows.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    if options["interval"] is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(1000 * options['interval'])} milliseconds")
    figures = follow(writer.start, say, "drain", checkpoint)
    _acknowledge(spark, checkpoint, settings)
    return {**figures, "output": output}


def _acknowledge(spark: Any, checkpoint: str, settings: Mapping[str, str]) -> None:
    """Acknowledge all written messages. Otherwise Spark would acknowledge the last micro-batch only when the next one
    begins, and the broker would keep it until then. Raises AmqError."""
    from pyspark_amq.streams import ClusterStreamReader

    committed = _last(_names(spark, f"{checkpoint}/commits"))
    if committed < 0:
        return
    text = spark.read.text(f"{checkpoint}/offsets/{committed}", wholetext=True).first().value
    reader = ClusterStreamReader(read(SourceOptions, settings))
    try:
        reader.settle(json.loads(text.rstrip("\n").rpartition("\n")[2]))  # the offset of its only source
    finally:
        reader.stop()


def source_settings(options: Options) -> dict[str, str]:
    """These options, as options of `format("amq")`."""
    names = ("url", "user", "password", "destination", "subscription", "store")
    given = {name: options[name] for name in names if options[name]}
    return {"subscription": CURSOR, **given, **dict(options["option"])}


def _checkpoint(options: Options) -> str:
    return options["checkpoint"] or f"{options['output'].rstrip('/')}/{CHECKPOINT}"


def written_files(output: str) -> list[str]:
    """Paths of the valid files of an output on a local disk. Raises OSError."""
    directory = os.path.join(output, METADATA)
    lists = {int(match[1]): match[0] for match in map(_BATCH.fullmatch, os.listdir(directory)) if match}
    first = max((number for number, name in lists.items() if name.endswith(".compact")), default=0)  # holds all before
    found = []
    for number in range(first, len(lists) and max(lists) + 1):
        with open(os.path.join(directory, lists[number]), encoding="utf-8") as lines:
            found += [json.loads(line) for line in list(lines)[1:]]  # the first line is its version
    return [unquote(urlsplit(each["path"]).path) for each in found if each["action"] == "add"]


def check_pair(names: Names, output: str, checkpoint: str) -> None:
    """Do these belong together? The checkpoint plans a micro-batch, then the output gets it, then the checkpoint
    commits it. Raises PipelineError."""
    written = _last(names(f"{output}/{METADATA}"))
    planned, committed = (_last(names(f"{checkpoint}/{each}")) for each in ("offsets", "commits"))
    if not committed <= written <= planned:
        raise PipelineError(
            f"{output} and the checkpoint {checkpoint} do not belong together: the output has micro-batches up to "
            f"{written}, the checkpoint {planned}. Give each output its own checkpoint, and keep or delete both at once"
        )
    if planned < 0 and any(not name.startswith(("_", ".")) for name in names(output)):
        raise PipelineError(f"{output} has files that no drain wrote, and readers would not see them: give another")


def _last(names: Sequence[str]) -> int:
    """Number of the last micro-batch; -1 = none."""
    found = [match for match in map(_BATCH.fullmatch, names) if match]
    return max((int(match[1]) for match in found), default=-1)


def _names(spark: Any, path: str) -> Sequence[str]:
    """The names in a directory of any file system of Spark."""
    place = spark._jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return [each.getPath().getName() for each in files.listStatus(place)] if files.exists(place) else []


def _local_names(path: str) -> Sequence[str]:
    return os.listdir(path) if os.path.exists(path) else []


def _check(options: Options) -> None:
    from pyspark_amq.names import is_topic
    from pyspark_amq.source import AmqStreamReader

    given = read(SourceOptions, source_settings(options))
    is_named = options["subscription"] or any(name.lower() == "subscription" for name, _ in options["option"])
    if not is_named and any(map(is_topic, given.destination.split(","))):
        raise click.UsageError(
            "give --subscription, a name that nothing else uses: it names a durable subscription to this topic alone"
        )
    AmqStreamReader(given)
    if is_local(options["output"]) and is_local(_checkpoint(options)):
        check_pair(_local_names, options["output"], _checkpoint(options))
    log_in(given)


PIPELINE = Pipeline(
    "drain",
    """Write the messages of a queue, or of a durable subscription to a topic, to Parquet files.

    Writes the messages that wait at its start, and ends. With --interval it runs on, and writes new messages at that
    interval. It writes every message once and then acknowledges it, whatever was killed meanwhile. Run it again with
    the same --output after a failure, or from time to time. docs/spark.md lists the columns of format amq.
    """,
    [
        *broker_options(),
        click.Option(
            ["--destination"], metavar="NAME", required=True, help="/queue/NAME, /topic/NAME, or several with commas."
        ),
        click.Option(
            ["--subscription"],
            metavar="NAME",
            default="",
            help="Name under which the broker keeps messages until they are written. For a topic it is required: it "
            f"names the durable subscription. Use one for each drain of a destination. Default: {CURSOR}.",
        ),
        click.Option(
            ["--output"], metavar="DIR", required=True, help="Directory for the files, on any file system of Spark."
        ),
        click.Option(
            ["--checkpoint"],
            metavar="DIR",
            default="",
            help=f"Directory for the progress. Default: {CHECKPOINT} in --output.",
        ),
        click.Option(
            ["--interval"], metavar="DURATION", callback=duration_s, help="Run on; write at this interval, such as 1m."
        ),
        click.Option(
            ["--store"],
            metavar="DIR",
            default="",
            help="Where all executors have mounted the broker's store: they read messages of queues there, if its "
            "option directReads names the user.",
        ),
        click.Option(["--text"], is_flag=True, help="Make the column value a string, not bytes."),
        pairs_option("--option", "Any other option of the source: includeHeaders=true, maxOffsetsPerTrigger=10000."),
    ],
    [
        "--destination /queue/orders --output /data/orders",
        "--destination /topic/prices --subscription lake --output /data/prices --text --interval 1m",
        "--destination /queue/orders --store /mnt/amq --output /data/orders --interval 10s",
        "--destination /queue/orders --output s3a://lake/orders --option maxOffsetsPerTrigger=100000 --json",
    ],
    _check,
    run,
)
