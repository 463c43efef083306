"""Temporary queues and topics: replies reach the connection that asked, and nothing is left of it when it is gone."""

from __future__ import annotations

import pytest

from amq.broker.sessions.temporary import QUEUES_MAX
from amq.protocols.commands import MakeTemporary, RemoveTemporary
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.world import Client, World


def queue_of(client: Client, name: str = "replies") -> str:
    return f"temp-queue://{client.number}.{name}"


def topic_of(client: Client, name: str = "news") -> str:
    return f"temp-topic://{client.number}.{name}"


def test_request_and_reply(world: World) -> None:
    asker, service = world.connect(), world.connect()
    asker.subscribe(queue_of(asker), ACK_INDIVIDUAL)
    written = world.journal.position()
    for body in (b"1", b"2"):
        receipt = service.send(body, queue_of(asker))
        world.settle()
        assert receipt in service.confirmed
    assert asker.bodies == [b"1", b"2"]
    assert world.journal.position() == written
    world.check_at_rest()
    assert not world.broker.state.queues
    for body in (b"1", b"2"):
        asker.ack(body)
    world.settle()
    assert world.broker.memory.taken_bytes == 0


def test_replies_wait_for_a_consumer(world: World) -> None:
    """Also those that come before the connection subscribes, and beside a slow consumer any number."""
    asker, service = world.connect(), world.connect()
    service.send(b"early", queue_of(asker))
    world.settle_and_check()
    asker.subscribe(queue_of(asker), ACK_AUTO, id="1")
    world.settle()
    assert asker.bodies == [b"early"]
    asker.unsubscribe("1")
    service.send(b"later", queue_of(asker))
    asker.subscribe(queue_of(asker), ACK_AUTO, id="2")
    world.settle()
    assert asker.bodies == [b"early", b"later"]


def test_consumers_share_a_temporary_queue_and_a_topic_is_for_all(world: World) -> None:
    asker, service = world.connect(), world.connect()
    for id in ("1", "2"):
        asker.subscribe(queue_of(asker), ACK_AUTO, id=id)
        asker.subscribe(topic_of(asker), ACK_AUTO, id="t" + id)
    world.connect().subscribe("topic://>", ACK_AUTO)
    for body in (b"a", b"b"):
        service.send(body, queue_of(asker))
    service.send(b"n", topic_of(asker))
    world.settle()
    assert sorted((d.subscription, d.body) for d in asker.deliveries) == [
        ("1", b"a"),
        ("2", b"b"),
        ("t1", b"n"),
        ("t2", b"n"),
    ]
    assert not world.clients[-1].bodies, "not for those who want all topics"


def test_selectors_and_groups_are_those_of_queues(world: World) -> None:
    asker, service = world.connect(), world.connect()
    for id in ("1", "2"):
        asker.subscribe(queue_of(asker), ACK_INDIVIDUAL, id=id, selector=f"n = '{id}'")
    for n in ("1", "3", "2", "1"):
        service.send(n.encode(), queue_of(asker), properties={"n": n, "JMSXGroupID": n})
    world.settle()
    assert sorted((d.subscription, d.body) for d in asker.deliveries) == [("1", b"1"), ("1", b"1"), ("2", b"2")]
    world.check_at_rest()
    world.lose(asker)
    assert world.broker.memory.taken_bytes == 0


@pytest.mark.parametrize("name", [queue_of, topic_of])
def test_nobody_else_consumes_it(world: World, name: object) -> None:
    asker, thief = world.connect(), world.connect()
    thief.subscribe(name(asker))  # type: ignore[operator]
    world.settle()
    assert thief.codes == ["DESTINATION_REFUSED"]
    asker.subscribe(f"temp-queue://{asker.number}.*")
    world.settle()
    assert asker.codes == ["DESTINATION_REFUSED"]


def test_it_goes_with_its_connection(world: World) -> None:
    asker, service = world.connect(), world.connect()
    asker.subscribe(queue_of(asker), ACK_INDIVIDUAL, prefetch=1)
    for body in (b"1", b"2"):
        service.send(body, queue_of(asker))
    world.settle()
    asker.lose()
    receipt = service.send(b"late", queue_of(asker))
    world.settle()
    assert receipt in service.confirmed, "a service is not punished for a client that did not wait"
    assert not service.errors
    assert world.broker.memory.taken_bytes == 0
    assert not world.broker.topics.queues()
    world.check_at_rest()
    again = world.connect()
    again.subscribe(queue_of(again))
    world.settle()
    assert again.bodies == []


def test_in_a_transaction_and_refused(world: World) -> None:
    asker, service = world.connect(), world.connect()
    asker.subscribe(queue_of(asker), ACK_INDIVIDUAL)
    service.begin()
    service.send(b"1", queue_of(asker), transaction="t")
    service.send(b"q", "a", transaction="t")
    world.settle()
    assert asker.bodies == []
    service.commit()
    world.settle()
    assert asker.bodies == [b"1"]
    asker.begin()
    asker.ack(b"1", "t")
    asker.abort()
    world.settle()
    assert asker.deliveries[-1].redelivered == 1
    asker.nack(b"1")
    world.settle()
    assert world.stored("ActiveMQ.DLQ") == [b"1"]
    world.check_at_rest()


def test_a_composite_send_may_include_it(world: World) -> None:
    asker, service = world.connect(), world.connect()
    asker.subscribe(queue_of(asker), ACK_AUTO)
    service.send(b"x", f"{queue_of(asker)},queue://copy")
    world.settle()
    assert asker.bodies == world.stored("copy") == [b"x"]


def test_a_connection_has_a_bounded_number_of_queues(world: World) -> None:
    """A client that sends to names of its own invention makes no more queues, and is not disturbed."""
    asker, stranger = world.connect(), world.connect()
    names = [queue_of(asker, f"q{number}") for number in range(2 * QUEUES_MAX)]
    receipts = [stranger.send(b"x", name) for name in names]
    world.settle()
    assert set(receipts) <= set(stranger.confirmed)
    assert len(world.broker.topics.queues()) == QUEUES_MAX
    asker.subscribe(names[0], ACK_AUTO, id="kept")
    world.settle()
    assert asker.bodies == [b"x"]
    asker.subscribe(topic_of(asker), ACK_AUTO, id="topic")
    world.settle()
    assert not asker.codes
    asker.subscribe(names[-1], ACK_AUTO, id="one more")
    world.settle()
    assert asker.codes == ["TEMPORARY_QUEUES_TOO_MANY"]
    asker.close()
    world.settle()
    assert world.broker.topics.queues() == []
    assert world.broker.memory.taken_bytes == 0


def test_a_temporary_queue_can_be_browsed(world: World) -> None:
    """By the connection whose it is, also together with its consumers; nothing of it changes."""
    asker, service = world.connect(), world.connect()
    bodies = [b"%d" % i for i in range(5)]
    for body in bodies:
        service.send(body, queue_of(asker))
    asker.subscribe(queue_of(asker), ACK_INDIVIDUAL, 2, id="c")
    world.settle()
    taken = world.broker.memory.taken_bytes
    asker.subscribe(queue_of(asker), ACK_AUTO, id="b", browser=True)
    world.settle()
    assert [each.body for each in asker.deliveries if each.subscription == "b"] == bodies
    assert asker.browsed_ids == ["b"]
    assert world.broker.memory.taken_bytes == taken
    assert not world.broker.state.queues
    world.check_at_rest()
    service.subscribe(queue_of(asker), ACK_AUTO, id="b", browser=True)
    world.settle()
    assert service.codes == ["DESTINATION_REFUSED"]


def test_a_browse_ends_with_its_temporary_queue(world: World) -> None:
    asker = world.connect()
    name = "temp-queue://mine"
    asker.do(MakeTemporary(name))
    for body in (b"1", b"2", b"3"):
        asker.send(body, name)
    asker.subscribe(name, ACK_INDIVIDUAL, 2, id="b", browser=True)
    world.settle()
    assert (asker.bodies, asker.browsed_ids) == ([b"1", b"2"], [])
    asker.do(RemoveTemporary(name))
    world.settle()
    assert not asker.codes
    asker.ack(b"1")
    world.settle()
    assert (asker.bodies, asker.browsed_ids) == ([b"1", b"2"], ["b"])
    assert world.broker.memory.taken_bytes == 0
