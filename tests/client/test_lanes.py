"""Lanes: a connection to a gateway sends to the store of a destination directly. One real broker is the store; another
one is the gateway, which only says that it is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import amq
from amq import aio
from amq.client import Connection, Whereabouts, lanes
from amq.client.uri import parse, redirected
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S

HOMED, SPREAD = "/queue/homed", "/queue/spread"
Connect = Callable[..., Connection]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "home").mkdir()
    with Brokers(tmp_path / "home") as group:
        yield group.master("b")


@pytest.fixture
def gateway(brokers: Brokers) -> Broker:
    return brokers.master("a")


@pytest.fixture
def connect(gateway: Broker, store: Broker, monkeypatch: pytest.MonkeyPatch) -> Connect:
    def where(_: Connection, *names: str) -> Whereabouts:
        uris = parse(f"stomp://127.0.0.1:{store.port}").uris
        homes = tuple("s1" if name == HOMED else "" for name in names)
        return Whereabouts("c", 1, homes, {"s1": uris, "s2": uris})

    monkeypatch.setattr(Connection, "where", where)

    def run(options: str = "redirect=true", **given: Any) -> Connection:
        return amq.connect(f"failover:(stomp://127.0.0.1:{gateway.port})?{options}", **given)

    return run


def stored(broker: Broker, queue: str = HOMED) -> list[str]:
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        browser, found = session.browser(queue), []
        while (message := browser.receive(DEADLINE_S)) is not None:
            found.append(message.text)
    return found


def test_what_has_one_home_goes_there_and_all_else_to_the_gateway(
    connect: Connect, gateway: Broker, store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amq.client")
    with connect() as connection, connection.session() as session, connection.session(transacted=True) as work:
        session.producer(HOMED).send("1")
        assert [*connection.direct] == ["s1"]
        assert str(connection.direct["s1"]) == f"stomp://127.0.0.1:{store.port}"
        session.producer(SPREAD).send("2")
        work.producer(HOMED).send("3")
        work.commit()
        assert (stored(store), stored(gateway), stored(gateway, SPREAD)) == (["1"], ["3"], ["2"])
        consumer = session.consumer(HOMED)
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        message.ack(wait=True)
        assert message.text == "1"
        consumer.close()
        producer = session.producer(HOMED)
        for number in range(100):
            producer.send(str(number), wait=False)
        producer.flush()
        assert stored(store) == [*map(str, range(100))]
    assert caplog.text.count("go to its master") == 1
    for options, given in (("redirect=false", {}), ("redirect=true", {"client_id": "me"})):
        with connect(options, **given) as connection, connection.session() as session:
            session.producer(HOMED).send("by the gateway")
            assert connection.direct == {}
    assert stored(gateway) == ["3", "by the gateway", "by the gateway"]


def test_a_lane_that_is_lost_goes_on_by_the_gateway(connect: Connect, gateway: Broker, store: Broker) -> None:
    with connect() as connection, connection.session() as session:
        producer = session.producer(HOMED)
        producer.send("1")
        store.kill()
        for number in range(2, 50):
            producer.send(str(number), wait=False)
        producer.flush(DEADLINE_S)
        assert stored(gateway) == [*map(str, range(2, 50))], "in order, by the way that is left"


def test_the_destinations_with_a_lane_are_bounded(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "NAMES_MAX", 2)
    with connect() as connection, connection.session() as session:
        assert session.producer(HOMED)._session is not session
        for number in range(9):
            session.producer(f"/queue/{number}")
        assert connection._lanes is not None
        assert len(connection._lanes._by_name) == 2
        assert session.producer(HOMED)._session is not session, "what has a lane keeps it"


def test_who_waits_for_an_answer_at_the_connection_sends_by_it(
    connect: Connect, gateway: Broker, store: Broker
) -> None:
    with connect() as connection, connection.session() as session:
        answers = session.consumer("/temp-queue/answers")
        producer = session.producer(HOMED)
        producer.send("1", wait=False)
        producer.send("2", headers={"reply-to": "/temp-queue/answers"}, wait=False)
        producer.send("3", wait=False)
        producer.flush()
        assert (stored(store), stored(gateway)) == (["1"], ["2", "3"])
        assert session.producer(HOMED)._session is session
        answers.close()


@pytest.mark.usefixtures("connect")
def test_the_face_for_asyncio_does_the_same(gateway: Broker, store: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Connection.where

    async def where(_: aio.Connection, *names: str) -> Whereabouts | None:
        return known(cast(Connection, None), *names)

    monkeypatch.setattr(aio.Connection, "where", where)

    async def story() -> None:
        url = f"failover:(stomp://127.0.0.1:{gateway.port})?redirect=true"
        async with await aio.connect(url) as connection, connection.session() as session:
            producer = session.producer(HOMED)
            await producer.send("1")
            assert [*connection.direct] == ["s1"]
            await session.producer(SPREAD).send("2")
            consumer = await session.consumer(HOMED)
            message = await consumer.receive(DEADLINE_S)
            assert message is not None
            assert message.text == "1"
            await message.ack(wait=True)
            await consumer.close()
            for number in range(9):
                await producer.send(str(number), wait=False)
            await producer.send("9", headers={"reply-to": "/temp-queue/answers"}, wait=False)
            await producer.flush()

    asyncio.run(story())
    assert (stored(store), stored(gateway), stored(gateway, SPREAD)) == ([*"012345678"], ["9"], ["2"])


def test_a_master_that_cannot_be_reached_costs_one_warning(
    connect: Connect, gateway: Broker, store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    store.kill()
    with connect() as connection, connection.session() as session:
        for number in range(3):
            session.producer(HOMED).send(str(number))
        session.consumer(HOMED).close()
    assert stored(gateway) == ["0", "1", "2"]
    assert caplog.text.count("its master cannot be reached") == 1


def test_the_url_of_other_brokers_has_the_same_options() -> None:
    uris = parse("failover:(stomp://bob@x:1,stomp+ssl://y:2)").uris
    for before, after in (
        ("stomp://a:1", "failover:(stomp://bob@x:1,stomp+ssl://y:2)"),
        ("stomp://a:1?heartBeat=5000", "failover:(stomp://bob@x:1,stomp+ssl://y:2)?nested.heartBeat=5000"),
        (
            "failover:(stomp://a:1,stomp://b:2)?maxReconnectDelay=9&redirect=true&priorityBackup=true",
            "failover:(stomp://bob@x:1,stomp+ssl://y:2)?maxReconnectDelay=9",
        ),
    ):
        assert redirected(before, uris) == after
    found = parse(redirected("failover:(stomp+ssl://a:1?trust=/x/y.pem)", uris))
    assert {uri.options.trust for uri in found.uris if uri.tls} == {"/x/y.pem"}
