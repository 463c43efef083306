"""Source: a segment whose live messages are copied forward, byte for byte and many at a time.

Invariant: a record is copied only while its message lives and stands just there, and no record on its way takes it out.
Its checksum goes with it, so that what was damaged on its way shows. Destinations have the same numbers in all segments
of an epoch: only what an earlier master wrote must be renumbered.
"""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from amq.broker.names import shelves
from amq.core.errors import CorruptError
from amq.core.message import Message
from amq.journal.decoder import SEVERAL, raw_messages
from amq.journal.reader import Payload, Scan
from amq.journal.records import Copies, Redelivered
from amq.journal.records.message import renumbered
from amq.journal.records.multicast import Raw

if TYPE_CHECKING:
    from amq.broker.queues.queue import Queue
    from amq.broker.state.state import State
    from amq.journal.journal import Journal
    from amq.journal.live import Segment


class CopySource:
    """`segment`, looked at by `scan`."""

    def __init__(self, segment: Segment, scan: Scan) -> None:
        self.segment = segment
        self.scan = scan
        self._names: dict[int, str] = {}  # by their numbers in this segment

    def collect(self, payloads: list[Payload], state: State, journal: Journal, leaving: AbstractSet[int]) -> Copies:
        """Copies of the live records in the payloads, but for messages whose seq is in `leaving`."""
        copies = Copies(self.segment)
        parts: dict[int, list[_Part]] = {}
        queues: dict[str, _Part] = {}
        for at, payload in payloads:
            try:
                self._collect(payload, at, state, journal, leaving, copies, parts, queues)
            except (struct.error, ValueError) as error:
                raise CorruptError(self.scan.path, at, f"batch holds no whole records: {error}") from error
        for part in queues.values():
            if part.moves:
                copies.moves[part.queue.name] = part.moves
                counts = part.queue.redelivered
                if counts and (found := [(seq, *counts[seq]) for seq, _ in part.moves if seq in counts]):
                    copies.redelivered.append(Redelivered(part.queue.name, found))
        for _, _, holders in copies.shared:
            for name, seq in holders:
                if (before := state.queues[name].redelivered.get(seq)) is not None:
                    copies.redelivered.append(Redelivered(name, [(seq, *before)]))
        return copies

    def _collect(
        self,
        payload: memoryview,
        at: int,
        state: State,
        journal: Journal,
        leaving: AbstractSet[int],
        copies: Copies,
        parts: dict[int, list[_Part]],
        queues: dict[str, _Part],
    ) -> None:
        """The same for one payload, which is at `at`. A run of records that live is copied in one piece."""
        segment, code, records = self.segment, self.segment.code, copies.records
        size, messages = copies.size, copies.messages
        run_start = run_stop = 0
        for start, stop, number, seq, id_start, id_stop in raw_messages(payload, self._names):
            if number not in parts:
                if number == SEVERAL:
                    records.append(payload[run_start:run_stop])
                    run_start = run_stop = stop
                    raw = Raw(payload[start:stop])
                    if holders := self._holders(raw, at + start, state, leaving):
                        kept = raw.kept([(journal.number_of(name), seq) for name, seq in holders])
                        kept_bytes = sum(map(len, kept))
                        records += kept
                        copies.shared.append((size, kept_bytes, holders))
                        if id := raw.duplicate_id:
                            copies.ids += [(name, id, seq) for name, seq in holders]
                        size += kept_bytes
                        messages += len(holders)
                    continue
                parts[number] = self._parts(number, state, journal, queues)
            for part in parts[number]:
                known = part.messages.get(seq)
                if known is not None:
                    if known.segment is segment and known.offset == at + start:
                        break
                else:
                    place = part.queue.find(seq)
                    if place is not None and place.segment == code and place.offset == at + start:
                        break
            else:
                continue
            if seq in leaving:
                continue
            part.moves.append((seq, size))
            if id_stop > id_start:
                copies.ids.append((part.queue.name, str(payload[id_start:id_stop], "utf-8"), seq))
            if part.number != number:
                records.append(payload[run_start:run_stop])
                records += renumbered(payload[start:stop], part.number)
                run_start = run_stop = stop
            elif run_stop == start:
                run_stop = stop
            else:
                records.append(payload[run_start:run_stop])
                run_start, run_stop = start, stop
            size += stop - start
            messages += 1
        records.append(payload[run_start:run_stop])
        copies.size, copies.messages = size, messages

    def _parts(self, number: int, state: State, journal: Journal, queues: dict[str, _Part]) -> list[_Part]:
        """Where messages may stand that were stored for that destination: there, unless a transaction moved them."""
        name = self._name(number)
        found = [name, *(each for each in shelves(name) if each != name)]
        for each in found:
            if each not in queues and (queue := state.queues.get(each)) is not None:
                queues[each] = _Part(queue, journal.number_of(each))
        return [queues[each] for each in found if each in queues]

    def _holders(self, raw: Raw, at: int, state: State, leaving: AbstractSet[int]) -> list[tuple[str, int]]:
        """Names and seqs of those queues that still hold what is at `at`."""
        found = []
        for number, seq in raw.holders:
            for name in shelves(self._name(number)) if seq not in leaving else ():
                queue = state.queues.get(name)
                if queue is not None and queue.stands_at(seq, self.segment, at):
                    found.append((name, seq))
        return found

    def _name(self, number: int) -> str:
        name = self._names.get(number)
        if name is None:
            raise CorruptError(self.scan.path, 0, f"destination {number} was not defined before")
        return name


class _Part:
    """The copies for one destination. `number` = its number in this journal."""

    __slots__ = ("messages", "moves", "number", "queue")

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.messages: dict[int, Message] = queue.messages
        self.moves: list[tuple[int, int]] = []
        self.number = number
