"""`amq pipeline`: the jobs of pyspark_amq.pipelines as commands. Spark itself is imported only when one runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from amq.cli.output import examples, json_option, print_json, print_table
from pyspark_amq.pipelines import NAMES, load
from pyspark_amq.pipelines.frame import command
from pyspark_amq.pipelines.progress import STATUS, checkpoints_in, read_status

_FIGURES = (  # of a run, and their headings
    ("updated", "updated"),
    ("messages", "messages"),
    ("last_per_s", "per s"),
    ("waiting", "waiting"),
    ("waiting_bytes", "bytes waiting"),
    ("leased", "leased"),
    ("direct", "direct"),
    ("fallback", "fallback"),
)


def _show(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(figures)
        return
    for name, value in figures.items():
        text = f"{value:,}" if isinstance(value, int) else str(value)
        click.echo(f"{name.replace('_', ' ')}: {text}")


@click.group(epilog=examples("amq pipeline list", "amq pipeline run audit --store /mnt/shared/amq --output /tmp/audit"))
def pipeline() -> None:
    """Run a data pipeline with Spark: files to queues, queues to files, journals to figures.

    Pipelines need Java 17 and `pip install 'amq[spark]'`. docs/spark.md explains them.
    """


@pipeline.command(
    "list",
    epilog=examples(
        "amq pipeline list",
        "amq pipeline list --json",
        "amq pipeline list --checkpoint /data/checkpoints",
        "amq pipeline list --checkpoint /data/orders --checkpoint /data/bills --json",
    ),
)
@click.option(
    "--checkpoint",
    "checkpoints",
    metavar="DIR",
    multiple=True,
    help="Show the runs of ingest and drain that keep a checkpoint in DIR, in a directory in it, or as output of a "
    "drain. May be repeated.",
)
@json_option
def list_(checkpoints: tuple[str, ...], as_json: bool) -> None:
    """List the pipelines, or with --checkpoint their runs.

    A run has the figures of `amq pipeline status`, as of its last micro-batch. A dash is where a run has no such
    figure: a stream of files has no lag, and who gave no --store reads nothing from there.
    """
    if checkpoints:
        _list_runs(checkpoints, as_json)
        return
    found = [load(name) for name in NAMES]
    if as_json:
        print_json([{"name": each.name, "about": each.title} for each in found])
    else:
        print_table(("pipeline", ""), [(each.name, each.title) for each in found])


def _list_runs(directories: Sequence[str], as_json: bool) -> None:
    try:
        found = [{**read_status(each), "checkpoint": each} for each in checkpoints_in(directories)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not found:
        where = " and ".join(directories)
        raise click.UsageError(f"no {STATUS} in {where}: give a directory with checkpoints of ingest or drain")
    if as_json:
        print_json(found)
        return
    names = [name for name, _ in _FIGURES]
    rows = [[each.get(name, "-") for name in ("pipeline", "state", *names, "checkpoint")] for each in found]
    print_table(("pipeline", "state", *(told for _, told in _FIGURES), "checkpoint"), rows)


@pipeline.command(
    "status",
    epilog=examples(
        "amq pipeline status --checkpoint /data/checkpoints/orders",
        "amq pipeline status --checkpoint /data/orders/_checkpoint --json",
    ),
)
@click.option("--checkpoint", metavar="DIR", required=True, help="Checkpoint of an ingest or drain, on a local disk.")
@json_option
def status(checkpoint: str, as_json: bool) -> None:
    """Show the progress of a pipeline that runs or has run.

    Rows in all and a second, messages and bytes that wait at the broker, messages leased, and how messages were read,
    as of the last micro-batch. A drain keeps its checkpoint in _checkpoint of --output.
    """
    try:
        _show(read_status(checkpoint), as_json)
    except FileNotFoundError:
        raise click.UsageError(
            f"{checkpoint} has no {STATUS}: give the checkpoint of an ingest or drain, on a local disk, that has begun"
        ) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@pipeline.group("run", epilog=examples(*(f"amq pipeline run {name} {load(name).examples[0]}" for name in NAMES)))
def run_() -> None:
    """Run one pipeline.

    The pipeline writes its figures to stdout at the end; progress and warnings go to stderr. Spark runs in this process
    on all cores, unless --master or spark-submit says otherwise.
    """


for _name in NAMES:
    run_.add_command(command(load(_name), examples, _show, os.environ))
