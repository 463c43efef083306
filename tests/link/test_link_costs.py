"""How many Python calls of a link, and of the broker behind it, a message of a run takes. They may only go down: a call
for each message would add a whole one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.link.linking import Linked, serve
from tests.test_calls import Calls, listed
from tests.transports.served import CONNECT, frame

RUN: Final = 64
BODY: Final = b"x" * 1024
# Of each message of a run: calls in both ends of the link, and in the broker and its journal.
CALLS_MAX: Final = {"send and deliver": {"link": 3.2, "broker": 1.0}, "acknowledge": {"link": 0.6, "broker": 0.6}}


def each(calls: Calls, *rooms: str) -> float:
    return sum(count for (path, _), count in calls.counts.items() if path.startswith(rooms)) / RUN


def test_calls_of_a_message_of_a_run(tmp_path: Path) -> None:
    async def test(served: Linked) -> None:
        consumer, producer = [await served.connect(CONNECT.replace(b"client-id:c\n", b"")) for _ in range(2)]
        subscription = {"id": 1, "destination": "/queue/a", "ack": "client-individual", "receipt": "s"}
        await served.say(consumer, frame("SUBSCRIBE", subscription))
        sends = [frame("SEND", {"destination": "/queue/a", "receipt": n}, BODY) for n in range(RUN)]
        for _ in range(2):  # the first opens the homes, and makes the queue
            consumer.read()
            consumer.said = b""
            with Calls() as sending:
                await served.say(producer, b"".join(sends))
            consumer.read()
            found = re.findall(rb"\nack:(.*)\n", consumer.said)
            assert len(found) == RUN
            with Calls() as acknowledging:
                await served.say(consumer, b"".join(frame("ACK", {"id": ack.decode()}) for ack in found))
        for name, calls in (("send and deliver", sending), ("acknowledge", acknowledging)):
            cost = {"link": each(calls, "link/"), "broker": each(calls, "broker/", "journal/")}
            assert all(cost[room] <= most for room, most in CALLS_MAX[name].items()), listed(calls.counts)

    serve(tmp_path, test)
