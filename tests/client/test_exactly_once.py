"""exactly_once: what is run again, what is not, and what is raised, on both faces."""

from __future__ import annotations

from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import CARRY_OUT_AND_CUT, CUT, IGNORE, Conversation
from test_faces import Group

from amq.client import CommitOutcomeUnknownError, DeliveryLostError
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode
from tests.patience import DEADLINE_S


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


class Faults:
    """A script: what happens to the first frames of one command."""

    def __init__(self, command: str, *verdicts: str | bytes | None) -> None:
        self._command = command
        self._verdicts = list(verdicts)

    def __call__(self, _: Conversation, frame: Frame) -> str | bytes | None:
        return self._verdicts.pop(0) if frame.command == self._command and self._verdicts else None


class Move:
    """The work of these tests: a message from one queue to another, in capitals. `hook` is called in its middle."""

    def __init__(self, consumer: Any, hook: Any = None) -> None:
        self.consumer = consumer
        self.hook = hook
        self.runs = 0

    async def __call__(self, session: Any) -> str:
        self.runs += 1
        message = await self.consumer.receive(DEADLINE_S)
        await session.producer("/queue/out").send(message.text.upper())
        if self.hook is not None:
            self.hook(self.runs)
        return str(message.text)


async def prepared(connection: Any, *bodies: str) -> tuple[Any, Any]:
    """A transacted session, and its consumer of a queue that holds these."""
    producer = connection.session().producer("/queue/in")
    for body in bodies:
        await producer.send(body)
    session = connection.session(transacted=True)
    return session, await session.consumer("/queue/in")


async def test_it_runs_once_where_nothing_happens(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a", "b")
            move = Move(consumer)
            assert [await session.exactly_once(move), await session.exactly_once(move)] == ["a", "b"]
        assert move.runs == 2
        assert group.store.acknowledged == [b"a", b"b"]
        assert group.store.bodies("/queue/out") == [b"A", b"B"]


@pytest.mark.parametrize(("verdict", "runs"), [(CUT, 2), (CARRY_OUT_AND_CUT, 1)])
async def test_a_commit_in_flight_is_asked_for(face: Any, verdict: str, runs: int) -> None:
    with Group(script=Faults("COMMIT", verdict)) as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a", "b")
            move = Move(consumer)
            assert await session.exactly_once(move) == "a"
            assert move.runs == runs
            assert await session.exactly_once(move) == "b"
        assert group.store.acknowledged == [b"a", b"b"]
        assert group.store.bodies("/queue/out") == [b"A", b"B"]


async def test_a_failover_before_the_commit_runs_it_again(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a", "b")
            move = Move(consumer, lambda runs: group.take_over() if runs < 3 else None)
            assert await session.exactly_once(move) == "a"
            assert move.runs == 3
        assert group.store.acknowledged == [b"a"]
        assert group.store.bodies("/queue/out") == [b"A"]


async def test_attempts_are_bounded(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a")
            move = Move(consumer, lambda _: group.take_over())
            with pytest.raises(TransactionRolledBackError):
                await session.exactly_once(move, attempts=2)
            assert move.runs == 2
            move.hook = None
            assert await session.exactly_once(move) == "a"
        assert group.store.bodies("/queue/out") == [b"A"]


async def test_a_name_is_done_once_by_whomever(face: Any) -> None:
    with Group() as group:
        for connection_number in range(2):
            async with await face.connect(group.url) as connection:
                session = connection.session(transacted=True)

                async def load(session: Any) -> int:
                    await session.producer("/queue/out").send("row 1")
                    return 1

                results = [await session.exactly_once(load, id="orders.csv") for _ in range(2)]
                assert results == ([1, None] if connection_number == 0 else [None, None])
        assert group.store.bodies("/queue/out") == [b"row 1"]


async def test_an_unknown_outcome_names_the_id_to_call_again_with(face: Any) -> None:
    """The broker commits, and its answer does not come in time."""

    def script(conversation: Conversation, frame: Frame) -> str | None:
        if frame.command == "COMMIT" and not conversation.store.outcomes:
            conversation.on_commit(frame)
            return IGNORE
        return None

    with Group(script=script) as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a", "b")
            with pytest.raises(CommitOutcomeUnknownError) as caught:
                await session.exactly_once(Move(consumer), timeout=0.05)
            assert caught.value.outcome_id
            again = Move(consumer)
            assert await session.exactly_once(again, id=caught.value.outcome_id) is None
            assert again.runs == 1
            assert await session.exactly_once(Move(consumer)) == "b"
        assert group.store.acknowledged == [b"a", b"b"]
        assert group.store.bodies("/queue/out") == [b"A", b"B"]


@pytest.mark.parametrize("code", ["DUPLICATE_ID", "QUEUE_FULL", "STORE_FULL"])
async def test_what_the_broker_refuses_is_raised_and_not_run_again(face: Any, code: str) -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.command != "COMMIT":
            return None
        return encode("ERROR", [("code", code), ("message", "no"), ("receipt-id", frame.headers["receipt"])])

    with Group(script=script) as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a")
            move = Move(consumer)
            with pytest.raises(TransactionRolledBackError) as caught:
                await session.exactly_once(move)
            assert caught.value.code == code
            assert move.runs == 1
        assert group.store.bodies("/queue/in") == [b"a"]


async def test_an_error_of_the_work_rolls_back_and_is_raised(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a")

            def fail(runs: int) -> None:
                if runs == 1:
                    raise DeliveryLostError("of something else")

            move = Move(consumer, fail)
            with pytest.raises(DeliveryLostError):
                await session.exactly_once(move)
            assert await session.exactly_once(move) == "a"
            assert move.runs == 2
        assert group.store.bodies("/queue/out") == [b"A"]


async def test_wrong_use_is_refused_before_the_work_runs(face: Any) -> None:
    with Group() as group:
        async with await face.connect(group.url) as connection:
            session, consumer = await prepared(connection, "a")
            move = Move(consumer)
            with pytest.raises(CommandError, match="not transacted"):
                await connection.session().exactly_once(move)
            with pytest.raises(CommandError, match="attempts=0"):
                await session.exactly_once(move, attempts=0)
            await session.producer("/queue/out").send("before")
            with pytest.raises(CommandError, match="commit or roll back first"):
                await session.exactly_once(move)
            await session.rollback()
            assert move.runs == 0
            assert await session.exactly_once(move) == "a"
        assert group.store.bodies("/queue/out") == [b"A"]
