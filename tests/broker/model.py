"""What a client may believe of its messages: an independent, simple model of the broker, without journal, batches or
credit.

Each message has three answers of NO, MAYBE, YES: is it stored, is it gone, was it moved to the dead-letter queue. A
request makes MAYBE of them, a receipt or a delivery YES; a crash lets the store decide what was MAYBE, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

DLQ = "DLQ."


class Answer(Enum):
    NO = 0
    MAYBE = 1
    YES = 2


NO, MAYBE, YES = Answer.NO, Answer.MAYBE, Answer.YES


@dataclass(eq=False)
class Item:
    """One message. `held` = a consumer has it, or an open transaction that acknowledges it."""

    body: bytes
    queue: str
    persistent: bool
    expires_ms: int = 0
    duplicate_id: str = ""
    stored: Answer = MAYBE
    gone: Answer = NO
    moved: Answer = NO
    held: bool = False
    deliveries: int = 0
    failures: int = 0
    overdue: bool = False
    may_stay: bool = False  # the disk was full while its move to the dead-letter queue was under way
    seq: int = 0

    @property
    def place(self) -> str:
        """Where it is, as far as that is known."""
        return DLQ + self.queue if self.moved is YES else self.queue

    def is_moved(self) -> None:
        """It is known to be on the dead-letter queue, where its count starts anew."""
        if self.moved is not YES:
            self.moved = YES
            self.deliveries = self.failures = 0


@dataclass(eq=False)
class Tx:
    """A transaction. `committed` is NO until its commit is asked for."""

    name: str
    outcome_id: str
    sends: list[Item] = field(default_factory=list)
    acks: list[Item] = field(default_factory=list)
    nacks: list[Item] = field(default_factory=list)
    committed: Answer = NO
    refused: bool = False  # somebody learned that it never took place

    def settle(self) -> None:
        """It is known to have taken place."""
        self.committed = YES
        for item in self.sends:
            item.stored = YES
        for item in self.acks:
            item.gone = YES


@dataclass(eq=False)
class Sub:
    """A subscription and what it holds, in order of delivery."""

    queue: str
    ack: str
    prefetch: int
    held: list[Item] = field(default_factory=list)


class Model:
    """`limit`, `moves_expired`, the windows and `drops` (the oldest at a queue's limit) are the broker's options.
    `full` = the disk is below its floor.
    """

    def __init__(
        self, limit: int, moves_expired: bool, duplicate_window: int, outcome_window: int, drops: bool = False
    ) -> None:
        self.limit = limit
        self.moves_expired = moves_expired
        self.duplicate_window = duplicate_window
        self.outcome_window = outcome_window
        self.drops = drops
        self.full = False
        self.now_ms = 0
        self.items: dict[bytes, Item] = {}
        self.sent: list[Item] = []  # persistent ones, in the order in which the broker took them
        self.commits: list[Tx] = []  # in that order too

    # -- what clients do ----------------------------------------------------------------------------------------------

    def took(self, item: Item) -> None:
        """The broker did not refuse the send."""
        self.items[item.body] = item
        self.time_is(self.now_ms, [item])
        if item.persistent:
            self.sent.append(item)
        else:
            item.stored = YES

    def ids(self, queue: str) -> list[str]:
        """Producer-given ids of the queue, oldest first, each once, at its latest use."""
        found: dict[str, None] = {}
        for item in self.sent:
            if item.queue == queue and item.duplicate_id:
                found.pop(item.duplicate_id, None)
                found[item.duplicate_id] = None
        return list(found)

    def must_be_duplicate(self, queue: str, duplicate_id: str) -> bool:
        return bool(duplicate_id) and duplicate_id in self.ids(queue)[-self.duplicate_window :]

    def may_be_duplicate(self, queue: str, duplicate_id: str) -> bool:
        """Outside the window, but perhaps those that would push it out are still on their way."""
        return bool(duplicate_id) and duplicate_id in self.ids(queue)

    def delivered(self, item: Item, sub: Sub, redelivered: int) -> None:
        """The broker handed `item` to a consumer."""
        assert item.stored is not NO, f"{item}: delivered and never sent"
        assert item.gone is NO, f"{item}: came back after it was acknowledged"
        assert not item.held, f"{item}: delivered to two"
        if sub.queue != item.queue:
            assert sub.queue == DLQ + item.queue
            assert item.moved is not NO or self._may_move(item), f"{item}: on the dead-letter queue without a reason"
            item.is_moved()
        else:
            assert item.moved is not YES, f"{item}: back from the dead-letter queue"
            item.moved = NO
        assert not item.overdue or item.moved is YES, f"{item}: delivered too late"
        assert redelivered == item.deliveries, f"{item}: redelivered {redelivered}"
        item.stored = YES
        if sub.ack == "auto":
            item.gone = MAYBE if item.persistent else YES
        else:
            item.held = True
            sub.held.append(item)
            assert len(sub.held) <= sub.prefetch

    def settled(self, sub: Sub, item: Item) -> list[Item]:
        """An acknowledgement or refusal of `item` covers these; the consumer holds them no more."""
        through = sub.held.index(item)
        covered = sub.held[: through + 1] if sub.ack == "client" else [item]
        sub.held = [each for each in sub.held if each not in covered]
        return covered

    def acknowledged(self, items: Iterable[Item]) -> None:
        for item in items:
            item.held = False
            item.gone = MAYBE if item.persistent else YES

    def returned(self, items: Iterable[Item], failed: Iterable[Item], refused: bool = False) -> None:
        """They come back unacknowledged."""
        failed = list(failed)
        for item in items:
            item.held = False
            item.deliveries += 1
            item.failures += item in failed
            if (refused or 0 <= self.limit < item.failures) and item.moved is NO:
                if not item.persistent:
                    item.is_moved()
                elif not self.full:
                    item.moved, item.may_stay = MAYBE, False

    def refusal_is_confirmed(self, items: Iterable[Item]) -> None:
        """They have moved, unless the disk was full before the broker had read their bodies."""
        for item in items:
            if item.moved is MAYBE and not item.may_stay:
                item.is_moved()

    def _may_move(self, item: Item) -> bool:
        """To the dead-letter queue, for another reason than that a client refused it or failed."""
        return (item.overdue and self.moves_expired) or self.drops

    def rolled_back(self, tx: Tx) -> None:
        for item in tx.sends:
            item.stored = NO
        self.returned(tx.acks + tx.nacks, tx.acks + tx.nacks)

    def committing(self, tx: Tx) -> None:
        """The broker did not refuse the commit."""
        tx.committed = MAYBE
        self.commits.append(tx)
        for item in tx.sends:
            self.took(item)
        self.acknowledged(tx.acks)
        self.returned(tx.nacks, tx.nacks, refused=True)

    def time_is(self, now_ms: int, items: Iterable[Item] | None = None) -> None:
        self.now_ms = now_ms
        for item in self.items.values() if items is None else items:
            item.overdue = bool(item.expires_ms) and item.expires_ms <= now_ms

    def disk_is(self, full: bool) -> None:
        self.full = full
        for item in self.items.values():
            item.may_stay |= full and item.persistent and item.moved is MAYBE

    # -- what the store shows -----------------------------------------------------------------------------------------

    def at_rest(self, found: dict[str, set[bytes]], outcomes: list[str], ids: dict[str, list[str]]) -> None:
        """Nothing is on its way, nobody was refused, expired messages were swept: everything asked for took place."""
        for tx in self.commits:
            tx.settle()
        for item in self.items.values():
            item.stored = YES if item.stored is MAYBE else item.stored
            item.gone = YES if item.gone is MAYBE else item.gone
            is_there = item.body in found.get(DLQ + item.queue, ())
            dropped = self.drops and not item.held and is_there
            if item.moved is MAYBE and item.may_stay and not is_there:
                item.moved = NO
            elif item.moved is MAYBE or dropped:
                item.is_moved()
            if item.overdue and not item.held and item.moved is NO:
                if not self.moves_expired:
                    item.gone = YES
                elif not (self.full and item.persistent) or is_there:
                    item.is_moved()  # on a full disk only what was moved before it was full
        expected: dict[str, set[bytes]] = {}
        for item in self.items.values():
            if item.stored is YES and item.gone is NO:
                expected.setdefault(item.place, set()).add(item.body)
        assert {queue: bodies for queue, bodies in found.items() if bodies} == expected
        self._check_windows(outcomes, ids)

    def recovered(
        self,
        found: dict[str, set[bytes]],
        outcomes: list[str],
        ids: dict[str, list[str]],
        counts: dict[bytes, tuple[int, int]],
    ) -> None:
        """A new master serves. Everything certain must be so; what was uncertain is now decided."""
        for tx in self.commits:
            if tx.committed is MAYBE:
                self._decide_commit(tx, tx.outcome_id in outcomes, found)
        for item in reversed(self.items.values()):
            self._decide(item, found, ids)
        stored = [item.stored is YES for item in self.sent]
        assert stored == sorted(stored, reverse=True), "an earlier send is lost and a later one is not"
        self.sent = [item for item in self.sent if item.stored is YES]
        done = [tx.committed is YES for tx in self.commits]
        assert done == sorted(done, reverse=True), "an earlier commit is lost and a later one is not"
        self.commits = [tx for tx in self.commits if tx.committed is YES]
        for item in self.items.values():
            deliveries, failures = counts.get(item.body, (0, 0))
            assert deliveries <= item.deliveries
            assert failures <= item.failures
            item.deliveries, item.failures = deliveries, failures
        self._check_windows(outcomes, ids)

    def _decide_commit(self, tx: Tx, happened: bool, found: dict[str, set[bytes]]) -> None:
        everywhere = set().union(*found.values())
        if happened:
            tx.settle()
            return
        tx.committed = NO
        for item in tx.sends:
            assert item.stored is not YES or not item.persistent, f"{item}: seen, and its transaction is lost"
            item.stored = NO
        for item in tx.acks:
            if item.persistent:
                assert item.body in everywhere, f"{item}: gone, and the transaction that took it is lost"
                item.gone = NO

    def _decide(self, item: Item, found: dict[str, set[bytes]], ids: dict[str, list[str]]) -> None:
        where = [queue for queue, bodies in found.items() if item.body in bodies]
        item.held = False
        assert len(where) <= 1, f"{item}: in {where}"
        if not where:
            if not item.persistent:
                item.gone = YES
            elif item.stored is MAYBE:
                # It may have been stored, and have expired: so it was where its id is, or where a later send is.
                later = self.sent[self.sent.index(item) + 1 :]
                seen = item.duplicate_id in ids.get(item.queue, []) or any(each.stored is YES for each in later)
                item.stored = YES if seen and item.overdue and not self.moves_expired else NO
                item.gone = YES
            elif item.stored is YES:
                assert item.gone is not NO or (item.overdue and not self.moves_expired), f"{item}: lost"
                item.gone = YES
            return
        assert item.persistent
        assert item.stored is not NO, f"{item}: rolled back, and there"
        assert item.gone is not YES, f"{item}: a confirmed acknowledgement was undone"
        item.stored, item.gone = YES, NO
        if where[0] == item.queue:
            assert item.moved is not YES, f"{item}: back from the dead-letter queue"
            item.moved = NO
        else:
            assert where[0] == DLQ + item.queue
            assert item.moved is not NO or self._may_move(item), f"{item}: moved without a reason"
            item.is_moved()

    def _check_windows(self, outcomes: list[str], ids: dict[str, list[str]]) -> None:
        assert outcomes == [tx.outcome_id for tx in self.commits][-self.outcome_window :]
        for queue in {item.queue for item in self.sent} | ids.keys():
            assert ids.get(queue, []) == self.ids(queue)[-self.duplicate_window :], queue
