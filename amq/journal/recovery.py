"""What a new master does with the journal it finds: seal it, then replay it.

`seal` says how much of each old segment counts (safety argument, rules 3 and 6); `replay` gives every record inside those
lengths to `apply`, oldest first. Nothing is ever changed in an old segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from amq.errors import CorruptError, StoreError
from amq.journal.format import parse_segment_name
from amq.journal.records import PREVIOUS, TRIMMED, Decoder, Previous, Record, Trimmed, raw_records
from amq.journal.segment import list_segments, read_batches, read_file, read_header
from amq.vfs import Vfs

JOURNAL_DIRECTORY = "journal"


@dataclass(slots=True)
class Segment:
    """A segment that is kept, and what in it is still needed.

    end     bytes that count, header included
    live    messages in it that have not left their queue
    """

    name: str
    epoch: int
    number: int
    end: int
    live: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.epoch, self.number


@dataclass(frozen=True, slots=True)
class Recovered:
    """What replay found: every segment that is there, oldest first; the (epoch, number) up to which they are trimmed, a
    crash may have left some of those; the store's uuid (None = empty store); how much was read."""

    segments: list[Segment]
    trimmed: tuple[int, int]
    store_uuid: bytes | None
    records: int
    read_bytes: int


def seal(vfs: Vfs, store: str, last_epoch: int, known: Mapping[str, int]) -> dict[str, int]:
    """Sealed length of every segment in the store: {name: bytes that count}, 0 for a segment that was never begun.

    `known` are lengths that epoch `last_epoch` sealed when it began: they stand, whatever was written to those files
    since. Segments of `last_epoch` are measured. Any other segment was made by a deposed master after it had been sealed
    out: nothing in it was confirmed, it counts 0. Raises CorruptError, also where a segment is gone that nobody trimmed,
    StoreError, OSError.
    """
    directory = os.path.join(store, JOURNAL_DIRECTORY)
    names = list_segments(vfs, directory)
    sealed = dict(known)
    trimmed = (0, 0)
    successor_epoch, successor_says = 0, None
    for name in reversed(names):
        if name in known:
            continue
        epoch, _ = parse_segment_name(name) or (0, 0)
        if epoch != last_epoch:
            sealed[name] = 0
            continue
        end = successor_says if epoch == successor_epoch else None
        found = _measure(vfs, os.path.join(directory, name), end)
        sealed[name] = found.end
        trimmed = max(trimmed, found.trimmed)
        successor_epoch, successor_says = epoch, found.previous_end
    present = set(names)
    for name in known:
        if name not in present:
            if (parse_segment_name(name) or (0, 0)) > trimmed and known[name]:
                raise CorruptError(os.path.join(directory, name), 0, "segment is missing: somebody removed it")
            del sealed[name]
    return sealed


@dataclass(frozen=True, slots=True)
class _Measured:
    end: int
    previous_end: int | None
    trimmed: tuple[int, int]


def _measure(vfs: Vfs, path: str, end: int | None) -> _Measured:
    """How far a segment counts, what its first record says of the one before it, what it says was trimmed."""
    data = read_file(vfs, path)
    header = read_header(path, data)
    previous = None
    last = 0
    trimmed = (0, 0)
    if header is not None:
        for batch in read_batches(path, data, header, end):
            for kind, body in raw_records(batch.payload):
                if previous is None:
                    if kind != PREVIOUS:
                        raise CorruptError(path, batch.offset, "segment does not begin with what came before it")
                    previous = Previous.decode(body).end
                elif kind == TRIMMED:
                    mark = Trimmed.decode(body)
                    trimmed = max(trimmed, (mark.epoch, mark.number))
            last = batch.end
    return _Measured(last, previous, trimmed)


def replay(
    vfs: Vfs,
    store: str,
    sealed: Mapping[str, int],
    apply: Callable[[Record, Segment], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Recovered:
    """Give every record of the sealed journal to `apply(record, segment)`, oldest first.

    `progress(bytes read, bytes in all)` is called after each segment. A segment that `sealed` names and that is gone must
    have been trimmed. Raises CorruptError, NewerFormatError, StoreError, OSError.
    """
    directory = os.path.join(store, JOURNAL_DIRECTORY)
    present = [name for name in list_segments(vfs, directory) if sealed.get(name)]
    total = sum(sealed[name] for name in present)
    segments: list[Segment] = []
    trimmed = (0, 0)
    uuid: bytes | None = None
    records = done = 0
    for name in present:
        epoch, number = parse_segment_name(name) or (0, 0)
        path = os.path.join(directory, name)
        data = read_file(vfs, path, sealed[name])
        header = read_header(path, data)
        if header is None:
            raise CorruptError(path, 0, "segment header is gone")
        if uuid not in (None, header.store_uuid):
            raise StoreError(f"{path} belongs to another store: move it out", code="STORE_FOREIGN_FILE")
        uuid = header.store_uuid
        segment = Segment(name, epoch, number, sealed[name])
        segments.append(segment)
        decoder = Decoder(path)
        for batch in read_batches(path, data, header, sealed[name]):
            for record in decoder.decode(batch.payload, batch.offset):
                if isinstance(record, Trimmed):
                    trimmed = max(trimmed, (record.epoch, record.number))
                apply(record, segment)
                records += 1
        done += sealed[name]
        progress(done, total)
    _check_complete(directory, segments, trimmed)
    return Recovered(segments, trimmed, uuid, records, done)


def _check_complete(directory: str, found: list[Segment], trimmed: tuple[int, int]) -> None:
    """No segment is missing after the trimmed ones: numbers run from 1 in each epoch."""
    expected: dict[int, int] = {}
    for segment in found:
        if segment.key <= trimmed:
            expected[segment.epoch] = segment.number + 1
            continue
        first = trimmed[1] + 1 if trimmed[0] == segment.epoch else 1
        if segment.number != expected.get(segment.epoch, first):
            path = os.path.join(directory, segment.name)
            raise CorruptError(path, 0, "the segment before it is missing: somebody removed it from the store")
        expected[segment.epoch] = segment.number + 1
