"""CopiesHere: copies of messages of which another store is the home still, and this one will be.

They are in `sent://NAME`, as what prepared transactions sent is: nobody gets anything of it, nothing expires there, and
no journal needs to know of them. A copy comes into its queue with the parcel that says so, same seq, same place
(`Moved`). Nobody else may: what no prepared transaction has sent there, and no move is about to fetch, is thrown away.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable

from amq.broker.core import Core
from amq.broker.names import SUBSCRIPTION_SCHEME
from amq.broker.queues.queue import Queue
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.transaction import memory_bytes
from amq.broker.transfer.copying_ahead import AS, FIRST, SUBSCRIPTION
from amq.broker.waiters import Answering
from amq.core.errors import CommandError, StoreFullError
from amq.core.message import Message
from amq.journal.batch import Waiter
from amq.journal.hidden import SENT_SCHEME, real_name
from amq.journal.records import PURGED, Consumed, Moved
from amq.protocols.commands import TakeCopies, Transfer

COPIES_GONE = "COPIES_GONE"  # code: the messages must come as a whole
PURGED_MAX = 10_000  # seqs in a record


class CopiesHere:
    """`for_queue(message, queue)` = a message as that queue of the journal gets it."""

    def __init__(self, core: Core, commits: Commits, for_queue: Callable[[Message, str], Message]) -> None:
        self._core = core
        self._commits = commits
        self._for_queue = for_queue
        self._sources: dict[str, str] = {}  # by queue: the destination whose move fetches it

    def begin(self) -> None:
        """A mastership begins. Copies for a durable subscription that is not here yet have come for nothing."""
        for name in self._core.state.queues:
            if name.startswith(SENT_SCHEME):
                self._sources[name] = real_name(name)
        self.tidy()

    def take(self, transfer: Transfer, waiter: Waiter) -> None:
        """Store copies. The answer is the seq of the first, those of the others follow, and the name of the queue into
        which they may come. Raises CommandError, StoreFullError."""
        core, homes, extra = self._core, self._core.homes, json.loads(transfer.extra)
        real, definition = transfer.queue.removeprefix(SENT_SCHEME), extra.get(SUBSCRIPTION)
        source = real if definition is None else definition["topics"][0]
        if homes is None or not transfer.messages:
            raise CommandError("this store is in no cluster, and takes no copies", code="MOVED")
        homes.check_copied(source)
        if core.journal.full:
            raise StoreFullError("the store's disk is full: it takes no copies")
        if definition is not None:
            real = extra.get(AS) or self._subscription(definition)
        name = SENT_SCHEME + real
        if extra.get(FIRST):
            self._purge(name)
        self._sources[name] = source
        messages = [self._for_queue(message, real) for message in transfer.messages]
        first = core.next_seq(len(messages))
        for seq, message in enumerate(messages, first):
            message.seq, message.persistent = seq, True
            message.send_to(name)
        transaction = self._commits.begin()
        transaction.sends, transaction.takes_over, transaction.sends_to_durables = messages, True, True
        core.memory.take(memory_bytes(messages))
        self._commits.commit(transaction, Answering(waiter, f"{first} {real}"), "")

    def _subscription(self, definition: dict[str, str]) -> str:
        """The name that the queue of a durable subscription gets when it begins here."""
        return f"{SUBSCRIPTION_SCHEME}{definition['client_id']}:{definition['name']}:{self._core.next_seq()}"

    def fetched(self, command: TakeCopies, queue: str) -> tuple[list[int], Moved]:
        """The seqs of the copies that `command` fetches for that queue of the journal, and the record of it. Raises
        CommandError where one is not here."""
        found = self._core.state.queues.get(SENT_SCHEME + queue)
        seqs = [seq for first, count in command.ranges for seq in range(first, first + count)]
        if found is None or found.messages or not _are_here(found, seqs) or {*seqs} & self._prepared(found.name):
            raise CommandError(f"copies for {queue[:200]} are gone: send the messages", code=COPIES_GONE)
        return seqs, Moved(SENT_SCHEME + queue, queue, seqs)

    def tidy(self) -> None:
        """A table is in force: throw away what no move will fetch any more."""
        homes = self._core.homes
        for name, source in [*self._sources.items()]:
            if homes is None or not homes.awaits(source):
                del self._sources[name]
                self._purge(name)

    def _purge(self, name: str) -> None:
        queue = self._core.state.queues.get(name)
        if queue is None or not queue.stored:
            return
        prepared = self._prepared(name)
        seqs = [seq for seq in _seqs(queue) if seq not in prepared]
        for at in range(0, len(seqs), PURGED_MAX):
            self._core.journal.append_record(Consumed(name, PURGED, seqs[at : at + PURGED_MAX]))
        self._core.wake()

    def _prepared(self, name: str) -> set[int]:
        """Seqs of what prepared transactions have sent to the queue of which that is the hidden one."""
        real = real_name(name)
        return {seq for prepared, _ in self._core.state.prepared.values() for seq in prepared.sends.get(real, ())}


def _seqs(queue: Queue) -> array[int]:
    found = array("Q")
    for backlog in queue.backlogs.values():
        for chunk in backlog.chunks:
            found.extend(chunk.seqs)
    return found


def _are_here(queue: Queue, seqs: Iterable[int]) -> bool:
    """Do all of `seqs`, by age, wait there on disk?"""
    wanted = {*seqs}
    for backlog in queue.backlogs.values():
        for chunk in backlog.chunks:
            if wanted:
                wanted.difference_update(chunk.seqs)
    return not wanted
