"""`amq journal`: what is in the journal of a store, also while a master writes it. Here is what only reads; what
changes a store is in `journal_move` and `journal_repair`.
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
from amq.cli.output import examples, json_option, print_json, print_table, size_text
from amq.cli.store import check_store, read_sealing
from amq.clock import SystemClock
from amq.config import BrokerConfig
from amq.errors import StoreError
from amq.journal.inspect import Found, Inspection, describe, foreign_files, kind_name
from amq.journal.records import KINDS, Destination, Group, Record, destinations_of
from amq.journal.space import RESERVE_NAME
from amq.vfs import SystemVfs

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
    """Look into the journal of a store, move it, repair it.

    check, dump, stat and compact only read: no lock is taken, brokers may run meanwhile. The end of the newest segment
    is then a snapshot. docs/journal-tools.md explains all of them.
    """


@journal.command(epilog=examples("amq journal check --store /mnt/shared/amq", "amq journal check --store DIR --json"))
@store_option
@json_option
def check(store: str, as_json: bool) -> None:
    """Verify every batch and every record.

    Exit code 4 where something is damaged, missing, foreign or of a newer format; each problem is one line with file
    and offset. A torn tail, left by a crash in the middle of a write, was never confirmed to anybody and is normal.

    Checkpoints are read, too. One that cannot be used is told and changes no exit code: a start passes it over.
    """
    from amq.maintenance.checkpoints import check_against, examine_checkpoints

    vfs = SystemVfs()
    check_store(vfs, store)
    checkpoints = examine_checkpoints(vfs, SystemClock(), store, BrokerConfig(store=store), read_sealing(vfs, store))
    inspection, _ = look(store)
    check_against(checkpoints, inspection)
    strangers = foreign_files(vfs, store, {RESERVE_NAME})
    if as_json:
        print_json({
            "ok": not inspection.problems,
            "segments": [segment_json(report) for report in inspection.segments],
            "problems": [problem_json(problem) for problem in inspection.problems],
            "unknown_files": strangers,
            "checkpoints": [checkpoint_json(report) for report in checkpoints],
        })  # fmt: skip
    else:
        _print_check(inspection, strangers, checkpoints)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


@journal.command(
    epilog=examples(
        "amq journal dump --store DIR --limit 20",
        "amq journal dump --store DIR --type message --destination /queue/orders --bodies",
        "amq journal dump --store DIR --segment 00000002-00000001.seg | jq .",
    )
)
@store_option
@click.option("--segment", metavar="NAME", default="", help="Only this segment, as `amq journal stat` names it.")
@click.option(
    "--type", "kinds", multiple=True, type=click.Choice(list(KINDS.values())),
    help="Only records of this type. May be repeated.",
)
@click.option("--destination", metavar="NAME", default="", help="Only records about this destination, /queue/NAME.")
@click.option("--bodies", is_flag=True, help="With the bodies of messages: text, or base64 where they are not UTF-8.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most so many records.")
def dump(
    store: str, segment: str, kinds: tuple[str, ...], destination: str, bodies: bool, limit: int | None
) -> None:  # fmt: skip
    """Print records, oldest first, one JSON object a line.

    A transaction, or a move to a dead-letter queue, is one record of type group that holds others; it matches when one
    of them does. Problems go to stderr; exit code 4 where there are any.
    """
    vfs = SystemVfs()
    check_store(vfs, store)
    with told_missing():
        inspection = Inspection(vfs, store, read_sealing(vfs, store))
    if segment and segment not in inspection.names:
        raise StoreError(f"{segment}: no such segment; `amq journal stat --store {store}` lists them")
    wanted = canonical(destination)
    matching = (found for found in inspection.records(segment) if _matches(found.record, kinds, wanted))
    for found in itertools.islice(matching, limit):
        print_json(_record_json(found, bodies), indent=None)
    tell_problems(inspection)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


def _print_check(inspection: Inspection, strangers: list[str], checkpoints: list[CheckpointReport]) -> None:
    rows = [
        (
            report.name, report.state, report.epoch, report.batches, report.records, report.end,
            f"torn tail of {report.torn_bytes} bytes (normal)" if report.torn_bytes else "",
        )
        for report in inspection.segments
    ]  # fmt: skip
    print_table(("segment", "state", "epoch", "batches", "records", "bytes", ""), rows)
    for checkpoint in checkpoints:
        if checkpoint.problem:
            click.echo(f"{checkpoint.path}: {checkpoint.problem}; a start passes this checkpoint over: delete it")
        else:
            size = size_text(checkpoint.file_bytes)
            click.echo(f"{checkpoint.name}: checkpoint, {checkpoint.messages:,} messages, {size}")
    for name in strangers:
        click.echo(f"{name}: no file of amq's, nobody reads it")
    tell_problems(inspection)
    records = sum(report.records for report in inspection.segments)
    total = size_text(sum(report.end for report in inspection.segments))
    verdict = f"{len(inspection.problems)} problems" if inspection.problems else "everything is whole"
    click.echo(f"{len(inspection.segments)} segments, {records:,} records, {total}: {verdict}")


def _record_json(found: Found, bodies: bool) -> dict[str, Any]:
    written = datetime.fromtimestamp(found.batch.wall_s, UTC)
    return {
        "segment": found.segment.name, "offset": found.offset, "batch": found.batch.number,
        "written": f"{written:%Y-%m-%dT%H:%M:%SZ}", **describe(found.record, bodies),
    }  # fmt: skip


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
