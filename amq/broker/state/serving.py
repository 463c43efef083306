"""The things that a state tells the broker that serves from it."""

from __future__ import annotations

from typing import Protocol

from amq.broker.queues.queue import Queue
from amq.core.message import Message
from amq.journal.records import Copies, Group, Marker, Prepared, Trimmed
from amq.journal.records.message import Run


class Server(Protocol):
    """The broker that serves from a state, and hears at once what changes in it."""

    def made(self, queue: Queue) -> None:
        """`queue` has come into being."""

    def forgotten(self, queue: Queue) -> None:
        """`queue` was idle, and is in no table any more."""

    def keeps(self, queue: Queue, message: Message) -> bool:
        """`message` has just been stored. Does it stay in memory? If not, it waits on disk alone."""

    def arrived(self, queue: Queue) -> None:
        """Messages are stored in `queue` that came in no such way."""

    def was_staged(self, run: Run) -> None:
        """The messages of `run` wait on disk for the end of their prepared transaction."""

    def was_prepared(self, prepared: Prepared) -> None:
        """It is durable."""

    def was_resolved(self, prepared: Prepared, committed: bool) -> None:
        """A prepared transaction has ended."""

    def was_marked(self, marker: Marker) -> None:
        """A batch is committed."""

    def was_committed(self, group: Group) -> None:
        """A commit that has a name took place."""

    def was_copied(self, copies: Copies) -> None:
        """Compaction has copied messages forward."""

    def was_trimmed(self, mark: Trimmed) -> None:
        """The segments that `mark` gives up count no more."""


class NoServer:
    """Nobody is served: nothing stays in memory, and nobody needs to hear of anything."""

    def made(self, queue: Queue) -> None: ...
    def forgotten(self, queue: Queue) -> None: ...
    def keeps(self, queue: Queue, message: Message) -> bool:  # noqa: ARG002
        return False

    def arrived(self, queue: Queue) -> None: ...
    def was_staged(self, run: Run) -> None: ...
    def was_prepared(self, prepared: Prepared) -> None: ...
    def was_resolved(self, prepared: Prepared, committed: bool) -> None: ...
    def was_marked(self, marker: Marker) -> None: ...
    def was_committed(self, group: Group) -> None: ...
    def was_copied(self, copies: Copies) -> None: ...
    def was_trimmed(self, mark: Trimmed) -> None: ...
