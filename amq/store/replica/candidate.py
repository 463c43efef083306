"""A candidate: promise, seal, copy, compare-and-set.

Invariants: the seal is the last position that any of a fencing group has of the term of the record; before the record
is replaced nothing is set aside anywhere, and W members of the next group have all of the seal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any

from amq.store.replica.group import GroupPolicy, GroupRecord
from amq.store.replica.keeper import Keeper
from amq.store.replica.messages import (
    Adopt,
    Append,
    AskPromise,
    CompareAndSet,
    Fetched,
    FetchLog,
    Lacking,
    Lost,
    Promised,
    RefusedBallot,
    Say,
    Stored,
)
from amq.store.replica.stream import LOST_TICKS, LogStream


class CandidateState(Enum):
    """PROMISING  members are asked to refuse the old master
    FETCHING      this member gets what it lacks of the seal
    COPYING       the others get it
    DECIDING      the coordinator is asked to replace the record; the answer may be in doubt
    OVER          the record is another one, or ours
    """

    PROMISING = "promising"
    FETCHING = "fetching"
    COPYING = "copying"
    DECIDING = "deciding"
    OVER = "over"


class Candidate:
    """Member `me` with the claim `ballot`, which found `record` as `revision` after that claim. `keeper` is its own
    copy; `others` are members and spares that can be reached. The program around it carries out what `take` returns,
    after each call. `won` = the record of its term."""

    def __init__(
        self,
        me: str,
        ballot: int,
        record: GroupRecord,
        revision: int,
        keeper: Keeper,
        others: Iterable[str],
        policy: GroupPolicy,
    ) -> None:
        self.me, self.ballot, self.record, self.revision = me, ballot, record, revision
        self.state = CandidateState.PROMISING
        self.sealed = 0
        self.won: GroupRecord | None = None
        self._keeper = keeper
        self._others = sorted(others)
        self._policy = policy
        self._answers: dict[str, Promised] = {}
        self._source = me
        self._stream: LogStream | None = None
        self._next: GroupRecord | None = None
        self._ticks = 0
        self._out: list[Any] = []
        if ballot <= record.term:
            self._lose(f"the coordinator has term {record.term}")
        elif not record.term:
            self._decide(record.after(ballot, {me}, 0))
        elif me not in record.members or not self._has_all_before():
            self._lose("this member's copy is not among those of the newest record")
        else:
            self._ask()

    def take(self) -> list[Any]:
        """Take the requests that have gathered: Say, Supply, SupplyPiece, CompareAndSet, Lost."""
        out = self._out[:]
        self._out.clear()
        return out

    @property
    def missing(self) -> list[str]:
        """The members that have not done what this state waits for."""
        if self.state is CandidateState.FETCHING:
            return [self._source]
        done = set(self._answers)
        if self.state is CandidateState.COPYING:
            done = {member for member, position in self.stream.positions.items() if position >= self.sealed}
        return sorted(self.record.members - done)

    @property
    def stream(self) -> LogStream:
        assert self._stream is not None
        return self._stream

    def handle(self, member: str, message: Any) -> None:
        """Take an answer of `member`."""
        if self.state in (CandidateState.DECIDING, CandidateState.OVER):
            return
        if isinstance(message, RefusedBallot):
            if message.promised > self.ballot:
                self._lose(f"{member} promised ballot {message.promised} to another member")
        elif isinstance(message, Promised):
            self._promised(member, message)
        elif isinstance(message, Fetched):
            if self.state is CandidateState.FETCHING and message.term == self.record.term:
                write = Append(self.ballot, message.term, message.after, message.upto, message.data)
                self._out.append(Say(self.me, write))
        elif self.state is CandidateState.FETCHING and member == self.me:
            if isinstance(message, Stored) and message.term == self.record.term:
                self._fetch(message.position)
        elif self.state is CandidateState.COPYING and isinstance(message, (Stored, Lacking)):
            self.stream.handle(member, message)
            self._settle()

    def tick(self, gone: Collection[str] = ()) -> None:
        """Repeat what was lost on its way: call it now and then. `gone`: see `OtherCopies.gone`. Where all members that
        lack the seal are, nobody waits for them, so a pair whose master's process ended has a new one within a second.
        The group does not shrink for a connection that flaps: a dial that succeeds takes its member out of `gone`. Nor
        do members lose anything by it that are there after all: the compare-and-set decides, as after a long silence,
        and they join again. A master waits for LOST_TICKS, so that the restart of another member changes nothing."""
        self._ticks += 1
        if self.state is CandidateState.PROMISING:
            self._ask()
        elif self.state is CandidateState.FETCHING:
            self._out.append(Say(self.me, Adopt(self.ballot, self.record)))
            if self._ticks > LOST_TICKS:
                self._lose(f"{self._source}, which has the most, is silent")
        elif self.state is CandidateState.COPYING:
            self.stream.tick()
            self.look(gone)
        elif self.state is CandidateState.DECIDING:
            assert self._next is not None
            self._out.append(CompareAndSet(self.revision, self._next))

    def look(self, gone: Collection[str]) -> None:
        """Members may be `gone` now: see `tick`."""
        if self.state is CandidateState.COPYING:
            self._settle(frozenset(gone))

    def answered(self, revision: int, record: GroupRecord) -> None:
        """The coordinator has `record` as `revision`."""
        if self.state is CandidateState.DECIDING and record == self._next:
            self.state, self.won, self.revision = CandidateState.OVER, record, revision
        elif revision > self.revision:
            self._lose(f"the coordinator has term {record.term}")

    def _ask(self) -> None:
        for member in sorted(self.record.members - self._answers.keys()):
            self._out.append(Say(member, AskPromise(self.ballot)))

    def _promised(self, member: str, answer: Promised) -> None:
        if self.state is not CandidateState.PROMISING or answer.ballot != self.ballot:
            return
        if answer.term > self.record.term:
            self._lose(f"{member} has term {answer.term}: the record was old")
            return
        self._answers[member] = answer
        if self.me not in self._answers or not self.record.fences(self._answers):
            return
        record = self.record
        reached = {each: position for each in self._answers if (position := self._reached(each)) is not None}
        assert reached, "a group that fences has a copy that confirmed"
        self._source = max(sorted(reached), key=lambda each: reached[each])
        self.sealed = reached[self._source]
        self.state, self._ticks = CandidateState.FETCHING, 0
        self._out.append(Say(self.me, Adopt(self.ballot, record)))

    def _reached(self, member: str) -> int | None:
        """How far that copy has the term of the record. None: it lacks a part of what counts before."""
        answer, record = self._answers[member], self.record
        if answer.whole and answer.term == record.term:
            return answer.position
        return 0 if answer.whole and answer.term == record.before and answer.position >= record.sealed else None

    def _has_all_before(self) -> bool:
        keeper = self._keeper
        return (keeper.whole and keeper.term == self.record.term) or keeper.can_begin(self.record)

    def _fetch(self, position: int) -> None:
        if position < self.sealed:
            self._out.append(Say(self._source, FetchLog(self.ballot, self.record.term, position)))
            return
        self.state, self._ticks = CandidateState.COPYING, 0
        record = self.record
        self._stream = LogStream(self.me, self.ballot, record, {*record.members, *self._others}, self.sealed, self._out)

    def _settle(self, gone: frozenset[str] = frozenset()) -> None:
        """Where enough copies have the seal the record is replaced: W of the group as it is, or where too many stay
        silent, or are `gone`, those that are left, with spares in the place of others."""
        record = self.record
        having = {member for member, position in self.stream.positions.items() if position >= self.sealed}
        if self.me not in having:
            return
        left, spares = sorted(having & record.members), sorted(having - record.members)
        left += spares[: max(self._policy.members - len(left), 0)]
        same = record.after(self.ballot, record.members, self.sealed)
        smaller = record.after(self.ballot, left, self.sealed)
        if same.holds(having):
            self._decide(same)
        elif (self._ticks > LOST_TICKS or record.members - having <= gone) and self._policy.allows(smaller):
            self._decide(smaller)

    def _decide(self, record: GroupRecord) -> None:
        self.state, self._next = CandidateState.DECIDING, record
        self._out.append(CompareAndSet(self.revision, record))

    def _lose(self, reason: str) -> None:
        if self.state is not CandidateState.OVER:
            self.state = CandidateState.OVER
            self._out.append(Lost(reason))
