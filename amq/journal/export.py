"""Reading all live messages of a store, in the order in which their queues hold them: `amq journal export`.

Reads only, also while a master works. Invariant: a message is given if it was live when it was read, once, and in the
order of seqs; a record is verified again when it is read. A message that a prepared transaction acknowledged is given
in its place. The messages that it sent are given behind everything else, together with the transaction, or as ordinary
messages if the transaction was committed meanwhile. Memory is that of `Liveness`: an index, no bodies but those that
one prepared transaction sent.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from amq.core.errors import CorruptError, StoreError
from amq.core.message import SUBSCRIPTION_SCHEME, Message
from amq.core.xid import Key
from amq.journal.hidden import HELD_SCHEME, RETAINED_SCHEME, SENT_SCHEME, real_name
from amq.journal.inspect import ROUNDS_MAX, Inspection, Progress, Sealing, inspect
from amq.journal.interchange import IDS_PER_LINE, Durable, Exported, Ids, InDoubt, Item, PipelineBatch
from amq.journal.liveness import LiveIndex, Liveness, LivePlace
from amq.journal.reader import decode_at
from amq.journal.records import Prepared, is_of_lease
from amq.journal.records.multicast import Multicast, Raw
from amq.journal.records.subscription import Subscribed
from amq.journal.segment import list_segments, read_header, read_segment
from amq.store.segment_log import Reader, SegmentLog

OPEN_FILES_MAX = 16


class _GoneError(Exception):
    """A segment was deleted while we read: what lived in it was copied forward before, or has left its queue."""


class MessageReader:
    """Reads single messages at their places; holds a few segments open. Close it."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._open: OrderedDict[str, Reader] = OrderedDict()

    def read(self, seq: int, place: LivePlace) -> Message:
        """Raises CorruptError; FileNotFoundError or ESTALE where the segment is gone."""
        segment = self._open.get(place.segment)
        if segment is None:
            segment = self._open[place.segment] = self._log.open(place.segment)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(place.segment)
        data = segment.read(place.offset, place.size)
        message = decode_at(segment.place, data, place.at(seq), place.destination)
        if message.seq != seq:
            raise CorruptError(segment.place, place.offset, f"message {seq} is no longer where it was")
        return message

    def read_shared(self, seq: int, place: LivePlace, live: LiveIndex) -> Multicast | None:
        """The record at `place` for all queues in which it is `live`; None where `seq` is not the first of them.
        Raises as `read`.
        """
        self.read(seq, place)  # it is whole
        record = Raw(memoryview(self._open[place.segment].read(place.offset, place.size)))
        holders = {}
        for _, held in record.holders:
            found = live.get(held)
            if found is not None and (found.segment, found.offset) == (place.segment, place.offset):
                holders[held] = found.destination
        return None if seq != next(iter(holders)) else Multicast(record.message(), list(holders.values()), holders)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class Export:
    """One pass over the live messages of `store`. After `items`: `problems` are what could not be read.

    `wanted` are full destination names, None = all. `progress(messages given, messages in all)` now and then.
    """

    def __init__(
        self,
        log: SegmentLog,
        read_sealing: Callable[[], Sealing],
        make_liveness: Callable[[], Liveness],
        wanted: Iterable[str] | None = None,
        reading: Progress = lambda _done, _total: None,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """Reads the journal once, to know what lives. Raises OSError, StoreError as `inspect`."""
        self.problems: list[str] = []
        self._log = log
        self._look: Callable[[], tuple[Inspection, Liveness]] = lambda: inspect(
            log, read_sealing, make_liveness, reading
        )
        self._wanted = set(wanted) if wanted is not None else None
        self._progress = progress
        self._index()
        self._durable = self._durables()
        self._begin()

    def _index(self) -> None:
        inspection, self._liveness = self._look()
        self._note(*(f"{problem} [{problem.code}]" for problem in inspection.problems))

    def _note(self, *problems: str) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]

    def items(self) -> Iterator[Item]:
        """Durable subscriptions, committed batches, remembered ids; then messages, oldest first; then what prepared
        transactions sent, and they. Raises StoreError, OSError."""
        yield from self._remembered()
        self._begin()
        reader = MessageReader(self._log)
        given, stuck = 0, 0
        try:
            while True:
                before = self._after, len(self._in_doubt)
                try:
                    for item in self._not_given(reader):
                        given += isinstance(item, Exported)
                        yield item
                        if given % 1000 == 0:
                            self._progress(given, max(given, len(self._liveness.live)))
                    break
                except _GoneError as error:
                    stuck = 0 if before != (self._after, len(self._in_doubt)) else stuck + 1
                    if stuck >= ROUNDS_MAX:
                        raise StoreError(
                            f"segments are deleted faster than they can be read ({error.__cause__}): stop the brokers, "
                            "or use larger segments (journalSegmentSize)"
                        ) from error
                    reader.close()
                    self._index()
        finally:
            reader.close()
        self._progress(given, given)

    def _begin(self) -> None:
        """Nothing is given yet. Which transactions are prepared? Not leases, whose numbers mean nothing elsewhere; and
        none of which a queue is not wanted."""
        self._after = -1  # all messages up to this one are given, but for what transactions in doubt sent
        self._in_doubt: dict[Key, Prepared] = {}  # oldest first: not given yet
        self._sent: set[int] = set()  # seqs that these sent and that are not given yet
        self._held: dict[int, Key] = {}  # seq that they acknowledged → by which
        self._held_given: dict[Key, int] = {}  # how many of these each
        for key, (prepared, _) in sorted(self._liveness.prepared.items(), key=lambda item: item[1][0].seq):
            if not is_of_lease(str(key)) and all(map(self._is_wanted, (*prepared.sends, *prepared.acks))):
                self._in_doubt[key] = prepared
                self._sent.update(_seqs(prepared.sends))
                self._held.update(dict.fromkeys(_seqs(prepared.acks), key))

    def _not_given(self, reader: MessageReader) -> Iterator[Item]:
        for seq in self._liveness.live.seqs(self._after):
            item = self._exported(reader, seq)
            self._after = seq
            if item is not None:
                yield item
        while self._in_doubt:
            key = next(iter(self._in_doubt))
            yield from self._transaction(reader, key) if key in self._liveness.prepared else self._ended(reader, key)
            del self._in_doubt[key]

    def _transaction(self, reader: MessageReader, key: Key) -> list[Item]:
        """The messages that a prepared transaction sent, and the transaction."""
        prepared, live = self._in_doubt[key], self._liveness.live
        ids = {seq for _, _, seq in prepared.ids}
        sent: list[Item] = []
        for seq in sorted(_seqs(prepared.sends)):
            if (place := live.get(seq)) is not None:
                message = self._read(reader, seq, place._replace(destination=real_name(place.destination)))
                message.duplicate_id = message.duplicate_id if seq in ids else ""
                sent.append(Exported(message, sent_by=key))
        held = self._held_given.get(key, 0)
        acks = [seqs for name, seqs in prepared.acks.items() if not self._has_ended(name)]
        lost = sum(map(len, (*prepared.sends.values(), *acks))) - len(sent) - held
        if lost:
            self._note(f"prepared transaction {key}: {lost} of its messages are lost [STORE_CORRUPT]")
        facts = prepared.xid, prepared.owner, prepared.batch, prepared.created_ms, prepared.timeout_ms
        elsewhere = prepared.span, tuple(prepared.stores)
        return [*sent, InDoubt(*facts, len(sent), held, prepared.user, *elsewhere)]

    def _ended(self, reader: MessageReader, key: Key) -> Iterator[Item]:
        """The messages of a transaction that was committed after they were passed over."""
        for seq in sorted(_seqs(self._in_doubt[key].sends)):
            if seq in self._sent and self._liveness.live.get(seq) is not None:
                item = self._exported(reader, seq)
                if item is not None:
                    yield item

    def _exported(self, reader: MessageReader, seq: int) -> Exported | None:
        """A live message; None where it is not to be given here."""
        liveness = self._liveness
        place = liveness.live[seq]
        if place.destination.startswith(SENT_SCHEME):
            return None
        held_by = self._held.get(seq, "") if place.destination.startswith(HELD_SCHEME) else ""
        retained = place.destination if place.destination.startswith(RETAINED_SCHEME) else ""
        place = place._replace(destination=real_name(place.destination))
        if not self._is_wanted(place.destination) or self._has_ended(place.destination):
            return None
        if place.destination.startswith("?"):
            where = f"{place.segment}: offset {place.offset}"
            self._note(f"{where}: message {seq} of a destination whose name is lost [STORE_CORRUPT]")
            return None
        message = self._read(reader, seq, place)
        ids = liveness.duplicates.get(place.destination)
        if ids is None or ids.get(message.duplicate_id, (-1, ""))[0] != seq:
            message.duplicate_id = ""  # forgotten: a younger message may have it by now
        queue = place.destination if place.destination.startswith(SUBSCRIPTION_SCHEME) else ""
        queue = retained or queue
        self._sent.discard(seq)
        if held_by:
            self._held_given[held_by] = self._held_given.get(held_by, 0) + 1
        return Exported(message, *liveness.redelivered.get(seq, (0, 0)), queue, held_by=held_by)

    @staticmethod
    def _read(reader: MessageReader, seq: int, place: LivePlace) -> Message:
        try:
            return reader.read(seq, place)
        except FileNotFoundError as error:
            raise _GoneError from error
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise _GoneError from error
            raise

    def _durables(self) -> dict[str, Subscribed]:
        """Durable subscriptions, by the name of their queue. Of two of one name the older was ending; one
        that comes into being while the export runs is none of it."""
        records = [record for record, _ in self._liveness.subscriptions.values()]
        newest = {
            (record.definition["client_id"], record.definition["name"]): record
            for record in sorted(records, key=lambda record: int(record.queue.rpartition(":")[2]))
        }
        return {record.queue: record for record in newest.values()}

    def _is_wanted(self, name: str) -> bool:
        """Is `name` wanted? A durable subscription is if one of its topics is."""
        if self._wanted is None or name in self._wanted:
            return True
        found = self._durable.get(name)
        return found is not None and not self._wanted.isdisjoint(found.topics)

    def _has_ended(self, name: str) -> bool:
        """Is that the queue of a durable subscription that has ended? The messages left there reach no consumer."""
        return name.startswith(SUBSCRIPTION_SCHEME) and name not in self._durable

    def _remembered(self) -> Iterator[Item]:
        """Items that a reader needs before the first message."""
        live = self._liveness.live
        for queue, record in sorted(self._durable.items()):
            if self._is_wanted(queue):
                yield Durable(queue, record.definition)
        if self._wanted is None:
            markers = (marker for _, (marker, _) in sorted(self._liveness.markers.items()))
            yield from (PipelineBatch(marker.owner, marker.batch, marker.content) for marker in markers)
        for name, ids in sorted(self._liveness.duplicates.items()):
            if self._is_wanted(name) and not self._has_ended(name):
                gone = [id for id, (seq, _) in ids.items() if live.get(seq) is None]
                yield from (Ids(name, gone[i : i + IDS_PER_LINE]) for i in range(0, len(gone), IDS_PER_LINE))
        if self._wanted is None:
            outcomes = list(self._liveness.outcomes)
            yield from (Ids("", outcomes[i : i + IDS_PER_LINE]) for i in range(0, len(outcomes), IDS_PER_LINE))


def store_uuid(log: SegmentLog) -> str:
    """The uuid of the store in hex, as its oldest readable segment says; "" where none does. Raises OSError."""
    try:
        names = list_segments(log)
    except FileNotFoundError:
        return ""
    for name in names:
        try:
            header = read_header(log.place(name), read_segment(log, name, 1 << 20))
        except (FileNotFoundError, StoreError):
            continue  # deleted meanwhile, or damaged: the next one says the same
        if header is not None:
            return header.store_uuid.hex()
    return ""


def _seqs(by_queue: Mapping[str, list[int]]) -> Iterator[int]:
    return chain.from_iterable(by_queue.values())
