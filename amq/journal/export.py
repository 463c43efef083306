"""Reading all live messages of a store, in the order in which their queues hold them: `amq journal export`.

Reads only, also while a master works. Invariant: a message is given if it was live when it was read, once, and in the
order of seqs; a record is verified again when it is read. Memory is that of `Liveness`: an index, no bodies.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from amq.errors import CorruptError, StoreError
from amq.journal.inspect import ROUNDS_MAX, Inspection, Progress, Sealing, inspect
from amq.journal.interchange import IDS_PER_LINE, Batch, Durable, Exported, Ids, Item
from amq.journal.liveness import LiveIndex, Liveness, Place
from amq.journal.multicast import Multicast, Raw
from amq.journal.reader import decode_at
from amq.journal.records import HELD_SCHEME, SENT_SCHEME
from amq.journal.recovery import JOURNAL_DIRECTORY
from amq.journal.segment import list_segments, read_at, read_file, read_header
from amq.message import SUBSCRIPTION_SCHEME, Message
from amq.vfs import Vfs

OPEN_FILES_MAX = 16


class _GoneError(Exception):
    """A segment was deleted while we read: what lived in it was copied forward before, or has left its queue."""


class MessageReader:
    """Reads single messages at their places; holds a few segments open. Close it."""

    def __init__(self, vfs: Vfs, store: str) -> None:
        self._vfs = vfs
        self._directory = os.path.join(store, JOURNAL_DIRECTORY)
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, seq: int, place: Place) -> Message:
        """Raises CorruptError; FileNotFoundError or ESTALE where the segment is gone."""
        path = os.path.join(self._directory, place.segment)
        fd = self._open.get(place.segment)
        if fd is None:
            fd = self._open[place.segment] = self._vfs.open(path, os.O_RDONLY)
            if len(self._open) > OPEN_FILES_MAX:
                self._vfs.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(place.segment)
        data = read_at(self._vfs, fd, place.offset, place.size)
        message = decode_at(path, data, place.at(seq), place.destination)
        if message.seq != seq:
            raise CorruptError(path, place.offset, f"message {seq} is no longer where it was")
        return message

    def read_shared(self, seq: int, place: Place, live: LiveIndex) -> Multicast | None:
        """What stands at `place` for all queues in which it is `live`; None where `seq` is not the first of them.
        Raises as `read`.
        """
        self.read(seq, place)  # it is whole
        record = Raw(memoryview(read_at(self._vfs, self._open[place.segment], place.offset, place.size)))
        holders = {}
        for _, held in record.holders:
            found = live.get(held)
            if found is not None and (found.segment, found.offset) == (place.segment, place.offset):
                holders[held] = found.destination
        return None if seq != next(iter(holders)) else Multicast(record.message(), list(holders.values()), holders)

    def close(self) -> None:
        while self._open:
            self._vfs.close(self._open.popitem()[1])


class Export:
    """One pass over the live messages of `store`. After `items`: `problems` are what could not be read.

    `wanted` are full destination names, None = all. `progress(messages given, messages in all)` now and then.
    """

    def __init__(
        self,
        vfs: Vfs,
        store: str,
        read_sealing: Callable[[], Sealing],
        make_liveness: Callable[[], Liveness],
        wanted: Iterable[str] | None = None,
        reading: Progress = lambda _done, _total: None,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        """Reads the journal once, to know what lives. Raises OSError, StoreError as `inspect`."""
        self.problems: list[str] = []
        self._vfs = vfs
        self._store = store
        self._look: Callable[[], tuple[Inspection, Liveness]] = lambda: inspect(
            vfs, store, read_sealing, make_liveness, reading
        )
        self._wanted = set(wanted) if wanted is not None else None
        self._progress = progress
        self._index()

    def _index(self) -> None:
        inspection, self._liveness = self._look()
        self._note(*(f"{problem} [{problem.code}]" for problem in inspection.problems))

    def _note(self, *problems: str) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]

    def items(self) -> Iterator[Item]:
        """Durable subscriptions, committed batches, remembered ids; then messages, oldest first. Raises StoreError,
        OSError."""
        yield from self._remembered()
        reader = MessageReader(self._vfs, self._store)
        after, given, stuck = -1, 0, 0
        try:
            while True:
                before = after
                try:
                    for seq, item in self._messages(reader, after):
                        given, after = given + 1, seq
                        yield item
                        if given % 1000 == 0:
                            self._progress(given, max(given, len(self._liveness.live)))
                    break
                except _GoneError as error:
                    stuck = 0 if after > before else stuck + 1
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

    def _messages(self, reader: MessageReader, after: int) -> Iterator[tuple[int, Exported]]:
        liveness = self._liveness
        for seq in liveness.live.seqs(after):
            place = liveness.live[seq]
            if place.destination.startswith(SENT_SCHEME):
                continue  # prepared, not committed: where it is imported it never will be
            place = place._replace(destination=place.destination.removeprefix(HELD_SCHEME))
            if not self._is_wanted(place.destination):
                continue
            if place.destination.startswith("?"):
                where = f"{place.segment}: offset {place.offset}"
                self._note(f"{where}: message {seq} of a destination whose name is lost [STORE_CORRUPT]")
                continue
            try:
                message = reader.read(seq, place)
            except FileNotFoundError as error:
                raise _GoneError from error
            except OSError as error:
                if error.errno == errno.ESTALE:
                    raise _GoneError from error
                raise
            ids = liveness.duplicates.get(place.destination)
            if ids is None or ids.get(message.duplicate_id, (-1, ""))[0] != seq:
                message.duplicate_id = ""  # forgotten: a younger message may have it by now
            queue = place.destination if place.destination.startswith(SUBSCRIPTION_SCHEME) else ""
            yield seq, Exported(message, *liveness.redelivered.get(seq, (0, 0)), queue)

    def _is_wanted(self, name: str) -> bool:
        """Of a durable subscription: is one of its topics?"""
        if self._wanted is None or name in self._wanted:
            return True
        found = self._liveness.subscriptions.get(name)
        return found is not None and not self._wanted.isdisjoint(found[0].topics)

    def _remembered(self) -> Iterator[Item]:
        """What is to be known before the first message."""
        live = self._liveness.live
        for queue, (record, _) in sorted(self._liveness.subscriptions.items()):
            if self._is_wanted(queue):
                yield Durable(queue, record.definition)
        if self._wanted is None:
            yield from (Batch(owner, batch) for owner, (batch, _) in sorted(self._liveness.markers.items()))
        for name, ids in sorted(self._liveness.duplicates.items()):
            if self._is_wanted(name):
                gone = [id for id, (seq, _) in ids.items() if live.get(seq) is None]
                yield from (Ids(name, gone[i : i + IDS_PER_LINE]) for i in range(0, len(gone), IDS_PER_LINE))
        if self._wanted is None:
            outcomes = list(self._liveness.outcomes)
            yield from (Ids("", outcomes[i : i + IDS_PER_LINE]) for i in range(0, len(outcomes), IDS_PER_LINE))


def store_uuid(vfs: Vfs, store: str) -> str:
    """The uuid of the store in hex, as its oldest readable segment says; "" where none does. Raises OSError."""
    directory = os.path.join(store, JOURNAL_DIRECTORY)
    try:
        names = list_segments(vfs, directory)
    except FileNotFoundError:
        return ""
    for name in names:
        path = os.path.join(directory, name)
        try:
            header = read_header(path, read_file(vfs, path, 1 << 20))
        except (FileNotFoundError, StoreError):
            continue  # deleted meanwhile, or damaged: the next one says the same
        if header is not None:
            return header.store_uuid.hex()
    return ""
