"""ingest: files become messages, one for each line or row.

Invariant: with a checkpoint the pipeline sends every row of every file once, even if a run fails, or the broker or the
driver is killed. A later run sends only the rows of new files. Without a checkpoint each run is a separate job: all
its rows become visible at once, or none, and a second run sends all of them again.
"""

from __future__ import annotations

import os
from typing import Any

import click

from pyspark_amq.pipelines.frame import (
    Options,
    Pipeline,
    PipelineError,
    broker_options,
    check_sink,
    delivery_option,
    follow,
    is_local,
    pairs_option,
    sink_settings,
)
from pyspark_amq.pipelines.progress import Say

FORMATS = ("text", "json", "csv", "parquet", "orc")
# For Spark's reader of CSV. With enforceSchema it would take columns by their place and ignore the header of a file.
CSV = {"header": "true", "enforceSchema": "false"}
# For Spark's stream of files, which by default skips files that are a week older than the newest one.
STREAM = {"maxFileAge": "36500d"}


def run(spark: Any, options: Options, say: Say) -> dict[str, Any]:
    """Send the rows. Returns the number of messages, with a checkpoint also that of micro-batches."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    kind, path = options["format"], options["input"]
    read = (CSV if kind == "csv" else {}) | dict(options["option"])
    settings = sink_settings(options)
    files = spark.read.format(kind).options(**read).load(path)
    say(f"sending {path} to {options['destination']}")
    if not options["checkpoint"]:
        sent = Observation("sent")
        rows = _rows(files, options).observe(sent, F.count(F.lit(1)).alias("messages"))
        rows.write.format("amq").options(**settings).mode("append").save()
        return dict(sent.get)
    stream = spark.readStream.format(kind).options(**STREAM | read).schema(files.schema).load(path)
    writer = _rows(stream, options).writeStream.format("amq").options(**settings)
    writer = writer.option("checkpointLocation", options["checkpoint"])
    return follow(writer.trigger(availableNow=True).start, say, "ingest", options["checkpoint"])


def _rows(files: Any, options: Options) -> Any:
    """The columns of `format("amq")`. Without --value the value is the text of a row, or its columns as JSON."""
    from pyspark.sql import functions as F

    chosen = [name for name in (options["value"], options["key"]) if name]
    missing = [name for name in chosen if name not in files.columns]
    if missing:
        raise PipelineError(f"{options['input']} has no column {missing[0]}: it has {', '.join(files.columns)}")
    if options["value"]:
        value = _named(options["value"])
        if files.schema[options["value"]].dataType.typeName() not in ("string", "binary"):
            value = value.cast("string")
    else:
        value = F.col("value") if options["format"] == "text" else F.to_json(F.struct("*"))
    key = [_named(options["key"]).cast("string").alias("key")] if options["key"] else []
    return files.select(value.alias("value"), *key)


def _named(column: str) -> Any:
    """The column of that name. Quotes let the name have dots, which Spark would take for fields of a struct."""
    from pyspark.sql import functions as F

    return F.col("`" + column.replace("`", "``") + "`")


def _check(options: Options) -> None:
    local = is_local(options["input"]) and not set("*?[{") & set(options["input"])
    if local and not os.path.exists(options["input"]):
        raise PipelineError(f"{options['input']}: there is no such file or directory")
    if local and options["checkpoint"] and not os.path.isdir(options["input"]):
        raise PipelineError(f"{options['input']}: with --checkpoint give the directory that gets new files")
    check_sink(options)


PIPELINE = Pipeline(
    "ingest",
    """Send the rows of files to a destination.

    A line of text becomes a message. A row of another format becomes a JSON object of its columns, or the value of the
    column --value. With --checkpoint it sends only files that no earlier run has sent, and every row once, whatever was
    killed meanwhile. Run it again after a failure, or from time to time.
    """,
    [
        click.Option(
            ["--input"], metavar="PATH", required=True, help="File, directory or pattern; any file system of Spark's."
        ),
        click.Option(["--format"], type=click.Choice(FORMATS), default="text", show_default=True, help="Of the files."),
        *broker_options(),
        click.Option(["--destination"], metavar="NAME", required=True, help="/queue/NAME."),
        click.Option(["--value"], metavar="COLUMN", default="", help="Send only this column as the message."),
        click.Option(["--key"], metavar="COLUMN", default="", help="Column that is the message's correlation-id."),
        click.Option(["--checkpoint"], metavar="DIR", default="", help="Directory for the progress."),
        delivery_option(),
        pairs_option("--option", "Any option of Spark's reader of the format: sep=;, maxFilesPerTrigger=10."),
    ],
    [
        "--input /data/orders.txt --destination /queue/orders",
        "--input /data/orders --format json --destination /queue/orders --key id --checkpoint /data/checkpoints/orders",
        "--input '/data/*.csv' --format csv --value body --destination /queue/orders --delivery at-least-once --json",
    ],
    _check,
    run,
)
