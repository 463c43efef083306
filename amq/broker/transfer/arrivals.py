"""Arrivals: parcels that come from the masters of other stores.

A parcel is stored once: its messages and its number are one record of the journal. A number that is not higher than the
last one of its channel is refused, wherever it comes from, and however late: so its sender may close a parcel of which
it has heard nothing, and then knows for good whether that came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from amq.broker.core import Core
from amq.broker.names import is_queued, is_topic
from amq.broker.queues.limits import Limits
from amq.broker.queues.rooms import Room
from amq.broker.topics.routing import Routing
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.transaction import memory_bytes
from amq.broker.transfer.copies_here import CopiesHere
from amq.broker.waiters import Answering
from amq.core.errors import CommandError
from amq.core.message import Copy, Message, Sharing
from amq.journal.batch import Waiter
from amq.journal.hidden import SENT_SCHEME
from amq.journal.records import BaseRecord, Group, Parcel, Record
from amq.protocols.commands import CloseParcel, TakeCopies, Transfer

CLOSED = "PARCEL_CLOSED"  # code: the parcel came before, or was closed
UNSURE = "PARCEL_UNSURE"  # code: it may be that a message of it is being stored for somebody else


class Arrivals:
    """`queue_of(transfer)` = where the messages go of a parcel for one queue; `taken(transfer, seqs)` = records that
    are stored with its messages, which have these seqs; `came(transfer)` is called when a parcel is stored."""

    def __init__(self, core: Core, routing: Routing, limits: Limits, commits: Commits) -> None:
        self._core = core
        self._routing = routing
        self._limits = limits
        self._commits = commits
        self._coming: dict[str, tuple[Parcel, Record]] = {}  # by channel: on its way, and in what
        self.copies = CopiesHere(core, commits, _for_queue)
        self.queue_of: Callable[[Transfer | TakeCopies], str] = lambda transfer: transfer.queue
        self.taken: Callable[[Transfer | TakeCopies, list[int]], Iterable[BaseRecord]] = lambda *_: ()
        self.came: Callable[[Transfer], None] = lambda _: None

    def take(self, transfer: Transfer, waiter: Waiter) -> Room | None:
        """Store a parcel. Returns the room that it must wait for, None = none. Raises CommandError, StoreFullError,
        TransactionRolledBackError: then nothing of it is stored."""
        if transfer.queue.startswith(SENT_SCHEME):
            self.copies.take(transfer, waiter)
            return None
        channel, number = transfer.channel, transfer.number
        self._check(channel, number)
        transaction = self._commits.begin()
        messages = self._messages(transfer)
        if transfer.queue:
            transaction.sends, transaction.takes_over = messages, True
        else:
            transaction.add([message for message in messages if not self._is_known(message)])
        for message in transaction.sends:
            if message.shared is not None:
                message.shared.others = sum(each.shared is message.shared for each in transaction.sends) - 1
        transaction.sends_to_durables = True
        _, stored_by_others = self._commits.add_copies(transaction)
        if stored_by_others:
            raise self._unsure(stored_by_others[0])
        room = self._limits.room_to_commit(transaction) if not transfer.queue else None
        if room is not None:
            return room
        parcel = Parcel(channel, number, count=max(len(transfer.messages), 1))
        if transfer.queue:
            for message in messages:
                message.seq = self._core.next_seq()
        transaction.brings = [*self.taken(transfer, [message.seq for message in messages]), parcel]
        self._core.memory.take(memory_bytes(transaction.sends + transaction.published))
        arriving = _Arriving(self._coming, parcel, waiter, "", partial(self.came, transfer))
        group = self._commits.commit(transaction, arriving, "")
        assert group is not None
        self._coming[channel] = parcel, group
        return None

    def fetch(self, command: TakeCopies, waiter: Waiter) -> None:
        """Store a parcel that names messages which were copied here. Raises CommandError."""
        core, channel, number = self._core, command.channel, command.number
        self._check(channel, number)
        queue = self.queue_of(command)
        if core.homes is not None:
            core.homes.check_taken(queue)
        seqs, moved = self.copies.fetched(command, queue)
        parcel = Parcel(channel, number, count=len(seqs))
        group = Group([moved, *self.taken(command, seqs), parcel])
        core.append_group(group, {}).confirms.append((_Arriving(self._coming, parcel, waiter, ""), group))
        self._coming[channel] = parcel, group
        core.wake()

    def _check(self, channel: str, number: int) -> None:
        """Raises CommandError where that parcel may not come."""
        last, _ = self._last(channel)
        if last is not None and last.number >= number:
            raise CommandError(f"parcel {number} of {channel[:200]} came before, or was closed", code=CLOSED)

    def close(self, command: CloseParcel, waiter: Waiter) -> None:
        """Answers how many messages that parcel had, when it is sure that this stays so."""
        channel, number = command.channel, command.number
        last, record = self._last(channel)
        if last is None or last.number < number:
            parcel, batch = Parcel(channel, number), self._core.journal.open
            self._core.journal.append_record(parcel)
            batch.confirms.append((_Arriving(self._coming, parcel, waiter, "0"), parcel))
            self._coming[channel] = parcel, parcel
            self._core.wake()
        else:
            found = last.count if last.number == number else 0
            self._core.when_durable(Answering(waiter, str(found)), record)
            self._core.wake()

    def _last(self, channel: str) -> tuple[Parcel | None, Record | None]:
        """The last parcel of that channel, and the record in which it is on its way, None = it is in the journal."""
        return self._coming.get(channel) or (self._core.state.parcels.last(channel), None)

    def _messages(self, transfer: Transfer) -> list[Message]:
        """The messages as they are stored here. Raises CommandError where one lives elsewhere."""
        homes, routing = self._core.homes, self._routing
        if transfer.queue:
            queue = self.queue_of(transfer)
            if homes is not None:
                homes.check_taken(queue)
            return [_for_queue(message, queue) for message in transfer.messages]
        found: list[Message] = []
        for message in transfer.messages:
            name = message.destination
            if homes is not None:
                homes.check(name)
            found += routing.copies(message, routing.audience(name), None) if is_topic(name) else [message]
        for message in found:
            message.seq = 0
        return found

    def _is_known(self, message: Message) -> bool:
        """Is it stored already, for a producer that repeated it? Raises CommandError where that is not sure."""
        name, id = message.queue_name, message.duplicate_id
        if not (message.persistent and id and is_queued(name) and self._core.is_duplicate(message)):
            return False
        if id in self._core.state.queue(name).duplicates_pending:
            raise self._unsure(message)
        return True

    @staticmethod
    def _unsure(message: Message) -> CommandError:
        return CommandError(
            f"a message with the same id is just being stored in {message.queue_name[:200]}: send the parcel again",
            code=UNSURE,
        )


def _for_queue(message: Message, queue: str) -> Message:
    if message.destination == queue:
        message.seq = 0
        return message
    copy = Copy.made_of(message, message.destination, message.properties)
    copy.queue_name, copy.original, copy.shared = queue, message, Sharing(None, encodes=False)
    return copy


class _Arriving:
    """Answers `waiter` when a parcel is in the journal or has failed, and takes the parcel out of `coming`."""

    def __init__(
        self,
        coming: dict[str, tuple[Parcel, Record]],
        parcel: Parcel,
        waiter: Waiter,
        result: str,
        came: Callable[[], None] | None = None,
    ) -> None:
        self._coming = coming
        self._parcel = parcel
        self._waiter = waiter
        self._result = result
        self._came = came

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._forget()
        if self._came is not None:
            self._came()
        self._waiter.done(self._result)

    def failed(self, error: Exception) -> None:
        self._forget()
        self._waiter.failed(error)

    def _forget(self) -> None:
        coming = self._coming.get(self._parcel.channel)
        if coming is not None and coming[0] is self._parcel:
            del self._coming[self._parcel.channel]
