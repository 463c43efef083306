"""What compaction would do to a journal: `amq journal compact --dry-run`. Changes nothing; the broker compacts by
itself, see docs/journal-format.md "Giving space back".

Invariant: segments go oldest first and without a gap, because an acknowledgement must not go before the message that
it speaks of. So a segment in which nothing lives stays as long as one before it does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amq.journal.compaction import headroom_bytes, is_due
from amq.journal.inspect import SEALED, SegmentReport
from amq.journal.liveness import Liveness, Tally

ID_BYTES = 20  # what a remembered id takes beside its characters
FREE, COPY, KEEP = "free", "copy", "keep"


@dataclass(frozen=True, slots=True)
class Step:
    """One segment, oldest first.

    action          free (nothing lives in it, and nothing before it stays), copy (then free), keep
    bytes           that count in it; file_bytes are freed when it goes
    copy_messages, copy_bytes   its live messages, which are to be copied forward
    copy_ids, copy_id_bytes     remembered ids and outcomes that stand in it, which are to be written again
    """

    segment: str
    action: str
    bytes: int
    file_bytes: int
    copy_messages: int
    copy_bytes: int
    copy_ids: int
    copy_id_bytes: int

    @property
    def freed_bytes(self) -> int:
        """Of the file system, once it is gone."""
        return 0 if self.action == KEEP else self.file_bytes - self.copy_bytes - self.copy_id_bytes


def ids_by_segment(liveness: Liveness) -> dict[str, tuple[int, int, int]]:
    """{segment: (remembered message ids, remembered outcomes, bytes of both when they are written again)}."""
    found: dict[str, tuple[int, int, int]] = {}
    for ids in (*liveness.duplicates.values(), liveness.outcomes):
        for id, (_, segment) in ids.items():
            messages, outcomes, size = found.get(segment, (0, 0, 0))
            is_outcome = ids is liveness.outcomes
            found[segment] = (messages + (not is_outcome), outcomes + is_outcome, size + len(id) + ID_BYTES)
    return found


def counting(reports: Iterable[SegmentReport]) -> list[SegmentReport]:
    """The segments in which something counts, oldest first; not one that was only made ahead of need."""
    return [report for report in reports if (report.state == SEALED and report.end) or report.batches]


def plan(reports: Iterable[SegmentReport], liveness: Liveness, segment_size_bytes: int) -> list[Step]:
    """What the broker would do with each segment, if it had nothing else to do. The newest one always stays."""
    segments = counting(reports)
    ids = ids_by_segment(liveness)
    tallies = {report.name: liveness.segments.get(report.name, Tally()) for report in segments}
    lives = {name: tally.live_record_bytes + ids.get(name, (0, 0, 0))[2] for name, tally in tallies.items()}
    live_bytes = sum(lives.values())
    # A copy becomes part of the newest segment, or of one behind it.
    closed_live = live_bytes - lives[segments[-1].name] if segments else 0
    stored_bytes = sum(report.end if report is segments[-1] else report.file_bytes for report in segments)
    steps: list[Step] = []
    going = True
    for report in segments:
        tally = tallies[report.name]
        messages, outcomes, id_bytes = ids.get(report.name, (0, 0, 0))
        live_here = lives[report.name]
        headroom = headroom_bytes(live_bytes, stored_bytes, live_here, segment_size_bytes)
        going = going and report is not segments[-1] and (not tally.live or is_due(closed_live, headroom))
        action = (COPY if tally.live else FREE) if going else KEEP
        if going:
            stored_bytes += live_here - report.file_bytes
            closed_live -= live_here
        steps.append(
            Step(
                report.name, action, report.end, report.file_bytes, tally.live, tally.live_record_bytes,
                messages + outcomes, id_bytes,
            )
        )  # fmt: skip
    return steps
