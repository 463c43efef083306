"""Two-phase transactions and batches as users of our client and of stock clients meet them: real brokers, which are
killed between the phases."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import amq
from amq import aio
from amq.client import Session
from amq.core.errors import CommandError, TransactionRolledBackError
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S
from tests.sampling import sampled


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as brokers:
        yield brokers


def url(*brokers: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})"


def drain(connection: amq.Connection, name: str) -> list[bytes]:
    """All that is in the queue."""
    with connection.session() as session:
        browser, found = session.browser(f"/queue/{name}"), []
        while (message := browser.receive(DEADLINE_S)) is not None:
            found.append(message.body)
        assert browser.finished
    return found


def work(session: Session) -> None:
    """An order is worked on."""
    message = session.consumer("/queue/orders").receive(DEADLINE_S)
    assert message is not None
    session.producer("/queue/done").send(message.body.upper())


@pytest.mark.parametrize("commit", sampled([True, False]))
def test_another_client_finishes_it_on_the_next_master(brokers: Brokers, commit: bool) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    with amq.connect(url(master, slave)) as worker:
        worker.session().producer("/queue/orders").send(b"order")
        session = worker.session(transacted=True)
        work(session)
        session.prepare("xid-1", prepared_timeout=600)
        worker.abort()
    master.kill()
    with amq.connect(url(master, slave)) as other:
        (prepared,) = other.recover()
        assert (prepared.xid, prepared.timeout_ms) == ("xid-1", 600_000)
        assert (prepared.sends, prepared.acks) == ({"/queue/done": 1}, {"/queue/orders": 1})
        assert drain(other, "done") == drain(other, "orders") == []
        for _ in range(2):  # to ask again is harmless
            (other.commit_prepared if commit else other.rollback_prepared)("xid-1")
        assert other.recover() == []
        assert drain(other, "done") == ([b"ORDER"] if commit else [])
        assert drain(other, "orders") == ([] if commit else [b"order"])
        with pytest.raises(CommandError if commit else TransactionRolledBackError):
            (other.rollback_prepared if commit else other.commit_prepared)("xid-1")
        with pytest.raises(CommandError) as caught:
            other.commit_prepared("nobody")
        assert caught.value.code == "UNKNOWN_TRANSACTION"


def test_a_pipeline_of_batches_across_takeovers(brokers: Brokers) -> None:
    """Whatever is lost with a master, the driver asks again; no batch is committed twice or in part."""
    master, slave = brokers.master("a"), brokers.slave("b")
    expected = []
    with amq.connect(url(master, slave)) as driver:
        for batch in range(4):
            xids = []
            for partition in range(3):
                with amq.connect(url(master, slave)) as connection:
                    session = connection.session(transacted=True)
                    if partition:  # an empty partition is prepared as well
                        body = b"%d/%d" % (batch, partition)
                        session.producer("/queue/rows").send(body)
                        expected.append(body)
                    xids.append(f"q/{batch}/{partition}")
                    session.prepare(xids[-1], owner="q", batch=batch)
            if batch == 1:
                master.kill()
            assert driver.commit_batch("q", batch, xids) == "committed"
            if batch == 2:
                master.start()
                master.wait_slave()
                slave.kill()
            assert driver.commit_batch("q", batch, xids) == "duplicate"
        with pytest.raises(CommandError) as caught:
            driver.commit_batch("q", 1, ["q/1/0"])
        assert caught.value.code == "BATCH_TOO_OLD"
        with amq.connect(url(master, slave)) as zombie:
            session = zombie.session(transacted=True)
            session.producer("/queue/rows").send(b"late")
            with pytest.raises(TransactionRolledBackError) as refused:
                session.prepare("late", owner="q", batch=3)
            assert refused.value.code == "BATCH_COMMITTED"
        assert drain(driver, "rows") == expected
        assert driver.recover() == []


def test_headers_that_any_stomp_client_can_write(brokers: Brokers) -> None:
    stomp = pytest.importorskip("stomp")
    master, slave = brokers.master("a"), brokers.slave("b")

    class Receipts(stomp.ConnectionListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.frames: queue.Queue[Any] = queue.Queue()

        def on_receipt(self, frame: Any) -> None:
            self.frames.put(frame)

    def connected(broker: Broker) -> tuple[Any, Receipts]:
        client = stomp.StompConnection12([("127.0.0.1", broker.port)], reconnect_attempts_max=1)
        receipts = Receipts()
        client.set_listener("", receipts)
        client.connect(wait=True)
        return client, receipts

    client, receipts = connected(master)
    client.begin("t")
    client.send("/queue/a", "1", transaction="t")
    client.commit("t", headers={"phase": "prepare", "xid": "x", "owner": "q", "batch": "7", "receipt": "prepared"})
    assert receipts.frames.get(timeout=DEADLINE_S).headers["receipt-id"] == "prepared"
    master.kill()
    slave.wait_serving()
    client, receipts = connected(slave)
    for outcome in ("committed", "duplicate"):
        client.send_frame("COMMIT", {"owner": "q", "batch": "7", "xids": "x", "receipt": "r"})
        assert receipts.frames.get(timeout=DEADLINE_S).headers["outcome"] == outcome
    client.disconnect()
    with amq.connect(url(slave)) as ours:
        assert drain(ours, "a") == [b"1"]


def test_the_asynchronous_face(brokers: Brokers) -> None:
    broker = brokers.master("a")

    async def scenario() -> None:
        async with await aio.connect(url(broker)) as connection:
            session = connection.session(transacted=True)
            await session.producer("/queue/a").send(b"1")
            await session.prepare("x", owner="q", batch=1)
            await session.prepare("y")
            assert [each.xid for each in await connection.recover()] == ["x", "y"]
            assert await connection.commit_batch("q", 1, ["x"]) == "committed"
            assert await connection.commit_batch("q", 1, ["x"]) == "duplicate"
            await connection.commit_prepared("y")
            await session.prepare("z")
            await connection.rollback_prepared("z")
            assert await connection.recover() == []

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    with amq.connect(url(broker)) as connection:
        assert drain(connection, "a") == [b"1"]


def test_the_second_phase_without_a_master_is_to_be_asked_again(brokers: Brokers) -> None:
    """What is prepared waits for that; asked again, of the next master, it is committed."""
    master, later = brokers.master("a"), brokers.add("b")

    with amq.connect(url(master, later)) as connection:
        with connection.session(transacted=True) as session:
            session.producer("/queue/out").send("x")
            session.prepare("x")
        master.kill()
        with pytest.raises(amq.client.TransactionRetryError):
            connection.commit_prepared("x", timeout=0.2)
        with pytest.raises(amq.client.TransactionRetryError):
            connection.commit_batch("me", 1, ["x"], timeout=0.2)
        later.start().wait_serving()
        connection.commit_prepared("x")
        connection.commit_prepared("x")
        assert drain(connection, "out") == [b"x"]
        later.freeze()
        try:
            with pytest.raises(amq.client.TransactionRetryError):
                connection.rollback_prepared("x", timeout=0.2)
        finally:
            later.thaw()


@pytest.mark.deep
def test_the_second_phase_without_a_master_with_asyncio(brokers: Brokers) -> None:
    master = brokers.master("a")

    async def scenario() -> None:
        async with await aio.connect(url(master)) as connection:
            master.kill()
            for ask in (connection.commit_prepared, connection.rollback_prepared):
                with pytest.raises(amq.client.TransactionRetryError) as caught:
                    await ask("x", timeout=0.2)
                assert caught.value.code == "TRANSACTION_RETRY"
            with pytest.raises(amq.client.TransactionRetryError):
                await connection.commit_batch("me", 1, ["x"], timeout=0.2)

    asyncio.run(scenario())
