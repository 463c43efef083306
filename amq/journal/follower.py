"""Follower: reads a journal forward and gives every record in it to `apply`, in order.

A slave follows the journal while the master writes it (`follow`); the next master reads the rest, up to the sealed
lengths (`finish`). So a takeover reads the tail, not the journal. A start with no slave before it begins where a
checkpoint leaves off, or at the first segment.

Invariants:
- `follow` gives out only what is durable and will stay: a batch counts when the one behind it was begun, for only one
  at a time is ever unsynced.
- A batch that was read can still turn out to be no part of the journal, if it was written behind a seal that the
  follower had not seen yet. So the follower compares whenever sealed lengths are new; DivergedError means: forget all,
  begin anew.
- A record may be given again after an error, or where a checkpoint has its effect already: `apply` must not mind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from amq.core.errors import AmqError, CorruptError, StoreError
from amq.journal.decoder import Decoder
from amq.journal.format import BATCH_BYTES, HEADER_BYTES, SegmentHeader, decode_batch_header, segment_key, segment_name
from amq.journal.live import Segment
from amq.journal.records import Previous, Record, Trimmed
from amq.journal.recovery import Followed, Recovered, check_complete
from amq.journal.segment import batch_at, list_segments, read_header
from amq.store.segment_log import Reader, SegmentLog

PIECE_BYTES = 4 << 20  # read at once
LOOK_BYTES = 64 << 10  # read to see whether there is anything new
_PREVIOUS_BYTES = len(Previous(0).encode({}))

Apply = Callable[[Record, Segment], None]


class DivergedError(AmqError):
    """The bytes that were followed do not count, or are gone: begin anew with a new state. Never shown to users."""

    code = "FOLLOWER_DIVERGED"


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two batches.

    offset         bytes into the segment
    batch_offset   where the batch before it begins
    batch          number of the batch before it
    salt           of the segment: no other one has it
    destinations   number → name, as the segment defines them before `offset`
    """

    epoch: int
    number: int
    offset: int
    batch_offset: int
    batch: int
    salt: int
    destinations: Mapping[int, str]

    @property
    def segment_name(self) -> str:
        return segment_name(self.epoch, self.number)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin but at the first byte. `segments` = those up to `position` that were there, with their ends;
    `made` = others that the state refers to already."""

    position: Position
    trimmed: Trimmed
    store_uuid: bytes
    segments: Mapping[str, Segment]
    made: Mapping[str, Segment] = field(default_factory=dict)


class _Tail:
    """The segment that is being read, up to `offset`, behind batch `number` (0 = none of it was read)."""

    __slots__ = ("decoder", "header", "number", "path", "segment", "successor")

    def __init__(self, path: str, segment: Segment, header: SegmentHeader) -> None:
        self.path = path
        self.segment = segment
        self.header = header
        self.number = 0
        self.successor: tuple[_Tail, int] | None = None  # the segment behind it, and where this one ends
        self.decoder = Decoder(path, bodies=False)

    @property
    def offset(self) -> int:
        return self.segment.end


class Follower:
    """Reads the journal in `log`. `segments` = those read or being read, by name; their `end` is how far."""

    def __init__(self, log: SegmentLog, apply: Apply, start: Start | None = None) -> None:
        """Begin at `start`, if given: raises DivergedError where the journal has no such place."""
        self._log = log
        self._apply = apply
        self.segments: dict[str, Segment] = {}
        self.trimmed = Trimmed()
        self.store_uuid: bytes | None = None
        self.records = 0
        self.read_bytes = 0
        self.calls = 0  # of the store, begun and ended while `finish` reads: odd = one is under way
        self._made: Mapping[str, Segment] = {}
        self._tail: _Tail | None = None
        self._after = (0, 0)  # key of the segment that was read last
        self._compared: Mapping[str, int] | None = None
        self._trusted: set[str] = set()  # segments of which a checkpoint says that they count
        self._absent: set[tuple[int, int]] = set()  # keys of those that were read and are not sealed
        # The segment in which the checkpoint ends, if it is not there. It was trimmed, or a network client does not
        # show it yet. Only a trim mark proves the first: `finish` asks for one.
        self._passed_over = ""
        if start is not None:
            self._begin_at(start)

    def _begin_at(self, start: Start) -> None:
        position = start.position
        self.segments = dict(start.segments)
        self._trusted = set(start.segments)
        self.trimmed, self.store_uuid, self._made = start.trimmed, start.store_uuid, start.made
        path = self._log.place(position.segment_name)
        try:
            header = self._header(position.segment_name)
        except FileNotFoundError:  # trimmed: what is read begins behind it
            self._after = (position.epoch, position.number)
            self._passed_over = position.segment_name
            if not any(segment_key(name) > self._after for name in self._list()):
                raise DivergedError(f"{path} is missing, and so is all that should follow it") from None
            return
        self._after = (position.epoch, position.number - 1)
        same = header is not None and (header.salt, header.store_uuid) == (position.salt, start.store_uuid)
        if header is None or not same or not self._proved(header, position):
            raise DivergedError(f"{path} does not have what the checkpoint speaks of")
        self._tail = _Tail(path, self.segments[position.segment_name], header)
        self._tail.number = position.batch
        self._tail.decoder.names.update(position.destinations)

    def _proved(self, header: SegmentHeader, position: Position) -> bool:
        """Does the batch before `position` stand there? In a copy of a store the segment may be older than the
        checkpoint.
        """
        with self._log.open(position.segment_name) as segment:
            size = position.offset - position.batch_offset
            data = memoryview(segment.read(position.batch_offset, size))
        head, _ = batch_at(data, 0, header, 0, len(data))
        return head is not None and head.number == position.batch and BATCH_BYTES + head.payload_bytes == size

    def _list(self) -> list[str]:
        with self._call():
            return list_segments(self._log)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A call into the store, which can hang: another thread sees that by `calls`."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls += 1

    @property
    def followed(self) -> Followed:
        """The part of the journal that `seal` need not read again."""
        tail = self._tail
        ends = {name: segment.end for name, segment in self.segments.items() if name != self._passed_over}
        if tail is None:
            return Followed(ends, self.trimmed)
        del ends[tail.segment.name]
        return Followed(ends, self.trimmed, tail.segment.name, tail.offset, tail.number)

    @property
    def place(self) -> str:
        """How far it has come, for people: segment and offset."""
        tail = self._tail
        return f"{tail.segment.name}:{tail.offset}" if tail is not None else ""

    # -- while the master writes --------------------------------------------------------------------------------------

    def follow(self, epoch: int, sealed: Mapping[str, int], budget_bytes: int, listing: bool = True) -> bool:
        """Read on, about `budget_bytes`; returns whether there may be more right now.

        `epoch` is the newest one, whose master may be writing; `sealed` the lengths that it sealed. Without `listing`
        a gap behind the segment that is being read is not looked for: the next call with it will find it. Raises
        DivergedError; also CorruptError, StoreError and OSError, which may pass: while a master writes, a network file
        system can show a file that is no longer or not yet what it will be.
        """
        self.compare(sealed, epoch)
        try:
            while budget_bytes > 0:
                if self._tail is None and not self._next(epoch, sealed):
                    return False
                tail = self._tail
                assert tail is not None
                if tail.segment.epoch > epoch:
                    return False  # a checkpoint can be seen before the epoch in which it was made
                end = sealed.get(tail.segment.name, None if tail.segment.epoch == epoch else 0)
                if end is not None:
                    tail.successor = None
                elif tail.successor is not None:
                    end = tail.successor[1]
                read = self._advance(tail, end, budget_bytes)
                budget_bytes -= read
                if end is not None and tail.offset >= end:
                    self._leave(tail)
                    if tail.successor is not None:
                        following, _ = tail.successor
                        if following.segment.number == tail.segment.number + 1:
                            following.number = tail.number
                        self._tail = self._enter(following)
                elif not read:
                    if end is None:  # only now: to look for the next segment costs a server as much as to read this one
                        tail.successor = self._successor(tail, listing)
                    if end is not None or tail.successor is None:
                        return False
        except FileNotFoundError as error:
            raise DivergedError(f"{error.filename} was trimmed before it was read") from error
        return True

    def compare(self, sealed: Mapping[str, int], epoch: int | None = None) -> None:
        """Is everything that was read inside the `sealed` lengths? `epoch` is being written, None = none is. Raises
        DivergedError.

        The first seal that is compared may say that the segment that was passed over is longer: it can have been
        trimmed since. A later seal does not name a segment that was trimmed before it.
        """
        if sealed is self._compared:
            return
        unread = [self._tail.segment.name if self._tail is not None else ""]
        if self._compared in (None, sealed):
            unread.append(self._passed_over)
        for name, segment in self.segments.items():
            end = sealed.get(name)
            if end is None:
                if segment.epoch != epoch and name not in self._trusted:
                    self._absent.add(segment.key)
                continue
            if segment.end > max(end, HEADER_BYTES) or (name not in unread and segment.end != end):
                raise DivergedError(f"{name} was read to {segment.end}, it counts to {end}")
        self._compared = sealed

    def _check_absent(self, epoch: int) -> None:
        """Segments that were read and are not sealed were trimmed: by a master before `epoch`, whose records come next.
        Else a deposed master had made them.
        """
        self._absent = {key for key in self._absent if key not in self.trimmed}
        wrong = [key for key in self._absent if key[0] < epoch]
        if wrong:
            raise DivergedError(f"{segment_name(*wrong[0])} was read, it does not count")

    def _next(self, epoch: int, sealed: Mapping[str, int]) -> bool:
        """Open the segment that comes next. False where there is none yet."""
        for name in self._list():
            key = segment_key(name)
            if key > self._after and (sealed.get(name) or key[0] == epoch):
                header = self._header(name)
                if header is None:
                    return False
                self._tail = self._enter(self._open(name, header))
                return True
        return False

    def _successor(self, tail: _Tail, listing: bool) -> tuple[_Tail, int] | None:
        """The segment after `tail`, and what that says of where `tail` ends; None where it was not begun."""
        key = (tail.segment.epoch, tail.segment.number + 1)
        name = segment_name(*key)
        path = self._log.place(name)
        # By its name and not from a listing, which a network client may remember for half a minute even where it asks
        # for each name anew (lookupcache=none). Where one behind it is listed it was trimmed; those of a later epoch
        # say nothing of it.
        try:
            segment = self._log.open(name)
        except FileNotFoundError:
            return self._behind_gap(tail) if listing else None
        with segment:
            data = segment.read(0, HEADER_BYTES + BATCH_BYTES + _PREVIOUS_BYTES)
        header = read_header(path, data[:HEADER_BYTES])
        if header is None or decode_batch_header(data, HEADER_BYTES, header.salt) is None:
            return None
        first = next(Decoder(path).decode(data[HEADER_BYTES + BATCH_BYTES :], HEADER_BYTES + BATCH_BYTES), None)
        if not isinstance(first, Previous):
            raise CorruptError(path, HEADER_BYTES, "segment does not begin with what came before it")
        return self._open(name, header), first.end

    def _behind_gap(self, tail: _Tail) -> tuple[_Tail, int] | None:
        """The next segment of the epoch after one that is not there, and where `tail` ends: its file was cut there."""
        epoch, number = tail.segment.key
        after = (key for key in map(segment_key, self._list()) if key[0] == epoch and key[1] > number)
        following = next(after, None)
        if following is None:
            return None
        if following[1] == number + 1:  # made since it was looked for: there is no gap, and `tail` may still grow
            return self._successor(tail, listing=False)
        name = segment_name(*following)
        header = self._header(name)
        if header is None:
            return None
        end = self.trimmed.kept.get(tail.segment.key)
        if not end:
            with self._log.open(tail.segment.name) as segment:  # asks the store, where `size` of the log may be old
                end = segment.size()
        return self._open(name, header), end

    # -- to the end ---------------------------------------------------------------------------------------------------

    def finish(self, sealed: Mapping[str, int], progress: Callable[[int, int], None]) -> Recovered:
        """Read what is left of the `sealed` journal. The follower is of no use afterwards.

        `progress(bytes read, bytes to read)` is called after each piece. A segment that `sealed` names and that is gone
        must have been trimmed. Raises DivergedError, CorruptError, NewerFormatError, StoreError, OSError.
        """
        self.compare(sealed)
        names = self._list()
        present = [name for name in names if sealed.get(name)]
        tail = self._tail
        if tail is not None and tail.segment.name not in present:
            self._leave(tail)
            tail = None
        left = [name for name in present if segment_key(name) > self._after]
        total = sum(sealed[name] for name in left) - HEADER_BYTES * len(left)
        if tail is not None:
            total -= tail.offset - HEADER_BYTES
        begun = self.read_bytes
        for name in left:
            if tail is None or tail.segment.name != name:
                header = self._header(name, sealed[name])
                if header is None:
                    raise CorruptError(self._log.place(name), 0, "segment header is gone")
                tail = self._enter(self._open(name, header))
            while tail.offset < sealed[name]:
                self._advance(tail, sealed[name], PIECE_BYTES)
                progress(self.read_bytes - begun, total)
        for name in sorted(sealed.keys() - set(names)):
            if sealed[name] and segment_key(name) not in self.trimmed:
                raise CorruptError(self._log.place(name), 0, "segment is missing: somebody removed it")
        partial = [segment for name, segment in self.segments.items() if segment.end != sealed.get(name, 0)]
        self._absent.update(segment.key for segment in partial if segment.name in self._trusted)
        self._check_absent(1 << 64)
        for name in present:
            if name not in self.segments:  # trimmed and not deleted yet, and forgotten
                if segment_key(name) not in self.trimmed:
                    raise DivergedError(f"{name} counts, and was not there when the next one was read")
                self.segments[name] = Segment(name, *segment_key(name), sealed[name])
        segments = [self.segments[name] for name in present]
        check_complete(self._log, [segment.key for segment in segments], self.trimmed)
        unused = [name for name in names if name in sealed and not sealed[name]]
        read = self.read_bytes
        return Recovered(segments, unused, self.trimmed, self.store_uuid, self.records, read, read - begun)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _header(self, name: str, size: int = HEADER_BYTES) -> SegmentHeader | None:
        """The header of a segment of which `size` bytes count; None where it was never begun."""
        with self._call(), self._log.open(name) as segment:
            data = segment.read(0, min(size, LOOK_BYTES))
        return read_header(self._log.place(name), data)

    def _open(self, name: str, header: SegmentHeader) -> _Tail:
        path = self._log.place(name)
        # A segment in which nothing counts may be all there was when the next master began, with a separate id.
        if self.store_uuid not in (None, header.store_uuid) and (self.records or self._trusted):
            raise StoreError(f"{path} belongs to another store: move it out", code="STORE_FOREIGN_FILE")
        self.store_uuid = header.store_uuid
        segment = self._made.get(name) or Segment(name, header.epoch, header.number, HEADER_BYTES)
        segment.end = HEADER_BYTES
        return _Tail(path, segment, header)

    def _enter(self, tail: _Tail) -> _Tail:
        """Its records come next."""
        self._check_absent(tail.segment.epoch)
        self.segments[tail.segment.name] = tail.segment
        return tail

    def _leave(self, tail: _Tail) -> None:
        """Leave a segment that is read to its end."""
        if tail.offset == HEADER_BYTES:  # it was never begun: no seal need name it
            del self.segments[tail.segment.name]
        self._after, self._tail = tail.segment.key, None

    def _advance(self, tail: _Tail, end: int | None, budget_bytes: int) -> int:
        """Read on in `tail`: to `end`, or where that is None as far as is proved durable. Returns how many bytes."""
        start, size = tail.offset, LOOK_BYTES if end is None else PIECE_BYTES
        with self._call():
            segment = self._log.open(tail.segment.name)
        with segment:
            while tail.offset - start < budget_bytes and (end is None or tail.offset < end):
                wanted = size if end is None else min(size, end - tail.offset)
                data = memoryview(self._read(segment, tail.offset, wanted))
                if end is not None and len(data) < wanted:
                    where = tail.offset + len(data)
                    why = f"file is shorter than its sealed length {end}: the rest is not here yet, or was cut off"
                    raise CorruptError(tail.path, where, why)
                before = tail.offset
                more = self._take(tail, data, end)
                if not more or (tail.offset == before and len(data) < wanted):
                    break
                if end is None and more > BATCH_BYTES:  # one batch: is it worth reading, was the one behind it begun?
                    behind = segment.read(tail.offset + more - BATCH_BYTES, BATCH_BYTES)
                    if decode_batch_header(behind, 0, tail.header.salt) is None:
                        break
                size = max(more, PIECE_BYTES)
        self.read_bytes += tail.offset - start
        return tail.offset - start

    def _read(self, segment: Reader, offset: int, size: int) -> bytes | bytearray:
        """`size` bytes, or what there is up to the end of the file, in calls of at most `PIECE_BYTES`."""
        if size <= PIECE_BYTES:
            with self._call():
                return segment.read(offset, size)
        data = bytearray()
        while len(data) < size:
            with self._call():
                piece = segment.read(offset + len(data), min(PIECE_BYTES, size - len(data)))
            if not piece:
                break
            data += piece
        return data

    def _take(self, tail: _Tail, data: memoryview, end: int | None) -> int:
        """Give out the batches of `data`, which begins where `tail` does. Returns how many bytes the next one needs
        (BATCH_BYTES = that is not known) where it is not whole in `data`, 0 = there is none yet.
        """
        position, base = 0, tail.offset
        left = len(data) if end is None else end - base  # bytes in which batches may stand
        while position < left:
            head = decode_batch_header(data, position, tail.header.salt)
            if head is None and len(data) - position < BATCH_BYTES and len(data) < left:
                return BATCH_BYTES
            stop = position + BATCH_BYTES + (head.payload_bytes if head is not None else 0)
            if end is None:
                if head is None:
                    return 0
                if stop + BATCH_BYTES > len(data):
                    return stop + BATCH_BYTES - position
                behind = decode_batch_header(data, stop, tail.header.salt)
                if behind is None or behind.number != head.number + 1:
                    return 0
            elif stop > len(data) and base + stop <= end:
                return stop - position
            head, why = batch_at(data, position, tail.header, tail.number, min(left, len(data)))
            if head is None:
                raise CorruptError(tail.path, base + position, why)
            self._give(tail, data[position + BATCH_BYTES : stop], base + position + BATCH_BYTES)
            tail.number = head.number
            tail.segment.end = base + stop
            position = stop
        return BATCH_BYTES

    def _give(self, tail: _Tail, payload: memoryview, at: int) -> None:
        """Apply the records of one batch. Its CRC has covered every byte: those of the records are not summed again."""
        apply, segment = self._apply, tail.segment
        for record in tail.decoder.decode(payload, at, verify=False):
            apply(record, segment)
            self.records += 1
            if isinstance(record, Trimmed):
                self.trimmed = record
                for name in [name for name, s in self.segments.items() if s.key in record and not s.live]:
                    if name != segment.name:
                        del self.segments[name]


def replay(log: SegmentLog, sealed: Mapping[str, int], apply: Apply, progress: Callable[[int, int], None]) -> Recovered:
    """Give every record of the `sealed` journal to `apply`, oldest first: see `Follower.finish`."""
    return Follower(log, apply).finish(sealed, progress)
