"""The journal's knowledge of segments that a replicated store needs: see `amq.store.segment_log.SegmentFormat`.

Invariant: a position that it gives is the end of a whole batch. So after a crash a copy has what it said before.
"""

from __future__ import annotations

from functools import lru_cache

from amq.core.errors import CorruptError
from amq.journal.format import (
    BATCH_BYTES,
    HEADER_BYTES,
    decode_batch_header,
    parse_segment_name,
    segment_name,
)
from amq.journal.segment import check_size, later_batch, read_batches, read_header
from amq.store.segment_log import Reader

_header = lru_cache(4)(read_header)  # of the segments that grow


class JournalFormat:
    """See `amq.store.segment_log.SegmentFormat`."""

    head_bytes = HEADER_BYTES
    key = staticmethod(parse_segment_name)
    name = staticmethod(segment_name)

    @staticmethod
    def whole(segment: Reader, torn: tuple[int, int] = (0, 0)) -> int:
        size = segment.size()
        check_size(segment.place, size)
        data = segment.read(0, size)
        header = read_header(segment.place, data)
        end = number = 0
        try:
            for batch in read_batches(segment.place, data, header, None) if header is not None else ():
                end, number = batch.end, batch.header.number
        except CorruptError:
            assert header is not None
            start, stop = torn
            if not start <= (end or HEADER_BYTES) < stop or later_batch(data, stop, header, number):
                raise
        return end

    @staticmethod
    def end_within(segment: Reader, start: int, end: int, size: int) -> int:
        header = _header(segment.place, segment.read(0, HEADER_BYTES))
        at, found = start or HEADER_BYTES, 0
        while at < end:
            head = decode_batch_header(segment.read(at, BATCH_BYTES), 0, header.salt) if header is not None else None
            if head is None:
                raise CorruptError(segment.place, at, "no valid batch header")
            at += BATCH_BYTES + head.payload_bytes
            if found and at > start + size:
                break
            found = at
        return found
