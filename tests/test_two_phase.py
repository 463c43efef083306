"""The second phase of transactions as users of our client meet it: asked again of the next master, and with asyncio.

The stories of `tests/interop/matrix_features.py` end prepared transactions and batches through the master's death.
"""

from __future__ import annotations

import asyncio

import pytest

import amq
from amq import aio
from amq.broker.transactions.two_phase import TwoPhase
from amq.client import PreparedTransaction
from amq.journal.records import Prepared
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S


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


def test_the_list_says_which_stores_have_parts() -> None:
    """As a decider of several stores shows it, and a newer broker that says more."""
    message = TwoPhase.shown(Prepared("x", 7, 1, 0, sends={"queue://a": [1, 2]}, stores=["s2", "s3"]))
    found = PreparedTransaction.parse(message.body)
    assert (found.xid, found.sends, found.stores) == ("x", {"/queue/a": 2}, ["s2", "s3"])
    assert PreparedTransaction.parse(message.body.replace(b"{", b'{"more": 1, ', 1)) == found


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
            assert [message.body async for message in await session.browser("/queue/a")] == [b"1"]
            broker.kill()
            with pytest.raises(amq.client.TransactionRetryError):
                await connection.rollback_prepared("y", timeout=0.2)

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


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
