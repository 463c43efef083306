"""What sessions keep of their producers, and the outcomes of sends for which no call waited. On both faces."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Group
from test_faces import Q, refuse_bad

from amq.client import FlushError, ledger
from amq.core.errors import CommandError


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_close_flushes_all_and_tells_of_all(face: Any) -> None:
    with Group(script=refuse_bad) as group:
        connection = await face.connect(group.url)
        one, two = connection.session(), connection.session()
        bad = [await producer.send("bad", wait=False) for producer in (one.producer(Q), one.producer(Q))]
        await two.producer(Q).send("good", wait=False)
        bad.append(await two.producer(Q).send("bad", wait=False))
        with pytest.raises(FlushError) as failed:
            await connection.close()
        assert [id for id, _ in failed.value.failures] == bad
        assert connection.closed
        assert group.store.bodies(Q) == [b"good"]


async def test_a_session_keeps_no_producer_that_nobody_uses(face: Any) -> None:
    """An application that answers each request on another queue makes one for each."""
    with Group() as group:
        async with await face.connect(group.url) as connection:
            for session in (connection.session(), connection.session(transacted=True)):
                producer = session.producer(Q)
                await producer.send("1")
                await producer.send("2", wait=False)
                await producer.flush()
                await producer.send("3")
                gone = weakref.ref(getattr(producer, "_target", producer))
                del producer
                gc.collect()
                assert gone() is None


async def test_a_window_in_which_nothing_can_be_sent_is_refused(face: Any) -> None:
    for window in ({"send_window_messages": 0}, {"send_window_bytes": -1}):
        with pytest.raises(CommandError, match="from 1"):
            await face.connect("stomp://127.0.0.1:1", **window)


async def test_a_producer_is_forgotten_when_its_sends_are_confirmed_though_nobody_flushed(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session = connection.session()
            for number in range(50):
                await session.producer(f"/queue/{number}").send("answer", wait=False)
            await session.producer(Q).send("behind them all")
            assert connection._machine.ledger.unflushed(session._core) == []


async def test_failures_that_nobody_asks_for_do_not_pile_up(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them are told by the next send, and the rest at the end."""
    monkeypatch.setattr(ledger, "UNTOLD_MAX", 2)
    with Group(script=refuse_bad) as group:
        connection = await face.connect(group.url)
        session, other = connection.session(), connection.session()
        bad = [await session.producer(Q).send("bad", wait=False) for _ in range(2)]
        await other.producer(Q).send("good")
        await other.producer(Q).send("good", wait=False)
        with pytest.raises(FlushError) as failed:
            await session.producer("/queue/other").send("not sent", wait=False)
        assert sorted(id for id, _ in failed.value.failures) == sorted(bad)
        bad = [await session.producer(Q).send("bad", wait=False)]
        with pytest.raises(FlushError) as failed:
            await connection.close()
        assert [id for id, _ in failed.value.failures] == bad
        assert group.store.added == {Q: [b"good", b"good"]}
