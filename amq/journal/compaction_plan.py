"""The steps that compaction would take on a journal: `amq journal compact --dry-run`. It changes nothing; the broker
compacts by itself, see docs/journal-format.md "Giving space back".

Invariant: an acknowledgement must not go before the message that it speaks of. So a segment in which nothing lives
stays as long as an older one does of whose messages it says that they left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amq.journal.compaction import doomed, headroom_bytes, is_due, needed_bytes, size_of, source
from amq.journal.format import segment_key
from amq.journal.inspect import SEALED, SegmentReport
from amq.journal.live import Segment
from amq.journal.liveness import Liveness, Tally

ID_BYTES = 20  # of a remembered id, beside its characters
FREE, COPY, KEEP = "free", "copy", "keep"


@dataclass(frozen=True, slots=True)
class Step:
    """One segment, oldest first.

    action          free (nothing lives in it, and nothing that it speaks of stays), copy (then free), keep
    bytes           that count in it; file_bytes are freed when it goes
    copy_messages, copy_bytes   its live messages, which are to be copied forward
    copy_ids, copy_id_bytes     remembered ids and outcomes that are in it, which are to be written again
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
    """{segment: (remembered message ids, remembered outcomes, prepared transactions and markers, bytes of all when they
    are written again)}."""
    found: dict[str, tuple[int, int, int]] = {}
    for ids in (*liveness.duplicates.values(), liveness.outcomes):
        for id, (_, segment) in ids.items():
            messages, outcomes, size = found.get(segment, (0, 0, 0))
            is_outcome = ids is liveness.outcomes
            found[segment] = (messages + (not is_outcome), outcomes + is_outcome, size + len(id) + ID_BYTES)
    others = [(prepared.record_bytes(), segment) for prepared, segment in liveness.prepared.values()]
    others += [(len(owner) + ID_BYTES, segment) for owner, (_, segment) in liveness.markers.items()]
    others += [(record.record_bytes(), segment) for record, segment in liveness.subscriptions.values()]
    others += [(liveness.placed[0].record_bytes(), liveness.placed[1])] if liveness.placed is not None else []
    others += [(parcel.record_bytes(), segment) for parcel, segment in liveness.parcels.values()]
    for more, segment in others:
        messages, outcomes, size = found.get(segment, (0, 0, 0))
        found[segment] = (messages, outcomes + 1, size + more)
    return found


def counting(reports: Iterable[SegmentReport]) -> list[SegmentReport]:
    """The segments in which something counts, oldest first; not one that was only made ahead of need."""
    return [report for report in reports if (report.state == SEALED and report.end) or report.batches]


def plan(reports: Iterable[SegmentReport], liveness: Liveness, segment_size_bytes: int) -> list[Step]:
    """The step for each segment, if the broker had nothing else to do. The newest segment always stays."""
    segments = counting(reports)
    ids = ids_by_segment(liveness)
    kept = [_segment(report, liveness, ids) for report in segments]
    for newest in kept[-1:]:
        newest.file_bytes = 0  # the space that is set aside is no garbage
    live_bytes = sum(map(needed_bytes, kept))
    stored_bytes = sum(map(size_of, kept))
    actions: dict[str, str] = {}
    del kept[-1:]
    closed_live = sum(map(needed_bytes, kept))  # a copy becomes part of the newest segment, or of one behind it
    while True:
        for segment in doomed(kept):
            actions.setdefault(segment.name, FREE)
            stored_bytes += segment.id_bytes - size_of(segment)
            closed_live -= segment.id_bytes
            kept.remove(segment)
        following = source(kept, ())
        if following is None:
            break
        headroom = headroom_bytes(live_bytes, stored_bytes, needed_bytes(following), segment_size_bytes)
        if not is_due(closed_live, headroom):
            break
        actions[following.name] = COPY
        stored_bytes += following.live_bytes
        closed_live -= following.live_bytes
        following.live = following.live_bytes = 0
    steps: list[Step] = []
    for report in segments:
        tally = liveness.segments.get(report.name, Tally())
        messages, outcomes, id_bytes = ids.get(report.name, (0, 0, 0))
        steps.append(
            Step(
                report.name,
                actions.get(report.name, KEEP),
                report.end,
                report.file_bytes,
                tally.live,
                tally.live_record_bytes,
                messages + outcomes,
                id_bytes,
            )
        )
    return steps


def _segment(report: SegmentReport, liveness: Liveness, ids: dict[str, tuple[int, int, int]]) -> Segment:
    """The segment as a broker counts it."""
    tally = liveness.segments.get(report.name, Tally())
    refers = {epoch << 32 | number for epoch, number in map(segment_key, liveness.refers.get(report.name, ()))}
    return Segment(
        report.name,
        report.epoch,
        report.number,
        report.end,
        tally.live,
        tally.live_record_bytes,
        ids.get(report.name, (0, 0, 0))[2],
        report.file_bytes,
        refers,
    )
