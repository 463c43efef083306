"""Recovery: a new master determines with `seal` how much of each old segment counts (safety argument, rules 3 and 6).
`amq.journal.follower` then reads the part that was not read before. Neither ever changes an old segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from amq.core.errors import CorruptError, StoreError
from amq.journal.decoder import raw_records
from amq.journal.format import (
    BATCH_BYTES,
    HAS_TRIM_MARK,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    crc32,
    decode_batch_header,
    segment_key,
    segment_name,
)
from amq.journal.live import Segment
from amq.journal.records import PREVIOUS, TRIMMED, Previous, Trimmed
from amq.journal.segment import check_size, list_segments, read_batches, read_header, read_segment
from amq.store.segment_log import Held, Reader, SegmentLog

_PEEK_BYTES = 32  # enough of a batch for its first record, if that is `Previous`


def _unsigned() -> None:
    """Nobody waits for a sign of life."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The part of the journal that a follower has read, and that `seal` need not read again.

    ends      segment → where it ends, of those that were read to their end
    trimmed   which segments count no more
    name      the segment that is being read, "" = none; `offset` bytes of it are read, up to batch `number`
    """

    ends: Mapping[str, int] = field(default_factory=dict)
    trimmed: Trimmed = field(default_factory=Trimmed)
    name: str = ""
    offset: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a follower at the end of the journal.

    segments     those that count, oldest first; a crash may have left some that are trimmed
    trimmed      which segments count no more
    unused       names of segments that count for nothing: prepared and never begun, or made by a deposed master
    store_uuid   None = empty store
    read_bytes   of batches, by the follower in all; of these `tail_bytes` when the journal was sealed
    """

    segments: list[Segment]
    unused: list[str]
    trimmed: Trimmed
    store_uuid: bytes | None
    records: int
    read_bytes: int
    tail_bytes: int = 0


def seal(
    log: SegmentLog,
    last_epoch: int,
    known: Mapping[str, int],
    followed: Followed | None = None,
    sign: Callable[[], None] = _unsigned,
) -> dict[str, int]:
    """Sealed length of every segment in `log`: {name: bytes that count}, 0 for a segment that was never begun.

    `known` are the lengths that epoch `last_epoch` sealed when it began. They stand, whatever was written to those
    segments since. Their names stay until a mark says that they were trimmed: the reader of all marks judges whether a
    segment may be gone. Segments of `last_epoch` are measured, as far as `followed` does not know them; a segment that
    has a successor never changes. Any other segment was made by a deposed master after it had been sealed out: nothing
    in it was confirmed, it counts 0. `sign()` is called between two segments. Raises CorruptError, StoreError, OSError.
    """
    followed = followed or Followed()
    names = list_segments(log, fresh=True)
    sealed = dict(known)
    trimmed = followed.trimmed
    successor, successor_says = (0, 0), None
    begun = False  # a segment behind this one: only then does what was followed end where the follower left it
    for name in reversed(names):
        sign()
        if name in known:
            continue
        epoch, number = segment_key(name)
        if epoch > last_epoch:
            raise StoreError(
                f"{log.place(name)} is of epoch {epoch}, but the newest epoch file is of {last_epoch}: "
                "epochs/ is missing or older than journal/; restore both from the same moment",
                code="STORE_INCOMPLETE",
            )
        if epoch < last_epoch:
            if read_header(log.place(name), read_segment(log, name, 1 << 20)) is not None:
                _warn("segment of a deposed master: it was made after the seal and counts nothing", segment=name)
            sealed[name] = 0
            continue
        # Where the successor is gone a mark says where this one ends, or this one is trimmed too: a crash can undo one
        # unlink and keep another.
        end = successor_says if (epoch, number + 1) == successor else trimmed.kept.get((epoch, number))
        told = followed.ends.get(name)
        if begun and told is not None and end in (None, told):
            sealed[name] = told
            _check_length(log.place(name), log.size(name), told)
            continue
        place = (followed.offset, followed.number) if name == followed.name else (HEADER_BYTES, 0)
        found = _measure(log, name, end, place)
        sealed[name] = found.end
        begun = begun or found.end > 0
        if found.trimmed.epoch:
            trimmed = trimmed.newest(found.trimmed)
        successor, successor_says = (epoch, number), found.previous_end
    present = set(names)
    # Each got its durable name before the next was made, also those that were never begun.
    keys = [segment_key(name) for name in names]
    check_complete(log, [key for key in keys if key[0] == last_epoch], trimmed)
    for name in known:
        if name not in present and (not known[name] or segment_key(name) in trimmed):
            del sealed[name]
    return sealed


def _warn(event: str, **facts: object) -> None:
    import structlog  # programs that only read a store do without it

    structlog.get_logger("amq.journal").warning(event, **facts)


def newest_mark(log: SegmentLog, names: Iterable[str], epoch: int) -> Trimmed:
    """The newest readable trim mark of `epoch`; `names` are segments, oldest first. Raises OSError."""
    for name in reversed([name for name in names if segment_key(name)[0] == epoch]):
        try:
            found = _measure(log, name, None).trimmed
        except StoreError:
            continue  # the reader of the segment reports its damage
        if found.through > (0, 0):
            return found
    return Trimmed()


def lock_segments(log: SegmentLog, sign: Callable[[], None] = _unsigned) -> list[Held]:
    """Hold every segment in `log`, until the caller closes them: what a killed process of this host left in memory must
    be durable before it is measured. `sign()` is called between two.
    """
    log.settle()
    held: list[Held] = []
    try:
        for name in list_segments(log, fresh=True):
            sign()
            segment = log.hold(name)
            if segment is None:
                _warn("an old segment is still locked by another broker", segment=name)
            else:
                held.append(segment)
    except BaseException:
        for segment in held:
            segment.close()
        raise
    return held


@dataclass(frozen=True, slots=True)
class _Measured:
    end: int
    previous_end: int | None
    trimmed: Trimmed


def _measure(log: SegmentLog, name: str, end: int | None, begun: tuple[int, int] = (HEADER_BYTES, 0)) -> _Measured:
    """How far a segment counts, and its statements on the segment before it and on trimmed ones. It is known up
    to `begun` = (offset, number of the batch before).

    If the next segment gives the end, only the batch headers and the records for this result are read and verified: the
    reader of the records verifies the rest. Damage is reported where it is: a mark that it hides would make other
    segments seem missing.
    """
    offset, number = begun
    with log.open(name) as segment:
        path = segment.place
        if end is not None:
            return _summarise(path, offset, _walk(segment, offset, end))
        segment.refresh()  # bytes that a master of this host could not sync may be in memory alone
        base = offset if offset > HEADER_BYTES else 0
        size = segment.size()
        _check_length(path, size, base)
        check_size(path, size)
        data = segment.read(base, size - base)
        header = read_header(path, segment.read(0, HEADER_BYTES) if base else data)
    if header is None and base:
        raise CorruptError(path, 0, "segment header is gone")
    batches = [] if header is None else read_batches(path, data, header, None, offset, number, base)
    parts = ((batch.offset, batch.end, batch.header.flags, batch.payload) for batch in batches)
    return _summarise(path, offset, parts)


def _check_length(path: str, size: int, read: int) -> None:
    if size < read:
        raise CorruptError(path, size, f"file is shorter than the {read} bytes that were read of it: it was truncated")


def _walk(segment: Reader, offset: int, end: int) -> Iterator[tuple[int, int, int, bytes]]:
    """(offset, end, flags, payload or its beginning) of each batch of a complete segment, by its headers."""
    path = segment.place
    header = read_header(path, segment.read(0, HEADER_BYTES))
    while offset < end:
        piece = segment.read(offset, min(BATCH_BYTES + _PEEK_BYTES, end - offset))
        batch = decode_batch_header(piece, 0, header.salt) if header is not None else None
        if header is None or batch is None or offset + BATCH_BYTES + batch.payload_bytes > end:
            raise CorruptError(path, offset, "no valid batch header")
        payload = piece[BATCH_BYTES:]
        if batch.flags & HAS_TRIM_MARK:
            payload = segment.read(offset + BATCH_BYTES, batch.payload_bytes)
            if crc32(payload, header.salt) != batch.payload_crc:
                raise CorruptError(path, offset, f"batch {batch.number} fails its checksum")
        yield offset, offset + BATCH_BYTES + batch.payload_bytes, batch.flags, payload
        offset += BATCH_BYTES + batch.payload_bytes


def _summarise(path: str, begun: int, batches: Iterable[tuple[int, int, int, bytes | memoryview]]) -> _Measured:
    previous = None
    last = begun if begun > HEADER_BYTES else 0
    trimmed = Trimmed()
    for offset, batch_end, flags, payload in batches:
        try:
            if offset == HEADER_BYTES:
                size, crc, kind = RECORD.unpack_from(payload)
                body = payload[RECORD_BYTES : RECORD_BYTES + size]
                if kind != PREVIOUS or crc32(body, kind) != crc:
                    raise CorruptError(path, offset, "segment does not begin with what came before it")
                previous = Previous.decode(bytes(body)).end
            if flags & HAS_TRIM_MARK:
                for kind, body in raw_records(payload):
                    if kind == TRIMMED:
                        trimmed = trimmed.newest(Trimmed.decode(body))
        except struct.error as error:
            raise CorruptError(path, offset, f"batch holds no whole records: {error}") from error
        last = batch_end
    return _Measured(last, previous, trimmed)


def check_complete(log: SegmentLog, found: list[tuple[int, int]], trimmed: Trimmed) -> None:
    """No segment is missing but trimmed ones."""
    for epoch, number in missing_before(found, trimmed):
        path = log.place(segment_name(epoch, number))
        raise CorruptError(path, 0, "the segment before it is missing: somebody removed it from the store")


def missing_before(found: Iterable[tuple[int, int]], trimmed: Trimmed) -> Iterator[tuple[int, int]]:
    """Those of the segments `found`, sorted, before which one is missing. Numbers run from 1 in each epoch."""
    before = (0, 0)
    for epoch, number in found:
        last = (epoch, before[1] if before[0] == epoch else 0)
        before = (epoch, number)
        kept = any(last < key < before for key in trimmed.kept)
        if number > last[1] + 1 and (kept or (epoch, number - 1) not in trimmed):
            yield before
