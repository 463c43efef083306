"""The four ports by which a member knows its store. `amq.store.open` makes them out of the name of a store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from amq.store.board import Board
from amq.store.copies import CopiesNow
from amq.store.election import Election
from amq.store.epoch import Epochs
from amq.store.segment_log import SegmentFormat, SegmentLog


class EventLoop(Protocol):
    """The part of an event loop that a store uses. Any thread may call `call_soon_threadsafe`."""

    def call_soon(self, callback: Callable[..., Any], /, *args: Any) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[..., Any], /, *args: Any) -> Any: ...

    def add_reader(self, fd: int, callback: Callable[..., Any], /, *args: Any) -> Any: ...

    def remove_reader(self, fd: int, /) -> Any: ...


def _no_part(_segments: SegmentFormat, _name: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class StoreCopies:
    """The copies of a replicated store, by their ids.

    counting  copies that count: those of the newest record
    needed    how many of them must have a write before it is confirmed
    running   those whose member runs now, as far as the coordinator knows
    """

    counting: list[str]
    needed: int
    running: list[str]


def _no_copies() -> None:
    return None


def _hears_nothing(_loop: EventLoop | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Store:
    """The store `name`, as one member sees it. The adapters of the ports may be of different kinds: a lock alone in a
    database is an election and a board there, beside a log and epochs in files. `elsewhere(url)` leads to the election
    of brokers that have their lock at `url`; it may raise ConfigError.

    While the block of `take_part(segments, name)` runs, the broker `name` does what the store asks of each member that
    may become master: it keeps a copy, where the store is made of copies. It may raise StoreError, OSError.
    `copies()` = what is known of these, None where the store is not made of copies; it may raise StoreError, OSError.
    `copies_seen()` = how the master that takes part here sees them, None = it is not the master; it waits for nothing.
    `hear_on(loop)`, called in that loop: a log that is patient hears there what became of appends; None = no more.
    """

    name: str
    election: Election
    epochs: Epochs
    log: SegmentLog
    board: Board
    elsewhere: Callable[[str], Election]
    take_part: Callable[[SegmentFormat, str], AbstractContextManager[None]] = _no_part
    copies: Callable[[], StoreCopies | None] = _no_copies
    copies_seen: Callable[[], CopiesNow | None] = _no_copies
    hear_on: Callable[[EventLoop | None], None] = _hears_nothing

    def make(self) -> None:
        """Make what is missing of the store, inside what exists. Raises StoreError where a person must act, OSError."""
        self.election.make()
        self.log.make()
