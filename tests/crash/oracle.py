"""What clients were told, and so what every recovery must find (P1, P2, P4; transactions whole).

An operation (a send, an acknowledgement, a commit, a move to the dead-letter queue) is *attempted* at one point of the
disk's log and *decided* at another: its receipt arrived, it was refused, or a later master showed what became of it.
A crash in between may leave it or not. As the journal keeps the order of work, what is left of the undecided is a
beginning of them: more than P1 to P5 ask, and what makes the check exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from amq.broker.state.state import State as Stored
from amq.core.errors import AmqError
from amq.core.xid import XID_COMMITTED, XID_ROLLED_BACK
from amq.journal.hidden import HELD_SCHEME, SENT_SCHEME
from amq.journal.live import Segment
from amq.journal.records import Trimmed
from amq.store.files.vfs import Vfs
from tests.broker.world import full_name
from tests.stored import NOTHING, stored

PUT, TAKE, REMEMBER, OUTCOME = "put", "take", "remember", "outcome"
PREPARE, COMMIT, ROLL_BACK, MARK = "prepare", "commit", "roll back", "mark"
QUEUE_SCHEME = full_name("")
BROKEN = (AssertionError, AmqError, OSError, LookupError, ValueError)  # raised by what must not go wrong


class Violation(AssertionError):
    """A recovery that the safety argument does not allow."""


@dataclass(slots=True)
class Branch:
    """What a prepared transaction holds: by queue the bodies that it sent and acknowledged; (queue, id) of the sent."""

    owner: str = ""
    batch: int = 0
    sends: dict[str, list[bytes]] = field(default_factory=dict)
    acks: dict[str, list[bytes]] = field(default_factory=dict)
    ids: list[tuple[str, str]] = field(default_factory=list)


# (kind, queue or xid or owner or "", what: body, id, outcome, batch number or, to PREPARE, branch)
Effect = tuple[str, str, bytes | str | Branch]


@dataclass(slots=True)
class State:
    """What clients can tell of a broker: bodies in order, ids remembered in order, ends of transactions, what is
    prepared, newest batch of each owner. `ages`: when each body, and (queue, id), was sent; in this order."""

    queues: dict[str, list[bytes]] = field(default_factory=dict)
    ids: dict[str, list[str]] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)
    prepared: dict[str, Branch] = field(default_factory=dict)
    markers: dict[str, str] = field(default_factory=dict)
    ages: dict[bytes | tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)

    def apply(self, effects: Iterable[Effect], window: int) -> None:
        """`window` = how many ids and outcomes are remembered."""
        for kind, name, what in effects:
            if isinstance(what, Branch):
                self._prepare(name, what)
            elif isinstance(what, bytes):
                if kind == PUT:
                    self._put(name, what)
                else:
                    self._take(name, what)
            elif kind == MARK:
                self.markers[name] = what
            elif kind == REMEMBER:
                self._remember(name, what, window)
            elif kind == OUTCOME:
                self._end(what, window)
            else:
                self._finish(name, kind == COMMIT, window)

    def _prepare(self, xid: str, branch: Branch) -> None:
        self.prepared[xid] = branch
        for queue, bodies in branch.sends.items():
            for body in bodies:
                self._put(SENT_SCHEME + full_name(queue), body)
        for key in branch.ids:
            self._age(key)
        for queue, bodies in branch.acks.items():
            self._move(queue, HELD_SCHEME + full_name(queue), bodies)

    def _finish(self, xid: str, commit: bool, window: int) -> None:
        branch = self.prepared.pop(xid)
        for queue, bodies in branch.sends.items():
            self._move(SENT_SCHEME + full_name(queue), queue if commit else "", bodies)
        for queue, bodies in branch.acks.items():
            self._move(HELD_SCHEME + full_name(queue), "" if commit else queue, bodies)
        for queue, id in branch.ids if commit else ():
            self._remember(queue, id, window)
        self._end((XID_COMMITTED if commit else XID_ROLLED_BACK) + xid, window)

    def _age(self, what: bytes | tuple[str, str]) -> None:
        self.ages.setdefault(what, next(reversed(self.ages.values()), 0) + 1)

    def _remember(self, queue: str, id: str, window: int) -> None:
        """The youngest, whenever what brought them was committed."""
        self._age((queue, id))
        kept = self.ids.setdefault(queue, [])
        kept.append(id)
        kept.sort(key=lambda id: self.ages[queue, id])
        del kept[:-window]

    def _end(self, outcome: str, window: int) -> None:
        self.outcomes.append(outcome)
        del self.outcomes[:-window]

    def _put(self, queue: str, body: bytes) -> None:
        self._age(body)
        self.queues.setdefault(queue, []).append(body)

    def _take(self, queue: str, body: bytes) -> None:
        self.queues[queue].remove(body)
        if not self.queues[queue]:
            del self.queues[queue]

    def _move(self, source: str, target: str, bodies: list[bytes]) -> None:
        """To the places of their ages. `target` "" = they are gone."""
        for body in bodies:
            self._take(source, body)
            if target:
                self._put(target, body)
        if target:
            self.queues[target].sort(key=self.ages.__getitem__)


def observed(broker: Stored, vfs: Vfs, store: str, trimmed: Trimmed = NOTHING) -> State:
    """What a broker holds of the journal's. `trimmed` = which segments do not count (any more)."""
    state = State()
    bodies: dict[int, bytes] = {}  # by seq
    ages: list[tuple[int, bytes | tuple[str, str]]] = []
    for name, queue in sorted(broker.queues.items()):
        short = name.removeprefix(QUEUE_SCHEME)
        found = {
            seq: message.body
            for seq, message in stored(broker, queue, vfs, store).items()
            if isinstance(message.segment, Segment) and message.segment.key not in trimmed
        }
        bodies |= found
        if found:
            state.queues[short] = list(found.values())
        queue.duplicates.settle()
        if queue.duplicates:
            state.ids[short] = list(queue.duplicates)
            ages += [(seq, (short, id)) for id, (seq, _) in queue.duplicates.items()]
    broker.outcomes.settle()
    state.outcomes = list(broker.outcomes)
    for xid, (prepared, segment) in broker.prepared.items():
        if segment.key not in trimmed:
            sends, acks = (
                {name.removeprefix(QUEUE_SCHEME): [bodies[seq] for seq in seqs] for name, seqs in part.items()}
                for part in (prepared.sends, prepared.acks)
            )
            ids = [(name.removeprefix(QUEUE_SCHEME), id, seq) for name, id, seq in prepared.ids]
            ages += [(seq, (queue, id)) for queue, id, seq in ids]
            state.prepared[xid] = Branch(
                prepared.owner, prepared.batch, sends, acks, [(queue, id) for queue, id, _ in ids]
            )
    state.markers = {owner: str(marker.batch) for owner, (marker, _) in broker.prepared.markers.items()}
    ages += bodies.items()
    state.ages = {what: seq for seq, what in sorted(ages, key=itemgetter(0))}
    return state


@dataclass(slots=True)
class Operation:
    effects: tuple[Effect, ...]
    attempted_at: int
    decided_at: int | None = None
    takes_place: bool = False

    def verdict(self, at: int) -> int:
        """0 = undecided then, 1 = it does not take place, 2 = it does."""
        return 0 if self.decided_at is None or self.decided_at > at else 1 + self.takes_place


class Oracle:
    """`window` = how many ids a queue remembers, how many outcomes the broker."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.operations: list[Operation] = []
        self._cache: dict[tuple[tuple[int, ...], int], list[State]] = {}

    def attempt(self, at: int, *effects: Effect) -> Operation:
        self.operations.append(Operation(effects, at))
        return self.operations[-1]

    def decide(self, operation: Operation, at: int, takes_place: bool) -> None:
        """The client was told. What came before in the journal then took place, too."""
        if operation.decided_at is not None:
            return
        operation.decided_at, operation.takes_place = at, takes_place
        for earlier in self.operations if takes_place else []:
            if earlier is operation:
                return
            if earlier.decided_at is None:
                earlier.decided_at, earlier.takes_place = at, True

    def observe(self, at: int, state: State) -> None:
        """A new master serves what it found: that must be allowed, and stands from here on."""
        left = [operation for operation in self.operations if operation.decided_at is None]
        allowed = self.allowed(at)
        if state not in allowed:
            raise Violation(f"a takeover found {state},\nallowed {allowed}")
        for place, operation in enumerate(left):
            self.decide(operation, at, place < allowed.index(state))

    def allowed(self, at: int) -> list[State]:
        """States that a recovery may find after a crash at `at`."""
        attempted = [operation for operation in self.operations if operation.attempted_at <= at]
        decided = [operation.verdict(at) for operation in attempted]
        key = tuple(decided), len(attempted)
        if key not in self._cache:
            undecided = decided.count(0)
            self._cache[key] = [self._state(attempted, decided, count) for count in range(undecided + 1)]
        return self._cache[key]

    def _state(self, attempted: list[Operation], decided: list[int], count: int) -> State:
        """With the first `count` undecided ones."""
        state = State()
        for operation, verdict in zip(attempted, decided, strict=True):
            if verdict == 0:
                count -= 1
            if verdict == 2 or (verdict == 0 and count >= 0):
                state.apply(operation.effects, self.window)
        return state


class Fixed:
    """The oracle of a recovery that is itself cut short: what it may find is known, until it has shown it."""

    def __init__(self, allowed: list[State], shown_at: int, shown: State) -> None:
        self._allowed = allowed
        self._shown_at = shown_at
        self._shown = [shown]

    def allowed(self, at: int) -> list[State]:
        return self._allowed if at < self._shown_at else self._shown
