"""Random commands of clients with many sessions: to sessions that are open or not, with credit, drains and outcomes.

Whatever they do, the broker's counts are right, each command is answered once, no consumer gets a message beyond its
credit, and what was confirmed is in one place until somebody has accepted it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amq.broker.queues import browser, selector_dispatch
from amq.broker.topics import wildcards
from amq.core.destination import Pattern, pattern_words
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.protocols.commands import (
    OLDEST,
    Abort,
    Begin,
    CloseSession,
    Command,
    Commit,
    Credit,
    Invalid,
    OpenSession,
    Outcome,
    Send,
    SendToMany,
    Settle,
    SettleSet,
    Unsubscribe,
)
from tests.broker.many import Given, ManyClient
from tests.broker.world import World
from tests.sampling import examples
from tests.subscribing import subscribe

QUEUES = ("queue://a", "queue://b", "queue://a,*")
SOURCES = (
    *QUEUES,
    "queue://DLQ.a",
    "topic://t",
    Pattern("queue://", pattern_words("*")),
    Pattern("queue://", pattern_words(">")),
)
SESSIONS = (0, 1, 2, 3)
IDS = ("x", "y")
CLIENTS_MAX = 3
CODES = {
    "UNKNOWN_SESSION",
    "UNKNOWN_DELIVERY",
    "UNKNOWN_TRANSACTION",
    "COMMAND_REFUSED",
    "NOT_SUPPORTED",
    "INVALID_EXAMPLE",
    "UNKNOWN_SUBSCRIPTION",
    "DESTINATION_REFUSED",
}
pick = st.integers(0, 1 << 16)
session_of = st.sampled_from((1, 1, 2, 2, *SESSIONS))

LEAVES = (Outcome.ACCEPTED, Outcome.EXPIRED)  # the queue, and go nowhere else


class Walker:
    """A client, and what must come to it. `left` = credit of (session, consumer); those without have no bound here."""

    def __init__(self, client: ManyClient) -> None:
        self.client = client
        self.read = 0
        self.waiting: dict[str, Callable[[], None]] = {}
        self.left: dict[tuple[int, str], int] = {}
        self.takers: set[tuple[int, str]] = set()  # consumers that do not acknowledge, or did not once


class SessionsMachine(RuleBasedStateMachine):
    """`stored` = bodies that are confirmed, `gone` = those of which somebody learns that they are accepted, `asked` =
    those that may be gone."""

    @initialize(
        memory=st.sampled_from([1 << 30, 9_000]),
        limit=st.sampled_from([0, 0, 900]),
        few=st.booleans(),
        redeliveries=st.sampled_from([-1, 1]),
        large=st.booleans(),
    )
    def begin_world(self, memory: int, limit: int, few: bool, redeliveries: int, large: bool) -> None:
        self.path = tempfile.mkdtemp(prefix="amq-sessions-")
        self.patch = pytest.MonkeyPatch()
        if few:
            self.patch.setattr(browser, "STEP_MESSAGES", 2)
            self.patch.setattr(selector_dispatch, "STEPS_MAX", 2)
            self.patch.setattr(wildcards, "SLICE_QUEUES", 1)
        self.size = 300 if large else 0
        self.world = World(
            self.path,
            memory_limit_bytes=memory,
            queue_limit_bytes=limit,
            maximum_redeliveries=redeliveries,
            journal_segment_size_bytes=4096,
        )
        self.walkers: list[Walker] = []
        self.stored: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.asked: set[bytes] = set()
        self.count = 0
        self.transactions: dict[tuple[int, int, str], tuple[list[bytes], list[bytes]]] = {}  # sent, accepted
        self.begin_clients()

    def begin_clients(self) -> None:
        """Two, which hold messages in two sessions each, and transactions there."""
        self.connect()
        self.connect()
        for which in (0, 1):
            for session in (1, 2):
                self.open(which, session)
                self.subscribe(which, session, "x", QUEUES[which], (None, 4)[which], acknowledges=True, browses=False)
                self.begin(which, session)
        for n in range(8):
            self.send(0, 0, QUEUES[n % 2], topic=False, in_transaction=False, persistent=True)
        self.world.settle()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.rest()
                for walker in list(self.walkers):
                    self.leave(walker)
                self.rest()
                self.empty()
            finally:
                self.patch.undo()
                self.world.close()
                shutil.rmtree(self.path)

    def empty(self) -> None:
        drain = ManyClient(self.world)
        for name in list(self.world.broker.state.queues):
            drain.consume(name, name, acknowledges=False)
        self.world.settle()
        assert not any(queue.stored for queue in self.world.broker.state.queues.values())
        assert self.world.broker.memory.taken_bytes == 0
        assert self.world.broker.pulling.withdrawn == []

    # -- what the broker does -----------------------------------------------------------------------------------------

    @invariant()
    def all_is_counted(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.check()
        assert not self.world.failures
        for walker in self.walkers:
            for event in walker.client.events[walker.read :]:
                self._told(walker, event)
            walker.read = len(walker.client.events)

    def _told(self, walker: Walker, event: object) -> None:
        if isinstance(event, Given):
            key = event.session, event.consumer
            if key in walker.takers:
                self.asked.add(event.body)
            if key in walker.left:
                walker.left[key] -= 1
                assert walker.left[key] >= 0, f"{key} got {event.body!r} beyond its credit"
        elif isinstance(event, str):
            walker.waiting.pop(event)()
        elif not isinstance(event, tuple) or event[0] != "end of browse":
            assert event.code in CODES, event  # type: ignore[attr-defined]
            if event.receipt is not None:  # type: ignore[attr-defined]
                del walker.waiting[event.receipt]  # type: ignore[attr-defined]

    # -- what clients do ----------------------------------------------------------------------------------------------

    def ask(
        self, which: int, session: int, command: Command, tells: Callable[[], None] = lambda: None
    ) -> Walker | None:
        """None: that client is not read from now."""
        if not self.walkers:
            self.connect()
        walker = self.walkers[which % len(self.walkers)]
        if not walker.client.reading:
            return None
        walker.waiting[f"r{self.world._receipts + 1}"] = tells
        assert walker.client.ask(command, session=session) in walker.waiting
        return walker

    def client(self, which: int) -> Walker | None:
        return self.walkers[which % len(self.walkers)] if self.walkers else None

    @precondition(lambda self: len(self.walkers) < CLIENTS_MAX)
    @rule()
    def connect(self) -> None:
        self.walkers.append(Walker(ManyClient(self.world)))

    @rule(which=pick, session=session_of)
    def open(self, which: int, session: int) -> None:
        self.ask(which, 0, OpenSession(session))

    @rule(which=pick, session=session_of)
    def close(self, which: int, session: int) -> None:
        self.ask(which, session, CloseSession(session))

    @rule(
        which=pick,
        session=session_of,
        id=st.sampled_from(IDS),
        source=st.sampled_from(SOURCES),
        acknowledges=st.sampled_from([True, True, False]),
        credit=st.sampled_from([None, 0, 1, 4]),
        browses=st.sampled_from([False, False, True]),
        selector=st.sampled_from(["", "", "odd = '1'"]),
        prefetch=st.sampled_from([0, 1, 3]),
    )
    def subscribe(self, which: int, session: int, id: str, source: Any, credit: int | None, **options: Any) -> None:
        browses = options.pop("browses")
        command = subscribe(id, source, credit=credit, browser=browses, **options)
        walker = self.client(which)
        known = walker is not None and self._consumer(walker, session, id) is not None
        walker = self.ask(which, session, command)
        if walker is not None and not known:
            walker.left.pop((session, id), None)
            if credit is not None:
                walker.left[session, id] = credit
            if not command.mode.acknowledges:
                walker.takers.add((session, id))

    def _consumer(self, walker: Walker, session: int, id: str) -> Any:
        found = walker.client.session.sessions.get(session)
        return found._subscriptions.get(id) if found is not None else None

    @rule(which=pick, session=session_of, id=st.sampled_from(IDS))
    def unsubscribe(self, which: int, session: int, id: str) -> None:
        self.ask(which, session, Unsubscribe(id))

    @rule(
        which=pick,
        session=session_of,
        id=st.sampled_from(IDS),
        credit=st.sampled_from([0, 1, 2, 9]),
        drain=st.booleans(),
    )
    def grant(self, which: int, session: int, id: str, credit: int, drain: bool) -> None:
        walker = self.client(which)
        before = walker.left.get((session, id), 0) if walker is not None else 0

        def is_drained() -> None:
            assert walker is not None
            if (session, id) in walker.left and drain:
                walker.left[session, id] = max(0, walker.left[session, id] - before - credit)

        walker = self.ask(which, session, Credit(id, credit, drain=drain), is_drained)
        if walker is not None and (session, id) in walker.left:
            walker.left[session, id] = before + credit  # what came meanwhile may be of the credit before

    @rule(
        which=pick,
        session=session_of,
        name=st.sampled_from(QUEUES),
        topic=st.booleans(),
        in_transaction=st.booleans(),
        persistent=st.booleans(),
    )
    def send(self, which: int, session: int, name: str, topic: bool, in_transaction: bool, persistent: bool) -> None:
        self.count += 1
        body = b"%d." % self.count + bytes(self.size)
        message = Message(name, body, {"odd": str(self.count % 2)}, persistent=persistent)
        transaction = f"t{session}" if in_transaction else ""
        command = Send(message, None, transaction)
        if topic:
            command = SendToMany(message, (name, "topic://t"), None, transaction)

        def is_sent() -> None:
            if not persistent:
                return
            if in_transaction:
                found = self.transactions.get(key)
                if found is not None:
                    found[0].append(body)
            else:
                self.stored.add(body)

        walker = self.client(which)
        key = (id(walker.client) if walker is not None else 0, session, "t")
        self.ask(which, session, command, is_sent)

    @rule(
        which=pick,
        session=session_of,
        id=st.sampled_from((*IDS, "")),
        first=pick,
        count=st.integers(0, 3),
        outcome=st.sampled_from(Outcome),
        way=st.sampled_from(["one", "range", "oldest", "set", "unknown"]),
        in_transaction=st.booleans(),
    )
    def settle(
        self,
        which: int,
        session: int,
        id: str,
        first: int,
        count: int,
        outcome: Outcome,
        way: str,
        in_transaction: bool,
    ) -> None:
        walker = self.client(which)
        if walker is not None and self._consumer(walker, session, id or "x") is None:
            holders = [n for n in SESSIONS if self._consumer(walker, n, "x") is not None]
            session, id = (holders[session % len(holders)], "x") if holders else (session, id)
        consumer = self._consumer(walker, session, id or "x") if walker is not None else None
        held = list(consumer.unacked.items()) if consumer is not None else []
        if not held:
            return
        start = first % len(held)
        chosen = held[start : start + count + 1]
        seqs, transaction = [seq for seq, _ in chosen], f"t{session}" if in_transaction else ""
        command: Settle
        if way == "one" or id == "":
            chosen = chosen[:1]
            command = Settle(seqs[0], id, None, transaction, outcome)
        elif way == "range":
            command = Settle(seqs[-1], id, None, transaction, outcome, seqs[0])
        elif way == "oldest":
            chosen = held[: start + 1]
            command = Settle(held[start][0], id, None, transaction, outcome, OLDEST)
        else:
            command = SettleSet([*seqs, *([7] if way == "unknown" else [])], id, None, transaction, outcome)
        fails = isinstance(command, SettleSet) and way == "unknown"
        bodies = [message.body for _, message in chosen] if outcome in LEAVES and not fails else []
        browses = getattr(consumer, "done", None) is not None
        key = (id_of(walker), session, "t")
        if not browses:
            self.asked.update(bodies)

        def is_settled() -> None:
            if browses:
                return
            if not in_transaction:
                self.gone.update(bodies)
            elif key in self.transactions:
                self.transactions[key][1].extend(bodies)

        self.ask(which, session, command, is_settled)

    @rule(which=pick, session=session_of)
    def begin(self, which: int, session: int) -> None:
        walker = self.client(which)
        key = (id_of(walker), session, "t")
        self.ask(which, session, Begin(f"t{session}"), lambda: self.transactions.__setitem__(key, ([], [])))

    @rule(which=pick, session=session_of, commits=st.booleans())
    def end(self, which: int, session: int, commits: bool) -> None:
        walker = self.client(which)
        key = (id_of(walker), session, "t")

        def is_over() -> None:
            sent, accepted = self.transactions.pop(key, ([], []))
            if commits:
                self.stored.update(sent)
                self.gone.update(accepted)

        self.ask(which, session, Commit(f"t{session}") if commits else Abort(f"t{session}"), is_over)

    @rule(which=pick, session=session_of, in_transaction=st.booleans())
    def mistake(self, which: int, session: int, in_transaction: bool) -> None:
        error = CommandError("understood, and wrong", code="INVALID_EXAMPLE")
        self.ask(which, session, Invalid(error, None, f"t{session}" if in_transaction else ""))

    @precondition(lambda self: self.walkers)
    @rule(which=pick, writable=st.booleans())
    def socket(self, which: int, writable: bool) -> None:
        walker = self.client(which)
        assert walker is not None
        walker.client.session.set_writable(writable)

    @precondition(lambda self: self.walkers)
    @rule(which=pick)
    def lose(self, which: int) -> None:
        walker = self.client(which)
        assert walker is not None
        self.leave(walker)

    def leave(self, walker: Walker) -> None:
        walker.client.lose()
        self.walkers.remove(walker)

    # -- what the world does ------------------------------------------------------------------------------------------

    @rule()
    def turn(self) -> None:
        self.world.turn()

    @rule()
    def everything_happens(self) -> None:
        self.world.settle()

    @rule(count=st.integers(1, 3))
    def disk_works(self, count: int) -> None:
        for _ in range(count):
            self.world.runner.step()

    @rule()
    def crash(self) -> None:
        self.rest()
        self.world.crash_and_recover()
        self.walkers.clear()
        self.transactions.clear()
        self.begin_clients()

    @rule()
    def rest(self) -> None:
        for walker in self.walkers:
            walker.client.session.set_writable(True)
        self.world.settle()
        self.all_is_counted()
        for walker in self.walkers:
            if not any(each.is_held_up for each in walker.client.session.sessions.values()):
                assert not walker.waiting, "commands without an answer"
        self.world.check_at_rest()
        places: dict[bytes, list[str]] = {}
        for name, queue in self.world.broker.state.queues.items():
            for message in self.world.everything(queue).values():
                places.setdefault(message.body, []).append(name)
        assert not [body for body, names in places.items() if len(names) > 1], "in two places"
        assert not self.stored - places.keys() - self.asked, "confirmed, and nowhere"
        assert not self.gone & places.keys(), "accepted, and there"


def id_of(walker: Walker | None) -> int:
    return id(walker.client) if walker is not None else 0


TestSessions = SessionsMachine.TestCase
TestSessions.settings = settings(
    max_examples=examples(20),
    stateful_step_count=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def test_memory_that_comes_free_late_in_a_turn_is_read_into() -> None:
    """A walk found it: a queue that lacked memory was asked at the begin of a turn, before another one gave some back,
    and nothing woke the broker again."""
    walk = SessionsMachine()
    walk.begin_world(memory=9000, few=False, large=False, limit=0, redeliveries=1)
    try:
        walk.unsubscribe(0, 1, "x")
        walk.crash()
        walk.send(0, 1, "queue://a", topic=True, in_transaction=False, persistent=True)
        walk.lose(0)
    finally:
        walk.teardown()
