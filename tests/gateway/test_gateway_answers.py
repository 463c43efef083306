"""What a client of several stores hears: ids of messages in selectors, and errors of stores that know more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from amq.core.destination import ANY_REST, Pattern
from amq.core.message import GivenIds, Message, ids_of_cluster
from amq.core.xid import Xid
from amq.protocols.commands import Begin, CommitBatch, Finish, Prepare, Send
from tests.gateway.routed import Cluster, RoutedClient
from tests.gateway.test_router import name_in, says
from tests.subscribing import subscribe

ALL = Pattern("queue://", (ANY_REST,))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 3)
    yield made
    made.close()


def of_gateway(cluster: Cluster) -> RoutedClient:
    """A client that knows messages as those of a gateway do."""
    client = cluster.connect()
    client.session.ids = ids_of_cluster("5f1d3c2ab901ffff")  # type: ignore[attr-defined]
    return client


def test_a_selector_finds_a_message_by_the_id_that_its_client_has_seen(cluster: Cluster) -> None:
    producer, first = cluster.connect(), of_gateway(cluster)
    names = [name_in(cluster, store) for store in range(3)]
    says(cluster, producer, *(Send(Message(name, name.encode())) for name in names))
    says(cluster, first, subscribe("all", ALL, browser=True))
    ids = {each.body.decode(): f"ID:5f1d3c2ab901-{each.seq}" for each in first.deliveries}
    assert sorted(ids) == sorted(names)
    wanted = ids[names[1]]
    for selector, expected in (
        (f"JMSMessageID = '{wanted}'", [names[1]]),
        (f"JMSMessageID IN ('{wanted}', '{ids[names[2]]}')", [names[1], names[2]]),
        (f"JMSMessageID <> '{wanted}'", [names[0], names[2]]),
        ("JMSMessageID LIKE 'ID:5f1d3c2ab901-%'", names),
        ("JMSMessageID LIKE 'ID:another-%'", []),
    ):
        client = of_gateway(cluster)
        says(cluster, client, subscribe("some", ALL, browser=True, selector=selector))
        assert sorted(each.body.decode() for each in client.deliveries) == sorted(expected), selector
    client = of_gateway(cluster)
    says(cluster, client, subscribe("one", names[1], selector=f"JMSMessageID = '{wanted}'"))
    assert client.bodies == [names[1].encode()]


def test_an_id_is_read_as_it_was_written() -> None:
    for ids in (GivenIds("ID:x-"), ids_of_cluster("cluster", 7)):
        for seq in (0, 1, (1 << 63) + 5):
            assert ids.seq_of(f"{ids.prefix}{seq << ids.bits | ids.place}") == seq
        assert [ids.seq_of(text) for text in ("ID:x-", "ID:x-y", f"{ids.prefix}{'9' * 30}")] == [None] * 3
    assert ids_of_cluster("cluster", 7).seq_of("ID:cluster-8") is None, "of another store"


def test_the_error_of_a_store_that_knows_more_counts(cluster: Cluster) -> None:
    """Others know nothing of it, and carry it out or say so."""
    client, name, xid = cluster.connect(), name_in(cluster, 1), Xid(1, b"g", b"b")
    says(cluster, client, Begin("t"), Send(Message(name, b"x"), None, "t"), Prepare("t", xid, receipt="p"))
    says(cluster, client, Finish(xid, False, "f"))
    assert client.confirmed == ["p", "f"]
    for again, code in (
        (Finish(xid, True, "g"), "TRANSACTION_ROLLED_BACK"),
        (Finish(Xid(1, b"g", b"c"), True, "h"), "UNKNOWN_TRANSACTION"),
    ):
        client = cluster.connect()
        says(cluster, client, again)
        assert client.codes == [code]
    world = cluster.worlds[0]  # which decides batches
    own = world.connect()
    own.do(CommitBatch("job", 7, [], "1", (1, 11)))
    world.settle()
    client = cluster.connect()
    says(cluster, client, CommitBatch("job", 7, [], "b", (2, 22)))
    assert client.codes == ["BATCH_DIFFERS"]


def test_a_refused_consumer_is_one_error(cluster: Cluster) -> None:
    client, heard = cluster.connect(), []
    client.fail = lambda failure: heard.append(failure.error.code)  # type: ignore[method-assign]
    says(cluster, client, subscribe("a", name_in(cluster, 1), "r", selector="colour = = 'red'"))
    says(cluster, client, subscribe("b", ALL, "s", selector="colour = = 'red'"))
    assert heard == ["INVALID_SELECTOR"] * 2
