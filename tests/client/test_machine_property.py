"""Any sequence of events: the state stays legal, order and ids are kept, and no caller is forgotten."""

from __future__ import annotations

from typing import Any

from fake_broker import CARRY_OUT_AND_CUT, CUT, Conversation
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from amq.client.core import ProducerCore, SessionCore
from amq.client.errors import DeliveryLostError
from amq.client.requests import EventKind, Request
from amq.client.states import State
from amq.core.errors import AmqError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame
from tests.sampling import examples

URL = "failover:(stomp://a:1,stomp://b:2)?randomize=false&nested.connectTimeout=200&nested.heartBeat=500"
COMMANDS = ["SEND", "ACK", "COMMIT", "SUBSCRIBE", "BEGIN", "CONNECT"]

STEP = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("send in transaction")),
    st.tuples(st.just("receive")),
    st.tuples(st.just("receive in transaction")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("to broker"), st.integers(1, 400)),
    st.tuples(st.just("to client"), st.integers(1, 400)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("send")),
    st.tuples(st.just("send in transaction")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("answer")),
    st.tuples(st.just("cut")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("advance"), st.sampled_from([0.001, 0.05, 0.3, 2.0])),
    st.tuples(st.just("fault"), st.sampled_from(COMMANDS), st.sampled_from([CUT, CARRY_OUT_AND_CUT])),
)


class Application:
    """Does what the steps say, and remembers what it was promised."""

    def __init__(self, url: str) -> None:
        self.fault: list[tuple[str, str]] = []
        self.world = World(url, alive="a", script=self.script)
        self.world.heart_beat = "500,500"
        self.sent: list[tuple[str, Request]] = []
        self.open: list[str] = []  # sent in the open transaction
        self.commits: list[tuple[list[str], Request]] = []
        self.aborts: list[Request] = []
        self.received: list[str] = []
        self.number = 0
        self.plain, self.transacted = self.world.session(), self.world.session(transacted=True)
        self.producer = ProducerCore(self.plain, "/queue/plain")
        self.transacted_producer = ProducerCore(self.transacted, "/queue/tx")
        self.subscriptions: dict[SessionCore, Any] = {}

    def script(self, _: Conversation, frame: Frame) -> str | None:
        for fault in self.fault:
            if fault[0] == frame.command:
                self.fault.remove(fault)
                return fault[1]
        return None

    def body(self) -> str:
        self.number += 1
        return str(self.number)

    def step(self, name: str, *arguments: Any) -> None:
        world = self.world
        world.act()
        if name == "send":
            if self.plain.may_send():
                body = self.body()
                request = world.send(self.producer, body)
                assert request is not None
                self.sent.append((body, request))
        elif name == "send in transaction":
            self.in_transaction(self.send_in_transaction)
        elif name == "receive":
            self.receive(self.plain)
        elif name == "receive in transaction":
            self.in_transaction(lambda: self.receive(self.transacted))
        elif name == "commit":
            self.commit()
        elif name == "rollback":
            request = self.transacted.start_rollback()
            self.open.clear()
            if request is not None:
                self.aborts.append(request)
        elif name == "settle":
            world.settle()
        elif name == "answer" and world.pending:
            world.answer()
        elif name in ("to broker", "to client"):
            for link in list(world.wires):
                (world.to_broker if name == "to broker" else world.to_client)(link, arguments[0])
        elif name == "cut":
            for link in list(world.wires):
                world.cut(link)
        elif name == "kill":
            other = {"a": "b", "b": "a"}[next(iter(world.alive))]
            world.kill(next(iter(world.alive)))
            world.alive.add(other)
        elif name == "advance":
            world.advance(arguments[0])
        elif name == "fault":
            self.fault.append(arguments)  # type: ignore[arg-type]

    def in_transaction(self, work: Any) -> None:
        try:
            work()
        except TransactionRolledBackError:
            assert self.transacted.transaction is not None
            assert self.transacted.transaction.doomed

    def send_in_transaction(self) -> None:
        if self.transacted.may_send():
            body = self.body()
            self.world.send(self.transacted_producer, body)
            self.open.append(body)

    def receive(self, session: SessionCore) -> None:
        subscription = self.subscriptions.get(session)
        if subscription is None:
            if session.may_write():
                queue = "/queue/plain" if session is self.plain else "/queue/tx"
                self.subscriptions[session], _ = session.subscribe(queue, 3, "", {})
        elif subscription.ready():
            delivery = session.take(subscription)
            self.received.append(delivery.frame.body.decode())
            if session is self.plain:
                try:
                    session.settle(delivery, "ACK", False)
                except DeliveryLostError as error:
                    raise AssertionError("it was just handed over") from error

    def commit(self) -> None:
        bodies = self.open[:]
        self.open.clear()
        try:
            request = self.transacted.start_commit()
        except TransactionRolledBackError:
            return
        if request is not None:
            self.commits.append((bodies, request))

    def all_bodies(self) -> list[str]:
        store = self.world.store
        found = [body.decode() for queue in ("/queue/plain", "/queue/tx") for body in store.bodies(queue)]
        found += [body.decode() for body in store.acknowledged]
        for conversation in store.conversations:
            for subscription in conversation.subscriptions.values():
                found += [stored.body.decode() for stored in subscription.unacked.values()]
            found += [stored.body.decode() for taken in conversation.taken.values() for _, stored in taken]
        return found


@settings(max_examples=examples(80))
@given(st.lists(STEP, min_size=25, max_size=80), st.booleans())
def test_after_the_faults_everything_is_as_promised(steps: list[tuple[Any, ...]], connected: bool) -> None:
    application = Application(URL)
    world = application.world
    world.machine.start(world.now)
    if connected:
        world.settle()
    for step in steps:
        application.step(*step)
        assert world.state in (State.CONNECTING, State.HANDSHAKE, State.CONNECTED, State.WAITING)
    application.fault.clear()
    world.beating = True
    world.settle()
    world.advance(30)
    assert world.machine.is_flowing()
    assert world.machine.unconfirmed == 0
    requests = [request for _, request in application.sent + application.commits] + application.aborts
    assert all(request.done for request in requests)
    assert [request.error for _, request in application.sent if request.error] == []
    expected = [body for body, _ in application.sent]
    for bodies, request in application.commits:
        assert request.error is None or isinstance(request.error, TransactionRolledBackError)
        expected += bodies if request.error is None else []
    assert [body.decode() for body in world.store.added.get("/queue/plain", [])] == [b for b, _ in application.sent]
    assert sorted(application.all_bodies(), key=int) == sorted(expected, key=int), "each exactly once"
    while application.plain in application.subscriptions and application.subscriptions[application.plain].ready():
        application.receive(application.plain)
        world.settle()
    assert application.plain not in application.subscriptions or world.store.bodies("/queue/plain") == []
    firsts = list(dict.fromkeys(body for body in application.received if body in dict(application.sent)))
    assert firsts == sorted(firsts, key=int), "first deliveries keep the order of sending"
    kinds = [event.kind for event in world.events]
    assert kinds[::2] == [EventKind.INTERRUPTED] * (len(kinds) // 2)
    assert kinds[1::2] == [EventKind.FAILOVER] * (len(kinds) // 2)


@settings(max_examples=examples(100))
@given(st.lists(STEP, max_size=40), st.sampled_from(["close", "give up"]))
def test_at_the_end_nobody_waits(steps: list[tuple[Any, ...]], end: str) -> None:
    application = Application(URL + "&maxReconnectAttempts=2")
    world = application.world
    world.machine.start(world.now)
    woken: set[int] = set()
    for number, step in enumerate(steps):
        if world.state is State.CLOSED:
            break
        application.step(*step)
        if world.state is not State.CLOSED:
            world.machine.up_gate.append(lambda number=number: woken.add(number))  # type: ignore[misc]
            if world.machine.flowing:
                world.machine.up_gate.pop()
    if end == "close" and world.state is not State.CLOSED:
        world.machine.close(world.now)
        world.machine.close(world.now)
    else:
        world.alive = set()
        for link in list(world.wires):
            world.cut(link)
        world.settle()
        world.advance(30)
    assert world.state is State.CLOSED
    requests = [request for _, request in application.sent + application.commits] + application.aborts
    assert all(request.done for request in requests)
    assert not world.machine.up_gate
    assert not world.machine.room_gate
    assert world.machine.deadline() is None
    assert all(subscription.ended for subscription in application.subscriptions.values())
    world.act()
    assert not world.wires
    assert not world.pending
    for session in (application.plain, application.transacted):
        try:
            session.may_send()
        except AmqError:
            continue
        raise AssertionError("a closed connection takes nothing")
