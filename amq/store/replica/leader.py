"""The master of one term: what it may confirm, and which members count.

Invariants: a position is confirmed when W members of S have it, of the record that the coordinator has; while a change
of the record is in doubt, of both. A record is put to the coordinator only if W of its S have everything that was
confirmed. A question is proved when W members of S have answered it, of the same records: whoever is elected before it
is asked has promises from a group that has a member in common with these, and that member refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amq.store.replica.group import GroupPolicy, GroupRecord
from amq.store.replica.messages import CompareAndSet, Confirm, Lost, RefusedBallot, Renew, Renewed, Say, Stored
from amq.store.replica.stream import LogStream


class Leader:
    """The master `me` of `record`, which the coordinator has as `revision`. `others`: members and spares that can be
    reached. The program around it carries out what `take` returns, after each call."""

    def __init__(self, me: str, record: GroupRecord, revision: int, others: Iterable[str], policy: GroupPolicy) -> None:
        self.me = me
        self.record = record
        self.revision = revision
        self.pending: GroupRecord | None = None  # it is to be the record, and where it was asked for, may be by now
        self.confirmed = 0
        self.proved = 0  # the last question that proves this mastership
        self._question = 0
        self._renewed: dict[str, int] = {}  # the last question that each member of S has answered
        self._asked = False  # the coordinator was asked for `pending`
        self._lost = False
        self._policy = policy
        self._out: list[Any] = []
        self.stream = LogStream(me, record.term, record, {me, *record.members, *others}, 0, self._out)

    def take(self) -> list[Any]:
        """Take the requests that have gathered: Say, Supply, SupplyPiece, Confirm, CompareAndSet, Lost."""
        out = self._out[:]
        self._out.clear()
        return out

    @property
    def is_ready(self) -> bool:
        """Whether its own copy has begun this term: only then the log may grow."""
        return self.me in self.stream.positions

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is confirmed now: fewer members answer, or count, than must have a write."""
        heard = self.stream.is_heard
        return not self._policy.allows(self.record) or not all(
            record.holds([member for member in record.members if heard(member)]) for record in self._counting()
        )

    def append(self, upto: int, size: int, data: Any) -> None:
        """The log of this term grows by `data`, up to `upto`."""
        assert self.is_ready
        self.stream.append(upto, size, data)

    def prove(self) -> int:
        """Ask S whether this member is still the master. Returns the number of the question: where `proved` reaches it,
        no other member was elected before this call."""
        self._question += 1
        self._renew()
        return self._question

    def handle(self, member: str, message: Any) -> None:
        """Take an answer of `member`."""
        if isinstance(message, Renewed):
            self._take_renewed(member, message)
            return
        if isinstance(message, RefusedBallot):
            if message.promised > self.record.term:
                self._lose(f"{member} promised ballot {message.promised} to another member")
            return
        self.stream.handle(member, message)
        if not isinstance(message, Stored) or message.position > self.confirmed:
            self._confirm()
        if self.pending is not None:
            self._propose()

    def tick(self) -> None:
        """Repeat what was lost on its way: call it now and then."""
        self.stream.tick()
        if self._question > self.proved:
            self._renew()
        self.stream.forget(frozenset({self.me}).union(*(record.members for record in self._counting())))
        if not self._asked:
            members = self._wanted()
            self.pending = None if members == self.record.members else self.record.regrouped(members)
        else:
            assert self.pending is not None
            self._out.append(CompareAndSet(self.revision, self.pending))
        self._confirm()
        self._propose()

    def answered(self, revision: int, record: GroupRecord) -> None:
        """The coordinator has `record` as `revision`."""
        if self.pending is not None and record == self.pending:
            self.record, self.revision, self.pending, self._asked = record, revision, None, False
            self._confirm()
        elif revision > self.revision:
            self._lose(f"the coordinator has term {record.term}")

    def _propose(self) -> None:
        """Ask the coordinator for the pending record, as soon as its members have what was confirmed. Nothing is
        confirmed without them meanwhile, so they get there."""
        if self.pending is None or self._asked:
            return
        reached = self.pending.reach(self.stream.positions)
        if reached is not None and reached >= self.confirmed:
            self._asked = True
            self._out.append(CompareAndSet(self.revision, self.pending))

    def _wanted(self) -> frozenset[str]:
        """The members that this group should have."""
        members, heard = self.record.members, self.stream.is_heard
        here = {member for member in members & self.stream.positions.keys() if heard(member)}
        spares = [member for member in sorted(self.stream.positions) if self.stream.is_current(member)]
        spares = [member for member in spares if member not in members]
        if spares and len(members) < self._policy.members:
            return members | {spares[0]}
        if spares and (gone := sorted(member for member in members if not heard(member))):
            return members - {gone[0]} | {spares[0]}
        if not self.record.holds(here) and self.me in here and self._policy.allows(self.record.regrouped(here)):
            return frozenset(here)
        return members

    def _renew(self) -> None:
        for member in sorted(frozenset().union(*(record.members for record in self._counting()))):
            self._out.append(Say(member, Renew(self.record.term, self._question)))

    def _take_renewed(self, member: str, answer: Renewed) -> None:
        if answer.ballot != self.record.term or self._lost:
            return
        counting = self._counting()
        members = frozenset().union(*(record.members for record in counting))
        self._renewed = {each: number for each, number in self._renewed.items() if each in members}
        if member not in members:
            return
        self._renewed[member] = max(answer.number, self._renewed.get(member, 0))
        self.proved = max(self.proved, min(record.reach(self._renewed) or 0 for record in counting))

    def _confirm(self) -> None:
        if self._lost or not self._policy.allows(self.record):
            return
        reached = [record.reach(self.stream.positions) for record in self._counting()]
        position = min([-1 if each is None else each for each in reached])
        if position > self.confirmed:
            self.confirmed = position
            self._out.append(Confirm(position))

    def _counting(self) -> list[GroupRecord]:
        """The records by which a write must be held."""
        return [self.record] if self.pending is None else [self.record, self.pending]

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._out.append(Lost(reason))
