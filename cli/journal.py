"""`amq journal` shows the journal of a store, also while a master writes it. The commands here only read;
`journal_move` and `journal_repair` change a store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from amq.cli import exits
from amq.cli.journal_common import (
    canonical,
    checkpoint_json,
    look,
    problem_json,
    segment_json,
    store_option,
    tell_problems,
    told_missing,
)
from amq.cli.journal_move import export_, import_
from amq.cli.journal_repair import repair
from amq.cli.journal_stat import compact, stat
from amq.cli.output import counted, examples, json_option, print_json, print_table, size_text
from amq.cli.store import check_journal, read_sealing, store_of
from amq.config import BrokerConfig
from amq.core.errors import CorruptError, StoreError
from amq.journal.inspect import Found, Inspection, Problem, SegmentReport, foreign_files
from amq.journal.records import KINDS, Destination, Group, Record, describe, destinations_of, kind_name

if TYPE_CHECKING:
    from amq.maintenance.checkpoints import CheckpointReport


@click.group(
    epilog=examples(
        "amq journal check --store /mnt/shared/amq",
        "amq journal dump --store /mnt/shared/amq --destination /queue/orders --bodies --limit 10",
        "amq journal stat --store /mnt/shared/amq",
    )
)
def journal() -> None:
    """Show, check, move or repair the journal of a store.

    check, dump, stat and compact only read. They take no lock, so brokers may run at the same time; the end of the
    newest segment is then a snapshot. docs/journal-tools.md explains all commands.
    """


@journal.command(epilog=examples("amq journal check --store /mnt/shared/amq", "amq journal check --store DIR --json"))
@store_option
@json_option
def check(store: str, as_json: bool) -> None:
    """Verify every batch and every record.

    Each problem is one line with file and offset. Exit code 4 if anything is damaged, missing, foreign or of a newer
    format. A torn tail is normal: a crash in the middle of a write left it, and the broker never confirmed it.

    The command also reads checkpoints. It reports an unusable checkpoint, but the exit code stays the same: a broker
    that starts ignores such a checkpoint.
    """
    from amq.maintenance.checkpoints import check_against, examine_checkpoints

    found = store_of(store)
    check_journal(found)
    try:
        sealing = read_sealing(found)
    except CorruptError as error:  # nothing else can be judged without the newest epoch
        if as_json:
            print_json(_check_json([], [Problem(error.code, error.path, error.offset, error.why)], [], []))
            raise click.exceptions.Exit(exits.STORE) from error
        raise
    checkpoints = examine_checkpoints(found.log, BrokerConfig(store=store), sealing)
    inspection, _ = look(store, is_checked=True)
    check_against(checkpoints, inspection)
    strangers = foreign_files(found.log)
    if as_json:
        print_json(_check_json(inspection.segments, inspection.problems, strangers, checkpoints))
    else:
        _print_check(inspection, strangers, checkpoints)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


def _check_json(
    segments: list[SegmentReport], problems: list[Problem], strangers: list[str], checkpoints: list[CheckpointReport]
) -> dict[str, Any]:
    return {
        "ok": not problems,
        "segments": [segment_json(report) for report in segments],
        "problems": [problem_json(problem) for problem in problems],
        "unknown_files": strangers,
        "checkpoints": [checkpoint_json(report) for report in checkpoints],
    }


@journal.command(
    epilog=examples(
        "amq journal dump --store DIR --limit 20",
        "amq journal dump --store DIR --type message --destination /queue/orders --bodies",
        "amq journal dump --store DIR --segment 00000002-00000001.seg | jq .",
    )
)
@store_option
@click.option(
    "--segment",
    metavar="NAME",
    default="",
    help="Print only this segment; `amq journal stat` lists the names.",
)
@click.option(
    "--type",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS.values())),
    help="Print only records of this type. May be repeated.",
)
@click.option(
    "--destination",
    metavar="NAME",
    default="",
    help="Print only records about this destination, /queue/NAME.",
)
@click.option(
    "--bodies",
    is_flag=True,
    help="Print the bodies of messages too: as text, or as base64 if they are not UTF-8.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Print at most N records.")
def dump(store: str, segment: str, kinds: tuple[str, ...], destination: str, bodies: bool, limit: int | None) -> None:
    """Print records, oldest first, one JSON object a line.

    A transaction, or a move to a dead-letter queue, is one record of type group, which holds other records. A group
    matches if one of its records matches. Problems go to stderr; with a problem the exit code is 4.
    """
    found = store_of(store)
    check_journal(found)
    with told_missing():
        inspection = Inspection(found.log, read_sealing(found))
    if segment and segment not in inspection.names:
        raise StoreError(f"{segment}: no such segment; `amq journal stat --store {store}` lists them")
    wanted = canonical(destination)
    matching = (each for each in inspection.records(segment) if _matches(each.record, kinds, wanted))
    for each in itertools.islice(matching, limit):
        print_json(_record_json(each, bodies), indent=None)
    tell_problems(inspection)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


def _print_check(inspection: Inspection, strangers: list[str], checkpoints: list[CheckpointReport]) -> None:
    rows = [
        (
            report.name,
            report.state,
            report.epoch,
            report.batches,
            report.records,
            report.end,
            f"torn tail of {report.torn_bytes} bytes (normal)" if report.torn_bytes else "",
        )
        for report in inspection.segments
    ]
    print_table(("segment", "state", "epoch", "batches", "records", "bytes", ""), rows)
    for checkpoint in checkpoints:
        if checkpoint.problem:
            click.echo(f"{checkpoint.path}: {checkpoint.problem}; brokers lose nothing without it; you may delete it")
        else:
            assert checkpoint.messages is not None  # a checkpoint without a problem was read
            size = size_text(checkpoint.file_bytes)
            click.echo(f"{checkpoint.name}: checkpoint, {counted(checkpoint.messages, 'message')}, {size}")
    for name in strangers:
        click.echo(f"{name}: not a file of amq; no broker reads it")
    tell_problems(inspection)
    records = sum(report.records for report in inspection.segments)
    total = size_text(sum(report.end for report in inspection.segments))
    verdict = counted(len(inspection.problems), "problem") if inspection.problems else "no damage found"
    segments = counted(len(inspection.segments), "segment")
    click.echo(f"{segments}, {counted(records, 'record')}, {total}: {verdict}")


def _record_json(found: Found, bodies: bool) -> dict[str, Any]:
    written = datetime.fromtimestamp(found.batch.wall_s, UTC)
    return {
        "segment": found.segment.name,
        "offset": found.offset,
        "batch": found.batch.number,
        "written": f"{written:%Y-%m-%dT%H:%M:%SZ}",
        **describe(found.record, bodies),
    }


def _matches(record: Record, kinds: tuple[str, ...], destination: str) -> bool:
    flat = list(_flatten(record))
    if kinds and not any(kind_name(part) in kinds for part in flat):
        return False
    if not destination:
        return True
    names = set(destinations_of(flat)) | {part.name for part in flat if isinstance(part, Destination)}
    return destination in names


def _flatten(record: Record) -> Iterator[Record]:
    yield record
    if isinstance(record, Group):
        for part in record.records:
            yield from _flatten(part)


journal.add_command(stat)
journal.add_command(compact)
journal.add_command(export_, "export")
journal.add_command(import_, "import")
journal.add_command(repair)
