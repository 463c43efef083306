"""Shared by the commands of `amq journal`: the store option, progress of long readings, reports as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from amq.cli.output import console, facts, is_terminal
from amq.cli.store import check_journal, read_sealing, store_of
from amq.config import BrokerConfig, load
from amq.core.errors import StoreError
from amq.journal.inspect import Inspection, Problem, Progress, SegmentReport, inspect
from amq.journal.liveness import Liveness

if TYPE_CHECKING:
    from amq.maintenance.checkpoints import CheckpointReport

store_option = click.option(
    "--store",
    metavar="DIR|URL",
    required=True,
    envvar="AMQ_STORE",
    help="Store: directory, or URL of a database or of one member's copy (replica://…); or $AMQ_STORE.",
)
options_option = click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set an option of the brokers' configuration, if they do not run with its default.",
)


def read_config(store: str, options: tuple[str, ...]) -> BrokerConfig:
    """Defaults, environment and -o, as `amq start` without a file. Raises ConfigError."""
    return load(None, os.environ, options, store=store, require_store=True)


def progress(what: str) -> Progress:
    """Progress on stderr, if that is a terminal."""
    if not is_terminal():
        return lambda _done, _total: None
    screen = console(stderr=True)

    def tell(done: int, total: int) -> None:
        screen.print(f"{what}: {done:,} of {total:,}", end="\n" if done >= total else "\r")

    return tell


def look(store: str, config: BrokerConfig | None = None, *, is_checked: bool = False) -> tuple[Inspection, Liveness]:
    """Read and verify the whole journal. `is_checked` = the command has called `check_journal`. Raises StoreError if
    there is none."""
    found = store_of(store)
    if not is_checked:
        check_journal(found)
    windows = config or BrokerConfig()

    def make() -> Liveness:
        return Liveness(windows.duplicate_window, windows.outcome_window)

    with told_missing():
        return inspect(found.log, lambda: read_sealing(found), make, progress("segments read"))


@contextmanager
def told_missing() -> Iterator[None]:
    """Raises StoreError if the block finds no journal."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{error.filename} is missing: this store has no journal") from error


def segment_json(report: SegmentReport) -> dict[str, Any]:
    return facts(report, end="bytes")


def problem_json(problem: Problem) -> dict[str, Any]:
    return facts(problem, path="file")


def checkpoint_json(report: CheckpointReport) -> dict[str, Any]:
    return {"name": report.name, **facts(report, path="")}


def tell_problems(inspection: Inspection) -> None:
    """Print each problem as a line on stderr."""
    for problem in inspection.problems:
        click.echo(f"amq: {problem} [{problem.code}]", err=True)


def canonical(destination: str) -> str:
    """`/queue/a`, `queue://a` or `a` → `queue://a`, as the journal names it."""
    for kind in ("queue", "topic", "schedule"):
        for prefix in (f"/{kind}/", f"{kind}://"):
            if destination.startswith(prefix):
                return f"{kind}://{destination.removeprefix(prefix)}"
    return f"queue://{destination}" if destination else ""
