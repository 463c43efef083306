"""What clients were told, and so what every recovery must find (P1, P2, P4; transactions whole).

An operation (a send, an acknowledgement, a commit, a move to the dead-letter queue) is *attempted* at one point of the
disk's log and *decided* at another: its receipt arrived, it was refused, or a later master showed what became of it.
A crash in between may leave it or not. As the journal keeps the order of work, what is left of the undecided is a
beginning of them: more than P1 to P5 ask, and what makes the check exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from amq.broker.broker import Broker
from amq.journal.records import Trimmed
from amq.journal.recovery import Segment
from amq.vfs import Vfs
from tests.stored import NOTHING, stored

PUT, TAKE, REMEMBER, OUTCOME = "put", "take", "remember", "outcome"
Effect = tuple[str, str, bytes | str]  # (kind, queue or "", body or id)


class Violation(AssertionError):
    """A recovery that the safety argument does not allow."""


@dataclass(slots=True)
class State:
    """What clients can tell of a broker: bodies in order, ids remembered in order, commits that took place."""

    queues: dict[str, list[bytes]] = field(default_factory=dict)
    ids: dict[str, list[str]] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)

    def apply(self, effects: Iterable[Effect], window: int) -> None:
        for kind, queue, what in effects:
            if isinstance(what, bytes):
                bodies = self.queues.setdefault(queue, [])
                bodies.append(what) if kind == PUT else bodies.remove(what)
                if not bodies:
                    del self.queues[queue]
            else:
                kept = self.outcomes if kind == OUTCOME else self.ids.setdefault(queue, [])
                kept.append(what)
                del kept[:-window]


def observed(broker: Broker, vfs: Vfs, store: str, trimmed: Trimmed = NOTHING) -> State:
    """What a broker holds of the journal's. `trimmed` = which segments do not count (any more)."""
    state = State()
    for name, queue in sorted(broker.queues.items()):
        short = name.removeprefix("queue://")
        bodies = [
            message.body
            for _, message in stored(broker, queue, vfs, store).items()
            if isinstance(message.segment, Segment) and message.segment.key not in trimmed
        ]
        if bodies:
            state.queues[short] = bodies
        queue.duplicates.settle()
        if queue.duplicates:
            state.ids[short] = list(queue.duplicates)
    broker.outcomes.settle()
    state.outcomes = list(broker.outcomes)
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
