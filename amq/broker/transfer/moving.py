"""Mover: sends what leaves this store by a step of a move to its new home, and takes in what comes here so.

Nobody serves what is moving, so nothing of it changes but by this. It goes queue by queue, of each first what belongs
to no message (the durable subscription, the ids that it remembers), then its messages, by priority and in their order,
in parcels (`amq.broker.transfer.channel`): each leaves this store in the record that says that it has arrived. So a
crash of either store at any moment loses nothing and doubles nothing, and the next master goes on with what is left.

The other store keeps what has come in the queue where it belongs. Nobody is given anything of it there before that
store is its home, which is not before this one holds nothing of it any more (docs/master-slave.md).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Final

import structlog

from amq.broker.core import Core
from amq.broker.names import SUBSCRIPTION_SCHEME
from amq.broker.queues.queue import Queue
from amq.broker.state.parcels import MOVES
from amq.broker.state.state import State
from amq.broker.topics.durables import Durables
from amq.broker.transfer.channel import Channel, Seqs
from amq.broker.transfer.copies_here import COPIES_GONE
from amq.broker.transfer.copying_ahead import SUBSCRIPTION, CopyingAhead, gathered, in_order, look
from amq.core.errors import AmqError
from amq.core.message import Message
from amq.journal.records import BaseRecord, BatchContent, Duplicates, Marker, Outcomes, Redelivered
from amq.protocols.commands import TakeCopies, Transfer

MESSAGES_MAX: Final = 1000  # in a parcel
BYTES_MAX: Final = 1 << 20  # of their records, where it is not one message alone
COPIES_MAX: Final = 50_000  # in a parcel that names copies
REFUSALS_MAX: Final = 3  # of such parcels, one after the other, before the messages go as a whole
IDS_MAX: Final = 5000  # in a parcel
RATE_S: Final = 2.0  # over which the rate for operators is measured
EMPTY_MAX: Final = 1000  # queues that hold nothing, in a parcel
CONSUMERS_S: Final = 10.0  # groups wait for their consumers
TOLD_MAX: Final = 10_000  # queues whose figures came lately
KNOWN_BYTES: Final = 40  # in a parcel, of a consumer
BUCKET_BYTES: Final = 7  # of a bucket of its groups
IDS, COUNTS, STAYS, NAME = "ids", "counts", "stays", "name"  # in the extra of a parcel, beside SUBSCRIPTION
OUTCOMES, MARKERS = "outcomes", "markers"
FIGURES, OWNERS, EMPTY = "figures", "owners", "empty"
Figures = Sequence[int]  # messages that came, and that left
_log = structlog.get_logger("amq.placement")


class Mover:
    """Call `step` every second or so."""

    def __init__(self, core: Core, durables: Durables) -> None:
        self._core = core
        self._durables = durables
        self.channel = Channel(core, MOVES, self)
        self.copying = CopyingAhead(core, self._count_bytes)
        self._name = ""  # of the queue that is being sent
        self._ids: list[str] = []  # that it remembers and that are not sent, the newest first
        self._seqs = iter(array("Q"))  # of its messages that are not sent
        self._copied = array("Q"), array("Q")  # of those that are copied, and that the other store has not fetched
        self._copied_row = 0  # of the first of them
        self._refusals = 0  # of parcels that name copies
        self._is_begun = self._is_reading = False
        self._parcel: tuple[list[Message], int, int] = ([], 0, 0)  # what is not persistent of it; messages, and bytes
        self._counted_s, self._counted_bytes = 0.0, 0  # since then, for the rate
        self._pause_until_s = 0.0
        self._rest: list[dict[str, Any]] | None = None  # parcels that belong to no queue; None = not looked for
        self._told: list[tuple[Queue, Figures]] = []  # of which the parcel has the figures
        # Number of the table, and what other masters have told with it: by their channels, and queues.
        self._told_by: tuple[int, dict[tuple[str, str], tuple[int, int]]] = 0, {}
        self._expecting: dict[str, float] = {}  # queues from elsewhere: until then their consumers may come

    # -- from here ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Go on with what leaves, if there is something."""
        core, homes = self._core, self._core.homes
        now_s = core.clock.monotonic()
        self.channel.step(now_s)
        if self._expecting:
            self._expect(now_s)
        if homes is None or self._is_reading or now_s < self._pause_until_s:
            return
        while homes.empty and self.channel.is_free:
            self._tell_of_empty()
        while homes.leaving and self.channel.is_free and not self._is_reading:
            name = next(iter(homes.leaving))
            queue = core.state.queues.get(name)
            if queue is None:
                homes.has_left(name)
            elif name != self._name:
                self._begin(queue)
            elif not (self._send_head(queue) or self._send_copied(queue) or self._send_some(queue)):
                self._end(queue)
        if not (homes.leaving or homes.empty) and self.channel.is_free:
            if store := homes.next_home_of_rest():
                self._send_rest(store)
            else:
                self.copying.step(now_s)

    def _send_rest(self, store: str) -> None:
        """Send what belongs to no queue: the commits that took place, and the newest batch of each pipeline."""
        homes = self._core.homes
        assert homes is not None
        if self._rest is None:
            self._rest = [*_rest_of(self._core.state)][::-1]
        if self._rest:
            self.channel.send(store, [], {}, "", json.dumps(self._rest[-1]))
        else:
            self._rest, homes.owes_rest = None, False
            homes.tell_progress()

    def _tell_of_empty(self) -> None:
        """Queues that hold nothing go together: their figures, and the owners of their groups."""
        homes, queues = self._core.homes, self._core.state.queues
        assert homes is not None
        store, rows, size = homes.next_home(next(iter(homes.empty))), dict[str, Any](), 0
        for name in homes.empty:
            if homes.next_home(name) == store:
                queue, owners = queues[name], homes.owners[name]
                rows[name] = [figures := counted(queue), owners]
                self._told.append((queue, figures))
                size += len(name) + sum(KNOWN_BYTES + BUCKET_BYTES * len(each) for each in owners.values())
            if len(rows) >= EMPTY_MAX or size >= BYTES_MAX:
                break
        self.channel.send(store, [], {}, "", json.dumps({EMPTY: rows}))

    def _begin(self, queue: Queue) -> None:
        self._name, self._is_begun = queue.name, False
        self._ids = [*reversed(queue.duplicates)]
        self._copied, self._copied_row = self.copying.taken(queue), 0
        self._seqs = _in_order(queue)

    def _send_head(self, queue: Queue) -> bool:
        """The ids that the queue remembers, and that it stays. False = there is nothing more of these."""
        if self._is_begun and not self._ids:
            return False
        ids = [self._ids.pop() for _ in range(min(IDS_MAX, len(self._ids)))]
        extra: dict[str, Any] = {**({IDS: ids} if ids else {}), **({STAYS: True} if queue.stays else {})}
        if not self._is_begun:
            extra |= self._known_of(queue)
        self._is_begun = True
        if not extra:
            return False
        self._send(queue, [], extra)
        return True

    def _known_of(self, queue: Queue) -> dict[str, Any]:
        """Its figures, and the owners of its groups."""
        homes, figures = self._core.homes, counted(queue)
        assert homes is not None
        if any(figures):
            self._told = [(queue, figures)]
        owners = homes.owners.get(queue.name)
        return {**({FIGURES: figures} if any(figures) else {}), **({OWNERS: owners} if owners is not None else {})}

    def _send_copied(self, queue: Queue) -> bool:
        """Name some messages that the other store has copies of. False = all are named."""
        (here, there), row = self._copied, self._copied_row
        seqs = here[row : row + COPIES_MAX]
        if not seqs:
            return False
        self._copied_row += len(seqs)
        extra = self._extra(queue, seqs)
        kept = [message for seq in seqs if (message := queue.messages.get(seq)) is not None and message.segment is None]
        self._ship(queue, [], seqs, kept, 0, extra, ranges_of(there[row : row + len(seqs)]))
        return True

    def _send_some(self, queue: Queue) -> bool:
        """Some messages. False = there are none."""
        kept, places, _ = gathered(queue, self._seqs, MESSAGES_MAX, BYTES_MAX)
        if not kept and not places:
            return False
        self._is_reading = True

        def found(messages: list[Message]) -> None:
            self._is_reading = False
            self._send(queue, in_order([*messages, *kept]), {})

        look(self._core, queue, places, found)
        return True

    def _send(self, queue: Queue, messages: list[Message], extra: dict[str, Any]) -> None:
        seqs = array("Q", (message.seq for message in messages))
        kept = [message for message in messages if message.seq in queue.messages and message.segment is None]
        kept = [message for message in kept if queue.messages[message.seq] is message]
        size = sum(len(message.body) for message in messages)
        self._ship(queue, messages, seqs, kept, size, {**self._extra(queue, seqs), **extra}, None)

    def _extra(self, queue: Queue, seqs: Iterable[int]) -> dict[str, Any]:
        """All that the other store must know of messages of the queue beside themselves."""
        extra: dict[str, Any] = {}
        if queue.name.startswith(SUBSCRIPTION_SCHEME):
            extra[SUBSCRIPTION] = self._core.state.subscriptions[queue.name].definition
            if name := self.copying.name_there(queue.name):
                extra[NAME] = name
        known = queue.redelivered
        if known and (counts := [[row, *known[seq]] for row, seq in enumerate(seqs) if seq in known]):
            extra[COUNTS] = counts
        return extra

    def _ship(
        self,
        queue: Queue,
        messages: list[Message],
        seqs: array[int],
        kept: list[Message],
        size: int,
        extra: dict[str, Any],
        copies: list[tuple[int, int]] | None,
    ) -> None:
        """Send a parcel: `messages` or `copies`, of the messages `seqs`, of which `kept` are not persistent."""
        assert self._core.homes is not None
        here = {message.seq for message in kept}
        self._parcel = kept, len(seqs), size
        leaving = {queue.name: [seq for seq in seqs if seq not in here] if here else seqs.tolist()}
        home = self._core.homes.next_home(queue.name)
        self.channel.send(home, messages, leaving, queue.name, json.dumps(extra) if extra else "", copies)

    def _end(self, queue: Queue) -> None:
        """All is sent, if nothing came in between."""
        if queue.stored:
            self._begin(queue)
            return
        homes, record = self._core.homes, self._core.state.subscriptions.get(queue.name)
        assert homes is not None
        if record is not None and self._durables.knows(record):
            self._durables.end(record)
        queue.stays = queue.awaits = False
        self._core.state.emptied[queue] = None
        self._name = ""
        homes.has_left(queue.name)

    # -- the owner of the channel --------------------------------------------------------------------------------------

    def release(self, queues: Seqs) -> None:
        for name, seqs in queues.items():
            self._core.state.queue(name).take_out({*seqs})

    def delivered(self) -> None:
        core, homes = self._core, self._core.homes
        assert homes is not None
        kept, count, size = self._parcel
        for each, figures in self._told:
            bring(each, figures, -1)
        if told := [each.name for each, _ in self._told if each.name in homes.empty]:
            for each, _ in self._told:
                each.awaits = False
                core.state.emptied[each] = None
            homes.has_told(told)
        self._told = []
        queue = core.state.queue(self._name) if kept else None
        for message in kept:
            assert queue is not None
            if queue.take_out({message.seq}):
                core.state.remove(queue, message)
                bring(queue, (1, 1), -1)  # that it has left here counts nowhere, as that of the others
        self._parcel = [], 0, 0
        homes.stuck = None
        if self._rest:
            self._rest.pop()
        now_s = core.clock.monotonic()
        self._refusals = 0
        self._count(count, size)
        if homes.rate_bytes:
            self._pause_until_s = max(now_s, self._pause_until_s) + size / homes.rate_bytes
        self.step()

    def _count(self, count: int, size: int) -> None:
        homes = self._core.homes
        assert homes is not None
        homes.sent.sent += count
        homes.sent.sent_bytes += size
        self._count_bytes(size)

    def _count_bytes(self, size: int) -> None:
        homes, now_s = self._core.homes, self._core.clock.monotonic()
        assert homes is not None
        self._counted_bytes += size
        if now_s >= self._counted_s + RATE_S:
            homes.sent.bytes_a_second = int(self._counted_bytes / min(now_s - self._counted_s, 2 * RATE_S))
            self._counted_s, self._counted_bytes = now_s, 0

    def refused(self, error: AmqError) -> None:
        _log.info("what moves is not taken yet: trying again", queue=self._name, reason=str(error))
        if self._core.homes is not None and self._name and error.code != COPIES_GONE:
            self._core.homes.stands_still(self._name, str(error), self._core.clock.wall_ms())
        if self._copied_row:
            self._refusals += 1
            if error.code == COPIES_GONE or self._refusals >= REFUSALS_MAX:
                self.copying.drop(self._name)
                self._refusals = 0
        self._copied_row = 0
        self._name, self._parcel, self._rest, self._told = "", ([], 0, 0), None, []
        self._pause_until_s = self._core.clock.monotonic() + 0.2

    # -- to here ------------------------------------------------------------------------------------------------------

    def queue_of(self, transfer: Transfer | TakeCopies) -> str:
        """The queue of the journal, here, into which the messages of a parcel go. Raises CommandError."""
        extra = json.loads(transfer.extra) if transfer.extra else {}
        definition = extra.get(SUBSCRIPTION)
        if definition is None:
            return transfer.queue
        definition = {**definition, "message_id_prefix": self._core.message_id_prefix}
        return self._durables.restore(definition, extra.get(NAME, "")).name

    def taken(self, transfer: Transfer | TakeCopies, seqs: Sequence[int]) -> list[BaseRecord]:
        """The records that go with the messages of a parcel, which have these seqs here."""
        if not transfer.extra:
            return []
        extra, queue = json.loads(transfer.extra), self.queue_of(transfer)
        found: list[BaseRecord] = []
        if ids := extra.get(IDS):
            first = self._core.next_seq(len(ids))
            found.append(Duplicates(queue, [(id, seq) for seq, id in enumerate(ids, first)]))
        if counts := extra.get(COUNTS):
            found.append(Redelivered(queue, [(seqs[row], *count) for row, *count in counts]))
        if names := extra.get(OUTCOMES):
            found.append(Outcomes([(name, seq) for seq, name in enumerate(names, self._core.next_seq(len(names)))]))
        for owner, batch, *content in extra.get(MARKERS, ()):
            found.append(Marker(owner, batch, BatchContent(*content) if content else None))
        if extra.get(STAYS):
            self._core.state.queue(queue)
        return found

    def came(self, transfer: Transfer) -> None:
        """A parcel is stored. This mastership alone knows the figures and owners that come with it."""
        extra = json.loads(transfer.extra) if transfer.extra else {}
        if FIGURES in extra or OWNERS in extra:
            self._come(transfer, self.queue_of(transfer), extra.get(FIGURES, (0, 0)), extra.get(OWNERS))
        for name, (figures, owners) in extra.get(EMPTY, {}).items():
            self._come(transfer, name, figures, owners)

    def _come(self, transfer: Transfer, name: str, figures: Figures, owners: dict[str, list[int]] | None) -> None:
        core, homes = self._core, self._core.homes
        if homes is not None and not homes.takes(name):
            return
        queue = core.state.queue(name)
        bring(queue, self._unknown(transfer.channel, name, figures))
        if owners is not None:
            queue.expect_consumers(owners, core)
            self._expecting[name] = core.clock.monotonic() + CONSUMERS_S

    def _unknown(self, channel: str, name: str, figures: Figures) -> Figures:
        """The part of these figures that is new: the next master of the other store sends with the same step again what
        it knows."""
        number = self._core.homes.number if self._core.homes is not None else 0
        if number != self._told_by[0]:
            self._told_by = number, {}
        known = self._told_by[1]
        came, left = known.pop((channel, name), (0, 0))
        known[channel, name] = more = max(came, figures[0]), max(left, figures[1])
        while len(known) > TOLD_MAX:
            del known[next(iter(known))]
        return more[0] - came, more[1] - left

    def _expect(self, now_s: float) -> None:
        """Consumers that are not there some seconds after their queue has its home here get nothing that they had."""
        core = self._core
        frozen = core.homes.frozen if core.homes is not None else ()
        for name, until_s in [*self._expecting.items()]:
            queue = core.state.queues.get(name)
            if queue is None:
                del self._expecting[name]
            elif name in frozen:
                self._expecting[name] = now_s + CONSUMERS_S
            elif now_s >= until_s:
                del self._expecting[name]
                queue.expect_no_consumers()
                core.state.emptied[queue] = core.dirty[queue] = None
                core.wake()


def counted(queue: Queue) -> Figures:
    """Messages that came to the queue, and that left, but for those that it has."""
    came, left = queue.brought
    return queue.enqueued + came - queue.stored, queue.acknowledged + left


def bring(queue: Queue, figures: Figures, sign: int = 1) -> None:
    """Another store has counted so much of the queue, or counts that from now on."""
    came, left = figures
    queue.brought = queue.brought[0] + sign * came, queue.brought[1] + sign * left


def _rest_of(state: State) -> Iterator[dict[str, Any]]:
    """The extra of each parcel for what belongs to no queue."""
    markers = [
        [marker.owner, marker.batch, *(() if marker.content is None else astuple(marker.content))]
        for marker, _ in state.prepared.markers.values()
    ]
    outcomes = [id for id, _ in state.outcomes.items()]
    for name, rest in ((MARKERS, markers), (OUTCOMES, outcomes)):
        yield from ({name: rest[first : first + IDS_MAX]} for first in range(0, len(rest), IDS_MAX))


def ranges_of(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """(first, count) of seqs that follow each other."""
    found: list[tuple[int, int]] = []
    first = count = 0
    for seq in seqs:
        if seq != first + count:
            if count:
                found.append((first, count))
            first, count = seq, 0
        count += 1
    return [*found, (first, count)] if count else found


def _in_order(queue: Queue) -> Iterator[int]:
    """The seqs of all that the queue holds when the first is asked for: the highest priority first, and in their
    order."""
    for priority in range(9, -1, -1):
        found = array("Q", sorted(seq for seq, each in queue.messages.items() if each.priority == priority))
        if backlog := queue.backlogs.get(priority):
            for chunk in backlog.chunks:
                found.extend(chunk.seqs)
            found = array("Q", sorted(found))
        yield from found
