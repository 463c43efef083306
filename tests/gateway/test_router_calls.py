"""How many Python calls of the router a message takes, besides those of its peer and of its home. They may only go
down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amq.core.message import Message
from amq.protocols.commands import Command, Send, SendRun, Settle, SettleRun
from tests.gateway.routed import Cluster, RoutedClient
from tests.subscribing import subscribe
from tests.test_calls import Calls

NAME = "queue://a"
RUN = 64
# Of a SEND with a receipt, its answer and its delivery together, and its acknowledgement; the same of RUN messages.
# The homes of this test ask for the token of each message of a run, which is 6 of these calls. A link does not.
CALLS_MAX = {"send": 4, "deliver": 2, "settle": 4, "run": 12, "deliveries": 8, "settlements": 7}


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[tuple[Cluster, RoutedClient, RoutedClient]]:
    """A producer and a consumer, whose homes are open."""
    cluster = Cluster(tmp_path)
    producer, consumer = cluster.connect(), cluster.connect()
    consumer.session.handle([subscribe("c", NAME, acknowledges=True)])
    producer.session.handle([Send(Message(NAME, b"x"), "first")])
    rest(cluster)
    consumer.session.handle([Settle(consumer.deliveries[0].seq, "c")])
    rest(cluster)
    yield cluster, producer, consumer
    cluster.close()


def rest(cluster: Cluster) -> None:
    for world in cluster.worlds:
        world.wake()
    cluster.settle()


def calls_of(work: Callable[[], object]) -> int:
    with Calls() as calls:
        work()
    return sum(count for (path, _), count in calls.counts.items() if path.startswith("gateway"))


def test_of_one_message_and_of_a_run(clients: tuple[Cluster, RoutedClient, RoutedClient]) -> None:
    cluster, producer, consumer = clients

    def handled(client: RoutedClient, command: Command) -> int:
        return calls_of(lambda: client.session.handle([command]))

    found = {"send": handled(producer, Send(Message(NAME, b"x"), "r"))}
    found["deliver"] = calls_of(lambda: rest(cluster))
    found["settle"] = handled(consumer, Settle(consumer.deliveries[-1].seq, "c"))
    rest(cluster)
    before = len(consumer.deliveries)
    found["run"] = handled(producer, SendRun(Message(NAME, b""), [b"x"] * RUN, [*map(str, range(RUN))]))
    found["deliveries"] = calls_of(lambda: rest(cluster))
    seqs = [each.seq for each in consumer.deliveries[before:]]
    assert len(seqs) == RUN
    found["settlements"] = handled(consumer, SettleRun(seqs, "c"))
    assert {name: count for name, count in found.items() if count > CALLS_MAX[name]} == {}
