"""`amq journal stat` and `amq journal compact --dry-run`: live and dead bytes of each segment, and what keeps it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from amq.cli import exits
from amq.cli.journal_common import (
    checkpoint_json,
    look,
    options_option,
    problem_json,
    read_config,
    segment_json,
    store_option,
    tell_problems,
)
from amq.cli.output import duration_text, examples, facts, json_option, print_json, print_table, size_text
from amq.cli.store import store_of, store_version
from amq.doors.clock import SystemClock
from amq.journal.compaction_plan import COPY, FREE, Step, counting, ids_by_segment, plan
from amq.journal.hidden import told_name
from amq.journal.inspect import Inspection
from amq.journal.liveness import Liveness, Pin, Tally
from amq.journal.records import REASONS

if TYPE_CHECKING:
    from amq.maintenance.checkpoints import CheckpointReport

PINS_SHOWN = 2
MESSAGES, OLDER, NEWEST, NOTHING = "messages", "older", "newest", "nothing"
_LEFT = tuple(reason.replace("-", "_") for reason in REASONS)
_KEPT = {
    OLDER: "an older segment: this one holds its acknowledgements",
    NEWEST: "it is the newest segment",
    NOTHING: "nothing: the broker deletes it next",
}


@click.command(
    epilog=examples(
        "amq journal stat --store /mnt/shared/amq",
        "amq journal stat --store DIR --json | jq '.segments[] | select(.kept_by == \"messages\")'",
    )
)
@store_option
@json_option
@options_option
def stat(store: str, as_json: bool, options: tuple[str, ...]) -> None:
    """Show live and dead messages by segment and by destination, and why each segment is kept.

    A live message has not left its queue. The broker deletes a segment when it holds no live message and no record
    about a message in an older segment. So an old message keeps the acknowledgements of its neighbours until compaction
    copies it forward. Remembered ids keep no segment: the broker writes them again when it deletes their segment. The
    command also shows the newest checkpoint and how much of the journal a start reads behind it. Bytes are those of
    stored records; the JSON also has those of bodies (`message_bytes`, `live_bytes`). The version of the store is the
    format in which its last master wrote; older segments keep the version that they have. Messages of durable
    subscriptions, prepared and scheduled messages have rows of their own. The journal holds no non-persistent messages.
    """
    from amq.maintenance.checkpoints import find_checkpoints

    newest = next(iter(find_checkpoints(store_of(store).log.checkpoints)), None)
    inspection, liveness = look(store, read_config(store, options))
    version = store_version(store_of(store))
    behind = newest.behind_bytes(inspection) if newest is not None else 0
    pins = liveness.pins()
    segments, destinations = _segments_json(inspection, liveness, pins), _destinations_json(liveness, pins)
    if as_json:
        print_json(
            {
                "version": version,
                "segments": segments,
                "destinations": destinations,
                "remembered_ids": sum(map(len, liveness.duplicates.values())),
                "remembered_outcomes": len(liveness.outcomes),
                "checkpoint": None if newest is None else {**checkpoint_json(newest), "behind_bytes": behind},
                "problems": [problem_json(problem) for problem in inspection.problems],
            }
        )
    else:
        _print_segments(segments)
        click.echo()
        _print_destinations(destinations)
        click.echo()
        _print_checkpoint(newest, behind)
        _print_version(version, segments)
        tell_problems(inspection)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


@click.command(
    epilog=examples(
        "amq journal compact --dry-run --store /mnt/shared/amq",
        "amq journal compact --dry-run --store DIR -o journalSegmentSize=64MiB --json",
    )
)
@store_option
@click.option("--dry-run", is_flag=True, help="Required: brokers compact while they serve, so there is no other mode.")
@json_option
@options_option
def compact(store: str, dry_run: bool, as_json: bool, options: tuple[str, ...]) -> None:
    """Show what compaction would copy and free, segment by segment.

    The master compacts while it serves; nobody has to start it. It copies live messages forward, oldest segment first,
    until the journal is at most twice as large as its live records plus one segment. `keep` means that the journal is
    small enough at that point. The master writes remembered ids again only if that frees space.
    """
    if not dry_run:
        raise click.UsageError("brokers compact while they serve; add --dry-run to see what compaction would do")
    config = read_config(store, options)
    inspection, liveness = look(store, config)
    steps = plan(inspection.segments, liveness, config.journal_segment_size_bytes)
    totals = _totals(steps)
    rows = [{**facts(step), "freed_bytes": step.freed_bytes} for step in steps]
    if as_json:
        print_json(
            {
                "segments": rows,
                **totals,
                "problems": [problem_json(problem) for problem in inspection.problems],
            }
        )
    else:
        names = ("segment", "action", "bytes", "file", "live", "live bytes", "ids", "id bytes", "frees")
        print_table(names, [tuple(row.values()) for row in rows])
        click.echo(
            f"{totals['segments_gone']} of {len(steps)} segments would go: copies {size_text(totals['copy_bytes'])}, "
            f"frees {size_text(max(0, totals['freed_bytes']))}"
        )
        tell_problems(inspection)
    if inspection.problems:
        raise click.exceptions.Exit(exits.STORE)


def _totals(steps: list[Step]) -> dict[str, int]:
    going = [step for step in steps if step.action in (FREE, COPY)]
    return {
        "segments_gone": len(going),
        "copy_bytes": sum(step.copy_bytes + step.copy_id_bytes for step in going),
        "freed_bytes": sum(step.freed_bytes for step in going),
    }


def _segments_json(inspection: Inspection, liveness: Liveness, pins: list[Pin]) -> list[dict[str, Any]]:
    by_segment: dict[str, list[Pin]] = {}
    for pin in pins:
        by_segment.setdefault(pin.segment, []).append(pin)
    ids = ids_by_segment(liveness)
    found = []
    segments = counting(inspection.segments)
    stays: set[str] = set()
    for report in segments:
        tally = liveness.segments.get(report.name, Tally())
        mine = by_segment.get(report.name, [])
        older = sorted(stays & liveness.refers.get(report.name, set()))
        kept_by = MESSAGES if mine else OLDER if older else NEWEST if report is segments[-1] else NOTHING
        if mine or older:
            stays.add(report.name)
        messages, outcomes, _ = ids.get(report.name, (0, 0, 0))
        found.append(
            {
                **segment_json(report),
                **tally.to_json(),
                "dead_record_bytes": report.end - tally.live_record_bytes,
                "kept_by": kept_by,
                "older": older,
                "ids_to_copy": messages,
                "outcomes_to_copy": outcomes,
                "pins": [{**facts(pin, segment=""), "name": told_name(pin.destination)} for pin in mine],
            }
        )
    return found


def _destinations_json(liveness: Liveness, pins: list[Pin]) -> list[dict[str, Any]]:
    by_destination: dict[str, list[Pin]] = {}
    for pin in pins:
        by_destination.setdefault(pin.destination, []).append(pin)
    return [
        {
            "destination": name,
            "name": told_name(name),
            **tally.to_json(),
            "dead_record_bytes": tally.record_bytes - tally.live_record_bytes,
            "remembered_ids": len(liveness.duplicates.get(name, ())),
            "segments": [pin.segment for pin in by_destination.get(name, [])],
            "oldest_seq": min((pin.oldest_seq for pin in by_destination.get(name, [])), default=None),
        }
        for name, tally in sorted(liveness.destinations.items())
    ]


def _print_checkpoint(newest: CheckpointReport | None, behind_bytes: int) -> None:
    if newest is None:
        click.echo("no checkpoint: a broker that starts without a slave reads the whole journal")
        return
    age = duration_text(max(0, SystemClock().wall_ms() - newest.written_wall_ms) / 1000)
    click.echo(
        f"newest checkpoint: {size_text(newest.file_bytes)}, {age} old, at {newest.place}; a start reads "
        f"{size_text(behind_bytes)} behind it"
    )


def _print_version(version: int | None, segments: list[dict[str, Any]]) -> None:
    if version is not None:
        counts = Counter(each["version"] for each in segments if each["version"])
        told = ", ".join(f"{counts[each]:,} of version {each}" for each in sorted(counts))
        click.echo(f"store of version {version}; segments: {told or 'none'}")


def _print_segments(segments: list[dict[str, Any]]) -> None:
    print_table(
        ("segment", "state", "bytes", "live bytes", "dead bytes", "messages", "live", "kept by", "copied when it goes"),
        [
            (
                each["name"],
                each["state"],
                each["bytes"],
                each["live_record_bytes"],
                each["dead_record_bytes"],
                each["messages"],
                each["live"],
                _kept_text(each),
                _ids_text(each),
            )
            for each in segments
        ],
    )


def _kept_text(segment: dict[str, Any]) -> str:
    if segment["kept_by"] != MESSAGES:
        return _KEPT[segment["kept_by"]]
    pins = segment["pins"]
    text = ", ".join(f"{pin['messages']:,} of {pin['name']} (oldest {pin['oldest_seq']})" for pin in pins[:PINS_SHOWN])
    return text + (f" and {len(pins) - PINS_SHOWN:,} more destinations" if len(pins) > PINS_SHOWN else "")


def _ids_text(segment: dict[str, Any]) -> str:
    counts = ((segment["ids_to_copy"], "ids"), (segment["outcomes_to_copy"], "outcomes"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def _print_destinations(destinations: list[dict[str, Any]]) -> None:
    counts = ("messages", "live", "dead", "live_record_bytes", "dead_record_bytes", *_LEFT)
    names = (*counts[:3], "live bytes", "dead bytes", *REASONS)
    print_table(
        ("destination", *names, "segments kept", "oldest"),
        [
            (
                each["name"],
                *(each[count] for count in counts),
                len(each["segments"]),
                each["segments"][0] if each["segments"] else "",
            )
            for each in destinations
        ],
    )
