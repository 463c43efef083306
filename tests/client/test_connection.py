"""The synchronous face where it differs from asyncio: threads, forks, the garbage collector, waiting and waking."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
from fake_broker import IGNORE, Broker, Store

import amq
from amq.client import (
    ConnectionClosedError,
    ConnectionEvent,
    DeliveryLostError,
    EventKind,
    FailoverTimeoutError,
    UriError,
)
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame
from tests.patience import DEADLINE_S

Q = "/queue/q"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(Store()) as broker:
        yield broker


def url(broker: Broker, options: str = "") -> str:
    return f"failover:({broker.uri})?initialReconnectDelay=1{options}"


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("amq-client")]


def in_thread(work: object) -> tuple[threading.Thread, list[object]]:
    """Runs `work` and keeps what it returns or raises."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(work())  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def waits(gate: list[object]) -> None:
    """Until somebody waits at `gate`."""
    patience = threading.Event()
    for _ in range(int(DEADLINE_S) * 1000):
        if gate:
            return
        patience.wait(0.001)
    raise AssertionError("nobody waits")


def test_one_thread_while_open_and_none_after(broker: Broker) -> None:
    for _ in range(5):
        with amq.connect(url(broker)) as connection:
            assert len(client_threads()) == 1
            connection.session().producer(Q).send("x")
        assert client_threads() == []
    with pytest.raises(UriError):
        amq.connect("failover:()")
    with pytest.raises(FailoverTimeoutError):
        amq.connect("failover:(stomp://127.0.0.1:1)", timeout=0.05)
    assert client_threads() == []


def test_sessions_in_many_threads(broker: Broker) -> None:
    with amq.connect(url(broker), send_window_messages=20) as connection:

        def work(name: int) -> list[str]:
            with connection.session() as session:
                producer = session.producer(f"/queue/{name}")
                for number in range(200):
                    producer.send(str(number), wait=number % 7 == 0)
                producer.flush()
                consumer = session.consumer(f"/queue/{name}", prefetch=10)
                got: dict[str, None] = {}  # what the broken connection brought comes again
                for message in consumer:
                    got[message.text] = None
                    with contextlib.suppress(DeliveryLostError):
                        message.ack()
                    if len(got) == 200:
                        break
                return list(got)

        workers = [in_thread(lambda name=name: work(name)) for name in range(6)]
        broker.drop_connections()
        for thread, _ in workers:
            thread.join(DEADLINE_S)
    assert [result for _, result in workers] == [[[str(number) for number in range(200)]]] * 6


def test_close_in_another_thread_ends_a_blocked_receive(broker: Broker) -> None:
    connection = amq.connect(url(broker))
    consumer = connection.session().consumer(Q)
    thread, result = in_thread(lambda: consumer.receive())
    waits(consumer._subscription.gate)
    connection.close()
    thread.join(DEADLINE_S)
    assert isinstance(result[0], ConnectionClosedError)
    assert list(consumer) == [], "iteration just ends"


def test_a_blocked_receive_survives_a_failover_and_a_transacted_one_hears_of_it(broker: Broker) -> None:
    with amq.connect(url(broker)) as connection:
        consumer = connection.session().consumer(Q)
        transacted = connection.session(transacted=True)
        blocked = transacted.consumer("/queue/t")
        transacted.producer("/queue/out").send("in the transaction")
        plain, got = in_thread(lambda: consumer.receive(DEADLINE_S).text)  # type: ignore[union-attr]
        other, rolled_back = in_thread(lambda: blocked.receive(DEADLINE_S))
        waits(consumer._subscription.gate)
        waits(blocked._subscription.gate)
        broker.drop_connections()
        other.join(DEADLINE_S)
        assert isinstance(rolled_back[0], TransactionRolledBackError)
        connection.session().producer(Q).send("news")
        plain.join(DEADLINE_S)
        assert got == ["news"]
        transacted.rollback()


def test_a_listener_may_not_wait_but_may_send_close_and_open_another(broker: Broker) -> None:
    told: list[ConnectionEvent] = []
    wrong: list[Exception] = []
    closed = threading.Event()

    def listener(event: ConnectionEvent) -> None:
        told.append(event)
        if event.kind is EventKind.FAILOVER:
            calls = (lambda: producer.send("waits"), lambda: session.consumer(Q), connection.recover, works.commit)
            for call in calls:
                try:
                    call()  # type: ignore[no-untyped-call]
                except CommandError as error:
                    wrong.append(error)
            with amq.connect(url(broker)) as other:
                other.session().producer(Q).send("by another connection")
            producer.send("does not wait", wait=False)
            connection.close()
            closed.set()

    connection = amq.connect(url(broker), on_event=listener)
    session, works = connection.session(), connection.session(transacted=True)
    producer = session.producer(Q)
    broker.drop_connections()
    assert closed.wait(DEADLINE_S)
    connection._driver.join()
    assert client_threads() == []
    assert [event.kind for event in told] == [EventKind.INTERRUPTED, EventKind.FAILOVER]
    assert ["must not wait" in str(error) for error in wrong] == [True] * 4
    assert set(broker.store.bodies(Q)) <= {b"by another connection", b"does not wait"}, "what was refused is not done"
    assert "SUBSCRIBE" not in [frame.command for frame in broker.store.frames]


def test_an_unclosed_connection_is_reported_and_its_thread_ends(broker: Broker) -> None:
    connection = amq.connect(url(broker))
    connection.session()
    threads = client_threads()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del connection
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    assert broker.uri in str(caught[0].message)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert client_threads() == []


def test_a_forked_child_is_told_and_disturbs_nobody(broker: Broker) -> None:
    with amq.connect(url(broker)) as connection:
        session = connection.session()
        producer, consumer = session.producer(Q), session.consumer("/queue/none")
        producer.send("parent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                calls = (
                    lambda: producer.send("child"),
                    connection.session,
                    connection.abort,
                    lambda: list(consumer.messages(timeout=0)),
                )
                for call in calls:
                    try:
                        call()  # type: ignore[no-untyped-call]
                    except ConnectionClosedError:
                        code = 0
                    else:
                        code = 2
                        break
                connection._driver.lock = threading.RLock()
                in_parent = threading.Thread(target=connection._driver.lock.acquire)  # as its thread may have it
                in_parent.start()
                in_parent.join()
                with connection, session, consumer:
                    pass
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send("parent again")
    assert broker.store.bodies(Q) == [b"parent", b"parent again"]
    assert broker.accepted == 1


def test_an_exit_of_the_interpreter_does_not_hang(broker: Broker) -> None:
    """A program that forgets to close ends all the same."""
    code = f"import amq; c = amq.connect({url(broker)!r}); c.session().producer('{Q}').send('x')"
    done = subprocess.run([sys.executable, "-c", code], timeout=DEADLINE_S, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert broker.store.bodies(Q) == [b"x"]


def test_heart_beats_keep_an_idle_connection_and_find_a_dead_one() -> None:
    store = Store()
    events: list[EventKind] = []
    lost = threading.Event()

    def listener(event: ConnectionEvent) -> None:
        events.append(event.kind)
        lost.set()

    with (
        Broker(store, heart_beat="20,20") as dead,
        amq.connect(f"{dead.uri}?heartBeat=20", on_event=listener) as connection,
    ):
        assert lost.wait(DEADLINE_S), "this broker promises heart-beats and sends none"
        assert events[0] is EventKind.INTERRUPTED
        connection._driver.join()
        assert connection.closed


def test_a_window_full_of_sends_waits_for_room(broker: Broker) -> None:
    held: list[bool] = [True]
    ignored = threading.Semaphore(0)

    def ignore(_: object, frame: Frame) -> str | None:
        if frame.command != "SEND" or not held:
            return None
        ignored.release()
        return IGNORE

    broker.script = ignore
    with amq.connect(url(broker), send_window_messages=4) as connection:
        producer = connection.session().producer(Q)
        for number in range(4):
            producer.send(str(number), wait=False)
        thread, result = in_thread(lambda: producer.send("4", wait=False))
        waits(connection._machine.room_gate)
        assert all(ignored.acquire(timeout=DEADLINE_S) for _ in range(4))
        held.clear()
        broker.drop_connections()  # what was ignored is replayed
        thread.join(DEADLINE_S)
        assert isinstance(result[0], str)
        producer.flush()
    assert broker.store.bodies(Q) == [b"0", b"1", b"2", b"3", b"4"]


def test_keyboard_interrupt_in_a_blocked_call_leaves_the_connection_usable(broker: Broker) -> None:
    with amq.connect(url(broker)) as connection:
        session = connection.session()
        consumer = session.consumer(Q)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive(DEADLINE_S)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert consumer._subscription.gate == []
        session.producer(Q).send("still here")
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        assert message.text == "still here"
