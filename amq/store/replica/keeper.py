"""The copy of one member: what it promised, and whose writes it takes.

Invariants: an answer leaves when everything that it says is durable; a copy that promised a ballot takes nothing of an
earlier one, ever; what it has of a term is a prefix of the log of that term; it sets bytes aside only because the
coordinator's record says that they do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from amq.store.replica.group import GroupRecord
from amq.store.replica.messages import (
    Adopt,
    Append,
    AskPromise,
    DiskRequest,
    FetchLog,
    KeepData,
    KeepMark,
    KeepPiece,
    KeepSegments,
    Lacking,
    Piece,
    Promised,
    ReadBack,
    RefusedBallot,
    Renew,
    Renewed,
    SetAside,
    StartOver,
    Stored,
    Trim,
)


@dataclass(slots=True)
class KeptState:
    """The state of a copy when it starts. `position` is that of the last write which is there whole."""

    promised: int = 0
    term: int = 0
    whole: bool = True
    position: int = 0
    epoch: int = 0


class CopyWork(NamedTuple):
    """Carry out `requests` in this order, then send `answer`, None = none; a ReadBack makes the answer itself. After an
    error of the disk the copy must stop."""

    requests: tuple[DiskRequest, ...]
    answer: Any


class Keeper:
    """The copy of one member. Messages may come late, twice and in any order."""

    def __init__(self, kept: KeptState) -> None:
        self.promised = kept.promised
        self.term = kept.term
        self.whole = kept.whole
        self.position = kept.position
        self.epoch = kept.epoch
        self._pieces = 0  # of the copy that is under way; a member that starts anew begins it anew

    def handle(self, message: Any) -> CopyWork:
        """Carry out `message`: the requests to the disk, and the answer."""
        if message.ballot < self.promised:
            return CopyWork((), RefusedBallot(self.promised))
        if isinstance(message, Append):
            return self._append(message)
        if isinstance(message, Adopt):
            return self._adopt(message)
        if isinstance(message, Piece):
            return self._take_piece(message)
        marked = self._promise(message.ballot)
        if isinstance(message, AskPromise):
            return CopyWork(marked, Promised(message.ballot, self.term, self.position, self.whole))
        if isinstance(message, Renew):
            return CopyWork(marked, Renewed(*message))
        if isinstance(message, Trim):
            has = self._has(message.term) and message.position <= self.position
            return CopyWork((*marked, KeepSegments(message.position, message.names)) if has else marked, None)
        assert isinstance(message, FetchLog)
        if not self._has(message.term) or message.after > self.position:
            return CopyWork(marked, self._lacking())
        return CopyWork((*marked, ReadBack(message.term, message.after)), None)

    def can_begin(self, record: GroupRecord) -> bool:
        """Whether this copy has all that counts before the term of `record`."""
        return self._has(record.before) and self.position >= record.sealed

    def _promise(self, ballot: int) -> tuple[DiskRequest, ...]:
        if ballot == self.promised:
            return ()
        self.promised = ballot
        return (self._mark(),)

    def _append(self, message: Append) -> CopyWork:
        marked = self._promise(message.ballot)
        if not self._has(message.term) or message.after > self.position:
            return CopyWork(marked, self._lacking())
        if message.upto <= self.position:
            return CopyWork(marked, Stored(self.term, self.position))
        if message.after < self.position:
            return CopyWork(marked, self._lacking())
        self.position = message.upto
        return CopyWork((*marked, KeepData(message.upto, message.data)), Stored(self.term, self.position))

    def _adopt(self, message: Adopt) -> CopyWork:
        record = message.record
        if self.term == record.term or not self.can_begin(record):
            marked = self._promise(message.ballot)
            return CopyWork(marked, Stored(self.term, self.position) if self._has(record.term) else self._lacking())
        self.promised, self.term, self.position, self.epoch = message.ballot, record.term, 0, record.epoch
        return CopyWork((SetAside(record.sealed), self._mark()), Stored(self.term, 0))

    def _take_piece(self, message: Piece) -> CopyWork:
        record = message.record
        if self._has(record.term) or self.term > record.term or self.can_begin(record):
            return self._adopt(Adopt(message.ballot, record))
        marked: tuple[DiskRequest, ...] = ()
        if self.term != record.term or (message.number == self._pieces == 0):
            self.promised, self.term, self.epoch = message.ballot, record.term, record.epoch
            self.whole, self.position, self._pieces = False, 0, 0
            marked = (self._mark(), StartOver())  # in this order: half of a log never passes for a whole one
        if message.number != self._pieces:
            return CopyWork(marked, self._lacking())
        self._pieces += 1
        if not message.last:
            return CopyWork((*marked, KeepPiece(message.data)), self._lacking())
        self.whole, self._pieces = True, 0
        return CopyWork((*marked, KeepPiece(message.data), self._mark()), Stored(self.term, 0))

    def _has(self, term: int) -> bool:
        return self.whole and self.term == term

    def _lacking(self) -> Lacking:
        return Lacking(self.term, self.position if self.whole else self._pieces, self.whole)

    def _mark(self) -> KeepMark:
        return KeepMark(self.promised, self.term, self.whole, self.epoch)
