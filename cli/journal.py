"""`amq journal check|dump|stat`: what is in the journal of a store, also while a master writes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from amq.cli import exits
from amq.cli.output import examples, json_option, print_json, print_table, size_text
from amq.cli.store import check_store, read_sealing
from amq.errors import StoreError
from amq.journal.inspect import (
    Found,
    Inspection,
    Problem,
    SegmentReport,
    Statistics,
    describe,
    foreign_files,
    inspect,
    kind_name,
)
from amq.journal.journal import RESERVE_NAME
from amq.journal.records import KINDS, Destination, Group, Record, destinations_of
from amq.vfs import SystemVfs

store_option = click.option("--store", metavar="DIR", required=True, help="Store directory.")


@click.group(
    epilog=examples(
        "amq journal check --store /mnt/shared/amq",
        "amq journal dump --store /mnt/shared/amq --destination /queue/orders --bodies --limit 10",
        "amq journal stat --store /mnt/shared/amq --json",
    )
)
def journal() -> None:
    """Read the journal of a store: check, dump, stat.

    Reads only: no lock is taken, brokers may run meanwhile. The end of the newest segment is then a snapshot.
    """


@journal.command(epilog=examples("amq journal check --store /mnt/shared/amq", "amq journal check --store DIR --json"))
@store_option
@json_option
def check(store: str, as_json: bool) -> None:
    """Verify every batch and every record.

    Exit code 4 where something is damaged, missing, foreign or of a newer format; each problem is one line with file
    and offset. A torn tail, left by a crash in the middle of a write, was never confirmed to anybody and is normal.
    """
    inspection, _ = _inspect(store)
    strangers = foreign_files(SystemVfs(), store, {RESERVE_NAME})
    if as_json:
        print_json({
            "ok": not inspection.problems,
            "segments": [_segment_json(report) for report in inspection.segments],
            "problems": [_problem_json(problem) for problem in inspection.problems],
            "unknown_files": strangers,
        })  # fmt: skip
    else:
        _print_check(inspection, strangers)
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
    "--type", "kinds", multiple=True, type=click.Choice(KINDS[1:]), help="Only records of this type. May be repeated."
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
    inspection = Inspection(vfs, store, read_sealing(vfs, store))
    if segment and segment not in inspection.names:
        raise StoreError(f"{segment}: no such segment; `amq journal stat --store {store}` lists them")
    wanted = _canonical(destination)
    matching = (found for found in inspection.records(segment) if _matches(found.record, kinds, wanted))
    for found in itertools.islice(matching, limit):
        print_json(_record_json(found, bodies), indent=None)
    for problem in inspection.problems:
        click.echo(f"amq: {problem} [{problem.code}]", err=True)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


@journal.command(epilog=examples("amq journal stat --store /mnt/shared/amq", "amq journal stat --store DIR --json"))
@store_option
@json_option
def stat(store: str, as_json: bool) -> None:
    """Count messages by segment and by destination.

    Live messages have not left their queue; a segment is deleted when nothing in it is live and nothing before it is.
    Bytes are those of message bodies. Non-persistent messages are not in the journal.
    """
    inspection, statistics = _inspect(store)
    segments = [
        _segment_json(report) | statistics.segments[report.name].to_json()
        for report in inspection.segments
        if report.name in statistics.segments
    ]
    destinations = [{"destination": name} | tally.to_json() for name, tally in sorted(statistics.destinations.items())]
    if as_json:
        print_json({
            "segments": segments, "destinations": destinations,
            "problems": [_problem_json(problem) for problem in inspection.problems],
        })  # fmt: skip
    else:
        counts = ("messages", "live", "dead", "live_bytes", "acked", "expired", "dead-lettered", "purged")
        names = [name.replace("_", " ") for name in counts]
        print_table(["segment", "state", *names], [[s["name"], s["state"], *(s[c] for c in counts)] for s in segments])
        click.echo()
        print_table(["destination", *names], [[d["destination"], *(d[c] for c in counts)] for d in destinations])
        for problem in inspection.problems:
            click.echo(f"amq: {problem} [{problem.code}]", err=True)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


def _inspect(store: str) -> tuple[Inspection, Statistics]:
    vfs = SystemVfs()
    check_store(vfs, store)
    try:
        return inspect(vfs, store, lambda: read_sealing(vfs, store))
    except FileNotFoundError as error:
        raise StoreError(f"{error.filename}: is missing: there is no journal in this store") from error


def _print_check(inspection: Inspection, strangers: list[str]) -> None:
    rows = [
        (
            report.name, report.state, report.epoch, report.batches, report.records, report.end,
            f"torn tail of {report.torn_bytes} bytes (normal)" if report.torn_bytes else "",
        )
        for report in inspection.segments
    ]  # fmt: skip
    print_table(("segment", "state", "epoch", "batches", "records", "bytes", ""), rows)
    for name in strangers:
        click.echo(f"{name}: no file of amq's, nobody reads it")
    for problem in inspection.problems:
        click.echo(f"amq: {problem} [{problem.code}]", err=True)
    records = sum(report.records for report in inspection.segments)
    total = size_text(sum(report.end for report in inspection.segments))
    verdict = f"{len(inspection.problems)} problems" if inspection.problems else "everything is whole"
    click.echo(f"{len(inspection.segments)} segments, {records:,} records, {total}: {verdict}")


def _segment_json(report: SegmentReport) -> dict[str, Any]:
    return {
        "name": report.name, "state": report.state, "epoch": report.epoch, "number": report.number,
        "file_bytes": report.file_bytes, "bytes": report.end, "batches": report.batches, "records": report.records,
        "torn_bytes": report.torn_bytes,
    }  # fmt: skip


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {"code": problem.code, "file": problem.path, "offset": problem.offset, "why": problem.why}


def _record_json(found: Found, bodies: bool) -> dict[str, Any]:
    written = datetime.fromtimestamp(found.batch.wall_s, UTC)
    return {
        "segment": found.segment.name, "offset": found.offset, "batch": found.batch.number,
        "written": f"{written:%Y-%m-%dT%H:%M:%SZ}", **describe(found.record, bodies),
    }  # fmt: skip


def _canonical(destination: str) -> str:
    """`/queue/a`, `queue://a` or `a` → `queue://a`, as the journal names it."""
    for kind in ("queue", "topic"):
        for prefix in (f"/{kind}/", f"{kind}://"):
            if destination.startswith(prefix):
                return f"{kind}://{destination.removeprefix(prefix)}"
    return f"queue://{destination}" if destination else ""


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
