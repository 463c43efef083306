"""CopyingAhead: while this store serves what a step of a move will take, the next home gets copies of it.

The messages go in rounds, by their age: those that came meanwhile are the next round, until few are left. The next
home keeps the copies where nobody gets them (`amq.broker.transfer.copies_here`), and answers under which numbers. When
the step has begun, and nothing changes here any more, these numbers go there in place of the messages (`taken`); what
is not copied goes as a whole. So producers wait for the last round, and not for all that is there.

A copy is nothing but bytes: the message is here until the parcel has arrived that names the copy. So to lose copies, or
to make some twice, costs time and disk alone. Only this mastership knows of it: the next one begins anew.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import structlog

from amq.broker import homes as limits
from amq.broker.core import Core
from amq.broker.names import SUBSCRIPTION_SCHEME
from amq.broker.queues.backlog import Place
from amq.broker.queues.queue import Queue
from amq.broker.transfer.peers import PeerConnection
from amq.core.errors import AmqError, StoreError
from amq.core.message import Message
from amq.journal.hidden import SENT_SCHEME
from amq.journal.live import Segment
from amq.protocols.commands import Failure, Transfer

MESSAGES_MAX: Final = 1000  # in a parcel
BYTES_MAX: Final = 1 << 20  # of their records, where it is not one message alone
ROUNDS_MAX: Final = 20  # then the step is taken with what is left
COPIED_MAX: Final = 3  # times what was there: so much disk the copies take at most, and
COPIED_BYTES_MIN: Final = 64 << 20
PIECE: Final = 2048  # rows that are compared at once
PAUSE_S: Final = 0.5  # before a parcel goes again
TRIES_MAX: Final = 20  # of one parcel, before the step is taken without
PROTOCOL: Final = "copies"  # of the connections to other stores
FIRST, AS, SUBSCRIPTION = "first", "as", "subscription"  # in the extra of a parcel
_log = structlog.get_logger("amq.placement")


class CopiedQueue:
    """The copies that another store has of a queue.

    seqs, theirs  of the messages that were copied: here by age, and there
    through       no older message is to be copied
    as_name       of the queue there
    """

    def __init__(self, store: str, stored_bytes: int) -> None:
        self.store = store
        self.seqs, self.theirs = array("Q"), array("Q")
        self.through = 0
        self.as_name = ""
        self.bytes = 0
        self.bytes_max = max(COPIED_MAX * stored_bytes, COPIED_BYTES_MIN)
        self.rounds = 0

    def oldest(self, stored: array[int]) -> Iterator[tuple[int, int]]:
        """Those of `stored`, seqs by age, that were copied, up to the first that was not: rows of `seqs`, as first and
        stop."""
        at = row = 0
        while at < len(stored):
            row = bisect_left(self.seqs, stored[at], row)
            most = min(PIECE, len(stored) - at, len(self.seqs) - row)
            count = most if stored[at : at + most] == self.seqs[row : row + most] else 0  # as nearly all are
            while count < most and stored[at + count] == self.seqs[row + count]:
                count += 1
            if not count:
                return
            yield row, row + count
            at += count
            row += count

    def cut(self, seq: int) -> None:
        """Forget the copies from `seq` on."""
        row = bisect_left(self.seqs, seq)
        del self.seqs[row:], self.theirs[row:]
        self.through = min(self.through, seq - 1)


class CopyingAhead:
    """Call `step` every second or so, while no step moves anything. It calls `count(bytes)` for what it has copied."""

    def __init__(self, core: Core, count: Callable[[int], None]) -> None:
        self._core = core
        self._count = count
        self._copied: dict[str, CopiedQueue] = {}
        self._name = ""  # of the queue whose round is under way
        self._round: Iterator[int] = iter(())
        self._parcel: list[int] = []  # seqs of the messages on their way
        self._parcel_bytes = 0
        self._is_reading = self._is_asked = False
        self._asked = 0  # the number of the question that may be answered
        self._tries = 0
        self._due_s = 0.0
        self._connection: PeerConnection | None = None
        self._linked_to = ""

    def step(self, now_s: float) -> None:
        """Go on, if there is something to copy."""
        homes = self._core.homes
        assert homes is not None
        if not homes.copies:
            if not self._is_asked and (self._copied or self._connection is not None):
                self._forget()
            return
        if self._is_reading or self._is_asked or now_s < self._due_s or self._core.peers is None:
            return
        if not self._send_some():
            self._next_round()

    def _forget(self) -> None:
        """No step will come that takes anything of what was copied, or it has been."""
        homes = self._core.homes
        assert homes is not None
        self._copied = {name: copied for name, copied in self._copied.items() if name in homes.leaving}
        self._name, self._round, self._parcel = "", iter(()), []
        self._hang_up()

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _next_round(self) -> None:
        """Begin the round of the queue of which most is not copied. Where little is left of all together, the step may
        be taken."""
        homes, queues = self._core.homes, self._core.state.queues
        assert homes is not None
        self._copied = {name: each for name, each in self._copied.items() if name in homes.copies}
        rests: dict[str, int] = {}
        homes.to_copy.to_copy = homes.to_copy.to_copy_bytes = 0
        for name in [*homes.copies]:
            queue, copied = queues.get(name), self._of(name)
            if queue is None or not queue.stored:
                self._finish(name)
            elif copied.bytes >= copied.bytes_max or (copied.rounds >= ROUNDS_MAX and not homes.copies.get(name)):
                self._finish(name, "its producers are quicker than the copies")
            else:
                rest, size = younger(queue, copied.through)
                rests[name] = len(rest)
                homes.to_copy.to_copy += len(rest)
                homes.to_copy.to_copy_bytes += size
        if homes.to_copy.to_copy <= limits.FEW and homes.to_copy.to_copy_bytes <= limits.FEW_BYTES:
            cut = [
                name for name in rests if homes.copies.get(name) is False and self._is_cut(queues[name], self._of(name))
            ]
            for name in rests:
                if name not in cut:
                    self._finish(name)
            if not cut:
                return
            rests = {name: len(younger(queues[name], self._of(name).through)[0]) for name in cut}
        self._name = max(rests, key=rests.__getitem__, default="")
        if self._name:
            copied = self._of(self._name)
            copied.rounds += 1
            self._round = iter(younger(queues[self._name], copied.through)[0])
            homes.tell_progress()
            self._send_some()

    def _of(self, name: str) -> CopiedQueue:
        """The copies of that queue; those in another store are of no use."""
        homes, queue = self._core.homes, self._core.state.queues.get(name)
        assert homes is not None
        store, found = homes.copied_to(name), self._copied.get(name)
        if found is None or found.store != store:
            found = self._copied[name] = CopiedQueue(store, queue.stored_bytes if queue is not None else 0)
        return found

    def _is_cut(self, queue: Queue, copied: CopiedQueue) -> bool:
        """Has a message come between those that were copied, as one does that a transaction held? Then these count only
        as far as there, so that the order stays."""
        stored = younger(queue, 0)[0]
        known = sum(stop - row for row, stop in copied.oldest(stored))
        if known == bisect_right(stored, copied.through):
            return False
        copied.cut(stored[known])
        return True

    def _finish(self, name: str, trouble: str = "") -> None:
        """So little is left of that queue that the step may be taken, or it is of no use to go on."""
        homes = self._core.homes
        assert homes is not None
        if homes.copies.get(name) is False:  # else nothing of it is there any more, or it is known
            if trouble:
                _log.warning("a queue moves that is not copied", queue=name[:200], reason=trouble)
            homes.has_copied(name)

    # -- parcels ------------------------------------------------------------------------------------------------------

    def _send_some(self) -> bool:
        """Some messages of the round. False = there are none."""
        queue = self._core.state.queues.get(self._name)
        if queue is None or not queue.stored:
            return False
        again, self._parcel = self._parcel, []
        kept, places, self._parcel_bytes = gathered(queue, chain(again, self._round), MESSAGES_MAX, BYTES_MAX)
        if not kept and not places:
            return False
        self._is_reading = True
        look(self._core, queue, places, lambda messages: self._send(queue, [*messages, *kept]))
        return True

    def _send(self, queue: Queue, messages: list[Message]) -> None:
        core, copied = self._core, self._copied.get(queue.name)
        messages.sort(key=attrgetter("seq"))
        self._parcel = [message.seq for message in messages]
        self._is_reading = False
        if copied is None or not messages:
            return
        extra: dict[str, Any] = {AS: copied.as_name} if copied.as_name else {FIRST: True}
        if queue.name.startswith(SUBSCRIPTION_SCHEME):
            extra[SUBSCRIPTION] = core.state.subscriptions[queue.name].definition
        command = Transfer(f"{core.journal.store_uuid.hex()}/copies", 0, messages)
        command.queue, command.extra = SENT_SCHEME + queue.name, json.dumps(extra)
        self._asked += 1
        command.receipt = self._asked
        self._is_asked = True
        try:
            self._connected(copied.store).handle([command])
        except AmqError as error:
            self._again(error)

    def _connected(self, store: str) -> PeerConnection:
        """Raises AmqError."""
        if self._connection is not None and (self._connection.is_closed or self._linked_to != store):
            self._hang_up()
        if self._connection is None:
            assert self._core.peers is not None
            self._linked_to = store
            self._connection = self._core.peers.open(store, self, PROTOCOL, self._lost)
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            connection.close()

    def stop(self) -> None:
        """The mastership ends."""
        self._is_reading = True
        self._hang_up()

    def _lost(self, error: AmqError) -> None:
        self._connection = None
        if self._is_asked:
            self._again(error)

    def _again(self, error: AmqError) -> None:
        """It is not known whether the copies are there, or they are not: they go again."""
        homes = self._core.homes
        assert homes is not None
        self._is_asked = False
        self._asked += 1  # a late answer is one to nothing
        self._tries += 1
        self._due_s = self._core.clock.monotonic() + PAUSE_S
        if self._tries >= TRIES_MAX:
            self._tries = 0
            self._parcel, self._round = [], iter(())
            for name in [*homes.copies]:
                self._finish(name, str(error))

    def _come(self, outcome: str) -> None:
        """The other store has them."""
        core, copied = self._core, self._copied.get(self._name)
        self._is_asked, self._tries = False, 0
        first, _, name = outcome.partition(" ")
        seqs, self._parcel = self._parcel, []
        homes = core.homes
        assert homes is not None
        if copied is None or not first.isdigit():
            return
        copied.as_name = name
        copied.seqs.extend(seqs)
        copied.theirs.extend(range(int(first), int(first) + len(seqs)))
        copied.through = max(copied.through, seqs[-1])
        copied.bytes += self._parcel_bytes
        homes.to_copy.copied += len(seqs)
        homes.to_copy.copied_bytes += self._parcel_bytes
        homes.to_copy.to_copy = max(homes.to_copy.to_copy - len(seqs), 0)
        homes.to_copy.to_copy_bytes = max(homes.to_copy.to_copy_bytes - self._parcel_bytes, 0)
        self._count(self._parcel_bytes)
        now_s = core.clock.monotonic()
        if homes.rate_bytes:
            self._due_s = max(now_s, self._due_s) + self._parcel_bytes / homes.rate_bytes
        if not homes.leaving:
            self.step(now_s)

    # -- Recipient: what the other store answers ----------------------------------------------------------------------

    def confirm(self, receipt: object, outcome: str = "") -> None:
        if receipt == self._asked and self._is_asked:
            self._come(outcome)

    def confirm_all(self, receipts: Sequence[object]) -> None:
        for receipt in receipts:
            self.confirm(receipt)

    def fail(self, failure: Failure) -> None:
        if self._is_asked and failure.receipt in (None, self._asked):
            error = failure.error
            self._again(error if isinstance(error, AmqError) else StoreError(str(error)))

    def close(self) -> None:
        self._lost(StoreError("the other store has ended the connection"))

    def pause_reading(self) -> None:
        """A parcel is small."""

    def resume_reading(self) -> None:
        """Nothing was paused."""

    def subscribed(self, *_: Any) -> Any:
        raise AssertionError("who copies consumes nothing")

    deliver = deliver_all = browsed = deliver_batch = deliver_run = subscribed

    # -- the step -----------------------------------------------------------------------------------------------------

    def taken(self, queue: Queue) -> tuple[array[int], array[int]]:
        """Messages that the next home of the queue has: their seqs here, by age, and there. They are the oldest ones:
        none that is not copied is older than any of them. Nothing changes in the queue any more."""
        found, homes = self._copied.get(queue.name), self._core.homes
        here, there = array("Q"), array("Q")
        if found is None or homes is None or found.store != homes.copied_to(queue.name):
            return here, there
        for row, stop in found.oldest(younger(queue, 0)[0]):
            here.extend(found.seqs[row:stop])
            there.extend(found.theirs[row:stop])
        return here, there

    def name_there(self, queue: str) -> str:
        """The name of the queue of a durable subscription in its next home, "" = none is known."""
        found = self._copied.get(queue)
        return found.as_name if found is not None else ""

    def drop(self, queue: str) -> None:
        """The copies of that queue are of no use."""
        self._copied.pop(queue, None)


# -- reading -----------------------------------------------------------------------------------------------------------


def gathered(
    queue: Queue, seqs: Iterable[int], messages_max: int, bytes_max: int
) -> tuple[list[Message], list[Place], int]:
    """The next messages of those `seqs` that are stored: those that are in memory alone, the places of the others, and
    about how many bytes they are."""
    kept: list[Message] = []
    places: list[Place] = []
    size = 0
    for seq in seqs:
        message = queue.messages.get(seq)
        if message is not None and message.segment is None:
            kept.append(message)
            size += len(message.body)
        elif (place := _place(queue, seq, message)) is not None:
            places.append(place)
            size += place.size
        if len(kept) + len(places) >= messages_max or size >= bytes_max:
            break
    return kept, places, size


def look(core: Core, queue: Queue, places: list[Place], then: Callable[[list[Message]], None]) -> None:
    """Read what is stored there, as far as it is still there, and call `then` with it."""
    if not places:
        then([])
        return

    def found(messages: list[Message] | None) -> None:
        if messages is None:  # copied forward meanwhile
            look(core, queue, [now for each in places if (now := _place(queue, each.seq, None)) is not None], then)
        else:
            then(messages)

    core.pager.look(queue, places, found)


def in_order(messages: list[Message]) -> list[Message]:
    """As a queue gives them."""
    messages.sort(key=lambda message: (-message.priority, message.seq))
    return messages


def _place(queue: Queue, seq: int, message: Message | None) -> Place | None:
    message = message or queue.messages.get(seq)
    if message is None:
        return queue.find(seq)
    assert isinstance(message.segment, Segment)
    return Place(seq, message.segment.code, message.offset, message.size)


def younger(queue: Queue, through: int) -> tuple[array[int], int]:
    """The messages of the queue behind `through`, by age, and about how many bytes they are."""
    found = array("Q", (seq for seq in queue.messages if seq > through))
    for backlog in queue.backlogs.values():
        for chunk in backlog.chunks:
            if chunk.seqs[-1] > through:
                found.extend(chunk.seqs[bisect_right(chunk.seqs, through) :])
    size = queue.stored_bytes * len(found) // max(queue.stored, 1)
    return array("Q", sorted(found)), size
