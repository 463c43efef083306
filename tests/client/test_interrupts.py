"""The synchronous face where a signal's handler raises in the middle of a call, as for Ctrl-C; silent hosts, on both.

The signal comes at exact places: just after the kernel has taken bytes, or after they were taken from what waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Broker, Store

import amq
from amq.client import ConnectError, FailoverTimeoutError, aio, driver, link
from amq.core.errors import TransactionRolledBackError
from tests.patience import DEADLINE_S

Q = "/queue/q"
SMALL = [b"%d" % number for number in range(300)]


class Interrupted(Exception):
    """What the handler raises."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(Store()) as broker:
        yield broker


@pytest.fixture
def handler() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


class Trap:
    """Raises the signal once, in the main thread, behind a call of `name` of `where` that did something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        self.armed = False
        original = getattr(where, name)

        def call(*arguments: Any) -> Any:
            result = original(*arguments)
            if self.armed and result and threading.current_thread() is threading.main_thread():
                self.armed = False
                signal.raise_signal(signal.SIGALRM)
            return result

        monkeypatch.setattr(where, name, call)


def url(broker: Broker) -> str:
    return f"failover:({broker.uri})?initialReconnectDelay=1"


@pytest.fixture(params=["sent", "taken"])
def trap(request: pytest.FixtureRequest, handler: None, monkeypatch: pytest.MonkeyPatch) -> Trap:  # noqa: ARG001
    """Just after the kernel has taken bytes, or after they were taken from what waits."""

    class Socket(socket.socket):
        send = socket.socket.send

    monkeypatch.setattr(driver.socket, "socket", Socket)
    if request.param == "sent":
        return Trap(monkeypatch, Socket, "send")
    return Trap(monkeypatch, link.Link, "take_output")


def test_what_the_kernel_took_when_a_signal_came_is_not_committed(broker: Broker, trap: Trap) -> None:
    """It went out twice, or never, and the commit said that all was well."""
    with amq.connect(url(broker)) as connection, connection.session(transacted=True) as session:
        producer = session.producer(Q)
        producer.send("first")
        session.commit()
        trap.armed = True
        with pytest.raises(Interrupted):
            producer.send_many(SMALL)
        with pytest.raises(TransactionRolledBackError):
            session.commit()
        producer.send_many(SMALL)
        session.commit()
    assert broker.store.bodies(Q) == [b"first", *SMALL]


def test_a_send_that_a_signal_interrupts_is_stored_once(broker: Broker, trap: Trap) -> None:
    with amq.connect(url(broker)) as connection, connection.session() as session:
        producer = session.producer(Q)
        for number in range(100):
            producer.send(str(number), wait=False)
        trap.armed = True
        with pytest.raises(Interrupted):
            producer.send("100")
        producer.send("101")
        producer.flush(DEADLINE_S)
    assert broker.store.bodies(Q) == [b"%d" % number for number in range(102)]


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("before", [False, True])
def test_a_signal_around_the_wait_leaves_the_lock_as_it_was(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """As it is let go, and just before: the handler's exception comes out, and others can go on."""
    with amq.connect(url(broker)) as connection, connection.session() as session:
        consumer, producer = session.consumer(Q), session.producer(Q)
        lock = connection._driver.lock

        class Lock:
            armed = True

            def release(self) -> None:
                if not before:
                    lock.release()
                if self.armed:
                    self.armed = False
                    signal.raise_signal(signal.SIGALRM)
                if before:
                    lock.release()

            def __getattr__(self, name: str) -> Any:
                return getattr(lock, name)

            def __enter__(self) -> None:
                lock.acquire()

            def __exit__(self, *_: object) -> None:
                lock.release()

        monkeypatch.setattr(connection._driver, "lock", Lock())
        with pytest.raises(Interrupted):
            consumer.receive(DEADLINE_S)
        producer.send("still here")
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        assert message.text == "still here"


def addresses(*given: tuple[str, int]) -> Any:
    """A resolver that knows one host; numbers it takes as they are."""
    original = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *numbers: int, **options: Any) -> list[Any]:
        if host != "two-hosts":
            return original(host, port, *numbers, **options)
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in given]

    return getaddrinfo


@contextlib.contextmanager
def silent_host() -> Iterator[tuple[str, int]]:
    """An address at which no connection comes about, and none is refused: its backlog is full."""
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listening.getsockname())
        yield listening.getsockname()


def test_the_next_address_of_a_host_is_tried_when_the_first_is_silent(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_host() as silent:
        live = ("127.0.0.1", int(broker.uri.rpartition(":")[2]))
        monkeypatch.setattr(socket, "getaddrinfo", addresses(silent, silent, live))
        with amq.connect("stomp://two-hosts:61613?connectTimeout=1500", timeout=DEADLINE_S) as connection:
            connection.session().producer(Q).send("by the third")
        monkeypatch.setattr(socket, "getaddrinfo", addresses(silent))
        with pytest.raises(ConnectError):
            amq.connect("stomp://two-hosts:61613?connectTimeout=100", timeout=DEADLINE_S)
    assert broker.store.bodies(Q) == [b"by the third"]


def test_the_asyncio_face_tries_the_next_address_too(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(silent: tuple[str, int]) -> None:
        live = ("127.0.0.1", int(broker.uri.rpartition(":")[2]))
        monkeypatch.setattr(socket, "getaddrinfo", addresses(silent, live))
        async with await aio.connect("stomp://two-hosts:61613?connectTimeout=1500") as connection:
            await connection.session().producer(Q).send("by the second")

    with silent_host() as silent:
        asyncio.run(scenario(silent))
    assert broker.store.bodies(Q) == [b"by the second"]


def test_a_resolver_that_hangs_holds_nobody_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who connects, nor a connection that looks for the broker it prefers."""
    original, free, asked = socket.getaddrinfo, threading.Event(), threading.Event()

    def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        if host == "hangs":
            if options.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "no number")
            asked.set()
            assert free.wait(DEADLINE_S)
        return original(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        with pytest.raises(FailoverTimeoutError):
            amq.connect("failover:(stomp://hangs:1)", timeout=0.2)
        assert asked.is_set()
        asked.clear()
        options = "priorityBackup=true&randomize=false&nested.connectTimeout=50"
        preferring = f"failover:(stomp://hangs:2,{broker.uri})?{options}"
        with amq.connect(preferring, timeout=DEADLINE_S) as connection:
            assert asked.wait(DEADLINE_S)
            connection.session().producer(Q).send("meanwhile")
        assert not free.is_set()
    finally:
        free.set()
    assert broker.store.bodies(Q) == [b"meanwhile"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """A resolver that knows no name until the event is set; and the names that it was asked for."""
    original, free, asked = socket.getaddrinfo, threading.Event(), []

    def getaddrinfo(host: str, port: int, *numbers: int, **options: Any) -> list[Any]:
        if host.startswith("slow"):
            if options.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "no number")
            asked.append(host)
            assert free.wait(DEADLINE_S)
            host = "127.0.0.1"
        return original(host, port, *numbers, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield free, asked
    free.set()


@pytest.mark.parametrize("face", [SyncFace, AsyncFace])
def test_a_look_up_that_takes_longer_than_an_attempt_helps_a_later_one(
    broker: Broker, slow: tuple[threading.Event, list[str]], caplog: pytest.LogCaptureFixture, face: Any
) -> None:
    free, asked = slow
    port = broker.uri.rpartition(":")[2]

    class Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "3 rounds of attempts failed" in record.getMessage():
                free.set()

    async def scenario() -> None:
        failover = f"failover:(stomp://slow:{port}?connectTimeout=100)?warnAfterReconnectAttempts=3"
        async with await face.connect(failover, timeout=DEADLINE_S) as connection:
            await connection.session().producer(Q).send("by a late answer")
        free.clear()
        before = len(asked)
        with pytest.raises(ConnectError, match="look-up of the host name takes longer than 50 ms"):
            await face.connect(f"stomp://slow-too:{port}?connectTimeout=50")
        free.set()
        async with await face.connect(f"stomp://slow-too:{port}?connectTimeout=20000") as connection:
            await connection.session().producer(Q).send("by an answer for another connection")
        assert asked[before:] == ["slow-too"]

    logging.getLogger("amq.client").addHandler(handler := Freeing())
    try:
        asyncio.run(scenario())
    finally:
        logging.getLogger("amq.client").removeHandler(handler)
    assert "look-up of the host name takes longer than 100 ms" in caplog.text
    assert broker.store.bodies(Q) == [b"by a late answer", b"by an answer for another connection"]
