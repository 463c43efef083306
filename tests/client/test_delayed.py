"""`delay`, `period`, `repeat` and `cron` of `send` are the headers of a scheduled message. On both faces."""

from __future__ import annotations

from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Broker, Store
from test_faces import failover

from amq.client.delayed import delayed
from amq.core.errors import CommandError

PREFIX = "AMQ_SCHEDULED_"


@pytest.fixture(params=[SyncFace, AsyncFace], ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_they_become_headers(face: Any) -> None:
    asked: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"delay": 1.5}, {"DELAY": "1500"}),
        ({"delay": 0.0001}, {"DELAY": "1"}),
        ({"period": 10, "repeat": 9}, {"PERIOD": "10000", "REPEAT": "9"}),
        ({"delay": 1, "period": 0.25, "repeat": -1}, {"DELAY": "1000", "PERIOD": "250", "REPEAT": "-1"}),
        ({"cron": "30 8 * * 1-5"}, {"CRON": "30 8 * * 1-5"}),
    ]
    store = Store()
    with Broker(store) as broker:
        async with await face.connect(failover(broker)) as connection:
            producer = connection.session().producer("/queue/q")
            transacted = connection.session(transacted=True)
            for arguments, _ in asked:
                await producer.send("x", headers={"colour": "red"}, **arguments)
                async with transacted.transaction():
                    await transacted.producer("/queue/q").send("x", headers={"colour": "red"}, **arguments)
    sent = [frame.headers for frame in store.frames if frame.command == "SEND"]
    assert [headers["colour"] for headers in sent] == ["red"] * 2 * len(asked)
    found = [{n.removeprefix(PREFIX): v for n, v in h.items() if n.startswith(PREFIX)} for h in sent]
    assert found == [headers for _, headers in asked for _ in range(2)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1},
        {"delay": float("inf")},
        {"delay": float("nan")},
        {"period": -0.1},
        {"repeat": 3},
        {"period": 1, "repeat": -2},
        {"delay": 1, "headers": {"AMQ_SCHEDULED_DELAY": "5"}},
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused_and_nothing_sent(face: Any, wrong: dict[str, Any]) -> None:
    store = Store()
    with Broker(store) as broker:
        async with await face.connect(failover(broker)) as connection:
            with pytest.raises(CommandError):
                await connection.session().producer("/queue/q").send("x", **wrong)
    assert not [frame for frame in store.frames if frame.command == "SEND"]


def test_other_headers_may_be_mixed() -> None:
    headers = {"AMQ_SCHEDULED_PERIOD": "500"}
    assert delayed(headers, 1, 0, 0, "") == {"AMQ_SCHEDULED_PERIOD": "500", "AMQ_SCHEDULED_DELAY": 1000}
    assert headers == {"AMQ_SCHEDULED_PERIOD": "500"}, "the caller's own"
