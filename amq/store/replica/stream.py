"""A stream: one author brings the copies of all members up to the end of the log of one term.

A leader does so for its own term, with no end in sight; a candidate for the term before, up to its seal. Invariants:
`positions` has a member only when its copy has begun the term of the record, with all that counts before; what is on
its way to a member, or waits for it in memory, is bounded: after that the member is supplied from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from amq.store.replica.group import GroupRecord
from amq.store.replica.messages import Adopt, Append, Lacking, Piece, Say, Stored, Supply, SupplyPiece

IN_FLIGHT_BYTES_MAX = 8 << 20  # to one member
LOST_TICKS = 3  # a member that is silent for this time counts as lost
FORGOTTEN_TICKS = 100  # a spare that is silent for this time is forgotten: each new disk has another id


@dataclass(slots=True)
class _Peer:
    """A member as its author sees it.

    acked       its last answer: durable up to here; None = it has not begun this term
    sent        it gets what follows this; None = nothing before it has answered
    flying      end and size of each write that is on its way; `bytes` = of all
    ticks       since it said something
    stalled     its `acked` at the last tick
    behind      ticks since it had what was the end one tick before
    """

    acked: int | None = None
    sent: int | None = None
    flying: deque[tuple[int, int]] = field(default_factory=deque)
    bytes: int = 0
    ticks: int = 0
    stalled: int | None = None
    supplied: bool = True
    behind: int = 0

    def rewind(self, position: int) -> None:
        self.sent = position
        self.flying.clear()
        self.bytes = 0


class LogStream:
    """The log of `record.term` up to `end`, for `members`, by `me`, the author of `ballot`. `out` gets what is to be
    done. A copy that lacks what counts before the term gets it in pieces.

    The copy of `me` gets every write at once, in order, so it is never supplied: the others are supplied from it.
    """

    def __init__(
        self, me: str, ballot: int, record: GroupRecord, members: Iterable[str], end: int, out: list[Any]
    ) -> None:
        self.me = me
        self.ballot = ballot
        self.record = record
        self.end = end
        self._end_before = end  # at the last tick
        self.positions: dict[str, int] = {}
        self._out = out
        self._peers: dict[str, _Peer] = {}
        for member in sorted(members):
            self.meet(member)

    def meet(self, member: str) -> None:
        """`member` can be reached, perhaps again."""
        peer = self._peers.setdefault(member, _Peer())
        peer.ticks = 0
        self._ask(member)

    def knows(self, member: str) -> bool:
        return member in self._peers

    def is_heard(self, member: str) -> bool:
        """Whether `member` answers."""
        peer = self._peers.get(member)
        return peer is not None and peer.ticks < LOST_TICKS

    def silent_ticks(self, member: str) -> int:
        """For how many ticks `member` has not answered; 0 = it does."""
        ticks = self._peers[member].ticks
        return ticks if ticks >= LOST_TICKS else 0

    def behind_ticks(self, member: str) -> int:
        """For how many ticks `member` has lacked something that was there a tick before."""
        return self._peers[member].behind

    @property
    def members(self) -> list[str]:
        """All that can be reached, or were lately."""
        return list(self._peers)

    def forget(self, keep: Collection[str]) -> None:
        """Forget members that have long been silent, except those in `keep`."""
        for member in [each for each, peer in self._peers.items() if peer.ticks >= FORGOTTEN_TICKS]:
            if member not in keep:
                del self._peers[member]
                self.positions.pop(member, None)

    def append(self, upto: int, size: int, data: Any) -> None:
        """The log grows by `data` of `size` bytes."""
        after, self.end = self.end, upto
        message = Append(self.ballot, self.record.term, after, upto, data)
        for member, peer in self._peers.items():
            if peer.sent == after and (member == self.me or peer.bytes + size <= IN_FLIGHT_BYTES_MAX):
                self._send(member, peer, size, message)

    def handle(self, member: str, message: Any) -> None:
        """`member` says Stored or Lacking."""
        peer = self._peers.get(member)
        if peer is None:
            return
        peer.ticks = 0
        if isinstance(message, Stored) and message.term == self.record.term:
            self._stored(member, peer, message.position)
        elif isinstance(message, Stored) and message.term == self.record.before and peer.acked is None:
            self._finish_before(member, message.position)
        elif isinstance(message, Lacking):
            self._lacks(member, peer, message)

    def is_current(self, member: str) -> bool:
        """Whether `member` answers, and is sent each write as it comes."""
        peer = self._peers.get(member)
        return peer is not None and peer.ticks < LOST_TICKS and peer.sent == self.end

    def supplied(self, member: str, term: int, after: int, upto: int, size: int, data: Any) -> None:
        """Send the data that a Supply asked for."""
        peer = self._peers.get(member)
        if peer is None:
            return
        peer.supplied = True
        if term != self.record.term:
            if peer.acked is None:
                self._out.append(Say(member, Append(self.ballot, term, after, upto, data)))
        elif peer.sent == after and upto > after:
            self._send(member, peer, size, Append(self.ballot, term, after, upto, data))
            self._supply(member, peer)

    def supplied_piece(self, member: str, number: int, last: bool, data: Any) -> None:
        """Send the part that a SupplyPiece asked for."""
        self._out.append(Say(member, Piece(self.ballot, self.record, number, last, data)))

    def tick(self) -> None:
        """Send again what was lost on its way: call it now and then."""
        for member, peer in self._peers.items():
            peer.ticks += 1
            peer.supplied = True
            level = peer.acked is not None and peer.acked >= self._end_before
            peer.behind = 0 if level else peer.behind + 1
            if peer.acked is None or peer.ticks > 1:
                self._ask(member)
            elif peer.acked < self.end and peer.stalled == peer.acked and member != self.me:
                peer.rewind(peer.acked)
                self._supply(member, peer)
            peer.stalled = peer.acked
        self._end_before = self.end

    def _ask(self, member: str) -> None:
        self._out.append(Say(member, Adopt(self.ballot, self.record)))

    def _stored(self, member: str, peer: _Peer, position: int) -> None:
        if peer.acked is None or peer.sent is None:
            peer.rewind(position)
        peer.acked = position if peer.acked is None else max(peer.acked, position)
        self.positions[member] = peer.acked
        while peer.flying and peer.flying[0][0] <= peer.acked:
            peer.bytes -= peer.flying.popleft()[1]
        if peer.sent is not None and peer.sent < peer.acked:
            peer.rewind(peer.acked)
        self._supply(member, peer)

    def _lacks(self, member: str, peer: _Peer, message: Lacking) -> None:
        if message.whole and message.term == self.record.term:
            peer.rewind(max(message.position, peer.acked or 0))
            self._supply(member, peer)
        elif message.whole and message.term == self.record.before and peer.acked is None:
            self._finish_before(member, message.position)
        elif message.term <= self.record.term and peer.acked is None:
            mine = message.term == self.record.term and not message.whole
            self._out.append(SupplyPiece(member, message.position if mine else 0))

    def _supply(self, member: str, peer: _Peer) -> None:
        """Supply the member from the log if it lacks writes and none of them is on its way."""
        if member == self.me or peer.sent is None or peer.sent == self.end:
            return
        if peer.bytes < IN_FLIGHT_BYTES_MAX // 2 and peer.supplied:
            peer.supplied = False
            self._out.append(Supply(member, self.record.term, peer.sent))

    def _finish_before(self, member: str, position: int) -> None:
        """Whether it lacks only the end of the term before."""
        if position < self.record.sealed:
            self._out.append(Supply(member, self.record.before, position))
        else:
            self._ask(member)

    def _send(self, member: str, peer: _Peer, size: int, message: Append) -> None:
        peer.sent = message.upto
        peer.flying.append((message.upto, size))
        peer.bytes += size
        self._out.append(Say(member, message))
