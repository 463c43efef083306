"""Calls that would commit a half, closed sessions, and arguments that cannot be sent: refused, on both faces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Group
from test_faces import Q

from amq.client import ConnectionClosedError
from amq.core.errors import CommandError


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


@asynccontextmanager
async def with_session(face: Any) -> AsyncIterator[tuple[Any, Group]]:
    with Group() as group:
        connection = await face.connect(group.url)
        try:
            yield connection.session(transacted=True), group
        finally:
            await connection.close()


async def nested(session: Any) -> None:
    async with session.transaction():
        pass


async def again(session: Any) -> None:
    async def nothing(_: Any) -> None:
        pass

    await session.exactly_once(nothing)


async def commit(session: Any) -> None:
    await session.commit()


async def prepare(session: Any) -> None:
    await session.prepare("x")


async def rollback(session: Any) -> None:
    await session.rollback()


@pytest.mark.parametrize("call", [nested, again, commit, prepare, rollback])
async def test_what_ends_the_transaction_of_exactly_once_is_refused(face: Any, call: Any) -> None:
    async with with_session(face) as (session, group):

        async def work(session: Any) -> None:
            await session.producer(Q).send("a half")
            await call(session)

        with pytest.raises(CommandError, match=r"inside exactly_once\(\)"):
            await session.exactly_once(work)
        assert group.store.bodies(Q) == []

        async def right(session: Any) -> str:
            await session.producer(Q).send("whole")
            return "done"

        assert await session.exactly_once(right) == "done", "the session serves on"
        assert group.store.bodies(Q) == [b"whole"]


@pytest.mark.parametrize("call", [nested, again])
async def test_a_transaction_in_a_transaction_is_refused(face: Any, call: Any) -> None:
    async with with_session(face) as (session, group):

        async def outer() -> None:
            async with session.transaction():
                await session.producer(Q).send("a half")
                await call(session)

        with pytest.raises(CommandError):
            await outer()
        assert group.store.bodies(Q) == []
        async with session.transaction():
            await session.producer(Q).send("one")
            await session.commit()  # in steps, as the application wishes
            await session.producer(Q).send("two")
        assert group.store.bodies(Q) == [b"one", b"two"]


async def test_a_closed_session_commits_nothing(face: Any) -> None:
    async with with_session(face) as (session, group):

        async def work(session: Any) -> None:
            await session.producer(Q).send("lost")
            await session.close()

        with pytest.raises(ConnectionClosedError, match="session was closed"):
            await session.exactly_once(work)
        with pytest.raises(ConnectionClosedError, match="session was closed"):
            await session.commit()
        assert group.store.bodies(Q) == []


async def test_a_closed_connection_commits_nothing(face: Any) -> None:
    async def work(_: Any) -> str:
        raise AssertionError("the work must not run")

    with Group() as group:
        connection = await face.connect(group.url)
        session = connection.session(transacted=True)
        await connection.close()
        with pytest.raises(ConnectionClosedError):
            await session.commit()
        with pytest.raises(ConnectionClosedError):
            await session.exactly_once(work)


@pytest.mark.parametrize(
    ("body", "arguments", "says"),
    [
        ({"a": 1}, {}, "a body of type dict cannot be sent: write bytes or str"),
        (None, {}, "a body of type NoneType"),
        ("x", {"time_to_live": -5}, "time_to_live=-5: write seconds"),
        ("x", {"time_to_live": float("nan")}, "time_to_live=nan"),
        ("x", {"time_to_live": "5"}, "time_to_live='5'"),
        ("x", {"delay": 1e308}, "delay=1e[+]308: write seconds"),
        ("x", {"headers": {1: "a"}}, "header 1: write its name as a str"),
        ("x", {"priority": "4"}, "priority='4': write a number"),
        ("x", {"priority": 10}, "priority=10: write a number"),
    ],
)
async def test_what_cannot_be_sent_is_refused_with_the_cure(face: Any, body: Any, arguments: Any, says: str) -> None:
    async with with_session(face) as (session, group):
        for each in (session, session.connection.session()):
            with pytest.raises(CommandError, match=says):
                await each.producer(Q).send(body, **arguments)
        await session.commit()
        assert group.store.bodies(Q) == []
