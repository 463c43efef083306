"""What every feature must keep when the master dies before, during or after its use: topics, names, and what happens
to a message later. How a story works is told in `matrix_features`.
"""

from __future__ import annotations

import time

from matrix_clients import Link
from matrix_features import receive, send, strings, take, take_all, take_until, wait_for
from matrix_group import AFTER, BEFORE, During, Moment, Peer, Story

SOON_MS = 300


def durable(name: str, shared: bool = False) -> dict[str, str]:
    """Headers of a SUBSCRIBE."""
    return {"activemq.subscriptionName": name} | ({"activemq.shared": "true"} if shared else {})


# -- topics ------------------------------------------------------------------------------------------------------------


def topics(peer: Peer) -> Story:
    """Subscriptions are there again on the next master: from then on both get everything."""
    producer, topic = peer.connect(), peer.unique("/topic/matrix")
    consumers = [peer.connect().consumer(pattern) for pattern in (topic, f"{topic}.>")]
    send(producer, topic, range(3))
    assert [take(consumer, 3) for consumer in consumers] == [strings(range(3))] * 2
    yield BEFORE
    send(producer, topic, [3])
    assert [take(consumer, 1) for consumer in consumers] == [["3"]] * 2
    yield During(lambda: producer.send(topic, "during"))
    send(producer, topic, [4])
    for consumer in consumers:
        found = take_until(consumer, "4")
        if peer.in_flight:  # it is sent again as soon as the sender is back, to whoever is back then
            assert found in (["during", "4"], ["4"])
        else:
            assert found == ["during", "4"]
    yield AFTER
    send(producer, topic, [5, 6])
    assert [take(consumer, 2) for consumer in consumers] == [["5", "6"]] * 2


def durable_subscriptions(peer: Peer) -> Story:
    """Neither one who is away nor one who is there when the master dies misses anything, or gets it twice."""
    producer, topic = peer.connect(), peer.unique("/topic/matrix")
    away_id, there_id = peer.unique("away"), peer.unique("there")
    away = peer.connect(away_id)
    away.consumer(topic, durable("s"))
    peer.leave(away)
    there = peer.connect(there_id).consumer(topic, durable("s"))
    send(producer, topic, range(3))
    found = take(there, 2)
    yield BEFORE
    send(producer, topic, [3])
    yield During(lambda: producer.send(topic, "4"))
    send(producer, topic, [5])
    found += take(there, 2)
    yield AFTER
    send(producer, topic, [6])
    assert found + take(there, 3) == strings(range(7))
    back = peer.connect(away_id)
    consumer = back.consumer(topic, durable("s"))
    assert take(consumer, 7) == strings(range(7))
    send(producer, topic, ["end"])
    assert take(there, 1) == take(consumer, 1) == ["end"]


def ends_of_durable_subscriptions(peer: Peer) -> Story:
    """A subscription that ended is gone with what waited in it, on the next master too; to end it again is no error."""
    producer, topic, client_id = peer.connect(), peer.unique("/topic/matrix"), peer.unique("client")
    subscriber = peer.connect(client_id)
    for name in ("kept", "first", "second"):
        other = peer.connect(client_id)
        other.consumer(topic, durable(name))
        peer.leave(other)
    send(producer, topic, range(3))
    subscriber.unsubscribe("first")
    yield BEFORE
    yield During(lambda: subscriber.unsubscribe("second"))
    yield AFTER
    for name in ("first", "second"):
        subscriber.unsubscribe(name)
        consumer = subscriber.consumer(topic, durable(name))
        producer.send(topic, name)
        assert take(consumer, 1) == [name], "nothing from before its end"
    assert take(subscriber.consumer(topic, durable("kept")), 5) == ["0", "1", "2", "first", "second"]


def shared_durable_subscriptions(peer: Peer) -> Story:
    """Several share what one subscription gets: each message goes to one of them, none is missed."""
    producer, topic, name = peer.connect(), peer.unique("/topic/matrix"), peer.unique("shared")
    options = {**durable(name, shared=True), "activemq.prefetchSize": "1"}
    consumers = [peer.connect().consumer(topic, options) for _ in range(2)]
    send(producer, topic, range(4))
    first = [receive(consumer) for consumer in consumers]
    for message in first:
        assert message.ack()
    yield BEFORE
    yield During(lambda: producer.send(topic, "4"))
    send(producer, topic, [5])
    found = take_all(consumers, 2)
    yield AFTER
    send(producer, topic, [6, 7])
    found += take_all(consumers, 4)
    assert sorted([each.body for each in first] + [message.body for _, message in found]) == strings(range(8))


# -- names -------------------------------------------------------------------------------------------------------------


def composites_and_wildcards(peer: Peer) -> Story:
    """A composite message is in all its queues or in none; one consumer gets what is in all that its pattern means."""
    link, name = peer.connect(), peer.unique("/queue/matrix")
    both = f"{name}.a,{name}.b"
    send(link, both, range(2))
    yield BEFORE
    yield During(lambda: link.send(both, "2"))
    send(link, both, [3])
    yield AFTER
    assert link.browse(f"{name}.a") == link.browse(f"{name}.b") == strings(range(4))
    found = take_all([link.consumer(f"{name}.*")], 8)
    for queue in ("a", "b"):
        mine = [message for _, message in found if message.headers["destination"] == f"{name}.{queue}"]
        assert [message.body for message in mine] == strings(range(4))
        assert {message.headers["original-destination"] for message in mine} == {both}
    assert link.browse(f"{name}.>") == []


def virtual_topics(peer: Peer) -> Story:
    """Each application's queue stores what is sent to the topic while the application is away."""
    link = peer.connect()
    topic = peer.unique("VirtualTopic")
    queues = [f"/queue/Consumer.{name}.{topic}" for name in ("A", "B")]
    for queue in queues:
        visitor = peer.connect()
        visitor.consumer(queue)
        peer.leave(visitor)
    send(link, f"/topic/{topic}", [0])
    yield BEFORE
    send(link, f"/topic/{topic}", [1])
    yield During(lambda: link.send(f"/topic/{topic}", "2"))
    send(link, f"/topic/{topic}", [3])
    yield AFTER
    for queue in queues:
        assert link.browse(queue) == strings(range(4))
        assert take(link.consumer(queue), 4) == strings(range(4))
        assert link.browse(queue) == []


def diverts(peer: Peer) -> Story:
    """What is diverted is in both queues or in none."""
    link, queue = peer.connect(), peer.unique("/queue/matrix.diverted")

    def audited() -> list[str]:
        return [body for body in link.browse("/queue/matrix.audit") if body.startswith(f"{queue} ")]

    send(link, queue, [f"{queue} {number}" for number in range(2)])
    yield BEFORE
    yield During(lambda: link.send(queue, f"{queue} 2"))
    send(link, queue, [f"{queue} 3"])
    yield AFTER
    expected = [f"{queue} {number}" for number in range(4)]
    assert link.browse(queue) == audited() == expected
    assert take(link.consumer(queue), 4) == expected
    assert link.browse(queue) == []
    assert audited() == expected


def requests_and_replies(peer: Peer) -> Story:
    """The temporary queue is there again, empty and by a new name: who got no answer asks again."""
    asker, service, queue = peer.connect(), peer.connect(), peer.unique("/queue/matrix")
    requests, replies = service.consumer(queue), asker.consumer("/temp-queue/replies")

    def ask(number: int) -> None:
        asker.send(queue, str(number), **{"reply-to": "/temp-queue/replies", "correlation-id": number})

    def answer() -> str:
        request = receive(requests)
        assert request.ack()
        service.send(request.headers["reply-to"], f"to {request.body}")
        return request.headers["reply-to"]

    ask(0)
    names = {answer()}
    assert take(replies, 1) == ["to 0"]
    yield BEFORE
    yield During(lambda: ask(1))
    names.add(answer())
    ask(2)
    names.add(answer())
    old_name = peer.moment is Moment.UNTOLD  # it leads nowhere: the request is stored with it
    assert take_until(replies, "to 2") == (["to 2"] if old_name else ["to 1", "to 2"])
    yield AFTER
    ask(3)
    names.add(answer())
    assert take(replies, 1) == ["to 3"]
    assert len(names) == 2, "one for each master"
    assert asker.browse(queue) == []


# -- later -------------------------------------------------------------------------------------------------------------


def _poison(link: Link, queue: str) -> tuple[list[str], list[str]]:
    """What is in the queue and what in its dead-letter queue."""
    return link.browse(queue), link.browse(queue.replace("/queue/", "/queue/DLQ."))


def redelivery(peer: Peer) -> Story:
    """Failed deliveries are counted across a takeover, and after the third the message is a dead letter."""
    link, queue = peer.connect(), peer.unique("/queue/matrix.poison")
    send(link, queue, ["poison"])
    consumer = link.consumer(queue)
    assert receive(consumer).nack(requeue=True)
    yield BEFORE
    message = receive(consumer)
    assert message.headers["JMSXDeliveryCount"] == "2"
    yield During(lambda: message.nack(requeue=True))
    yield AFTER
    for count in range(2 if peer.unread else 3, 4):
        message = receive(consumer)
        assert message.headers["JMSXDeliveryCount"] == str(count)
        assert message.nack(requeue=True)
    wait_for(lambda: _poison(link, queue), ([], ["poison"]))
    (dead,) = [each for _, each in take_all([link.consumer(queue.replace("/queue/", "/queue/DLQ."))], 1)]
    assert dead.headers["original-destination"] == queue
    assert dead.headers["dead-letter-deliveries"] == "3"


def dead_letters(peer: Peer) -> Story:
    """What is refused is in one of the two queues at every moment, and in the other one when that was confirmed."""
    link, queue = peer.connect(), peer.unique("/queue/matrix")
    send(link, queue, range(4))
    consumer = link.consumer(queue)
    assert receive(consumer).nack(requeue=False)
    yield BEFORE
    message = receive(consumer)
    assert message.body == "1"
    yield During(lambda: message.nack(requeue=False))
    yield AFTER
    queued, dead = _poison(link, queue)
    assert (queued, dead) == ((["1", "2", "3"], ["0"]) if peer.unread else (["2", "3"], ["0", "1"]))
    assert take(consumer, len(queued)) == queued
    assert _poison(link, queue) == ([], dead)
    found = take_all([link.consumer(queue.replace("/queue/", "/queue/DLQ."))], len(dead))
    assert [each.body for _, each in found] == dead
    assert {each.headers["dead-letter-reason"] for _, each in found} == {"refused by the consumer"}


def expiry(peer: Peer) -> Story:
    """What expires, with or without a master, is a dead letter, once; the rest stays."""
    link, queue = peer.connect(), peer.unique("/queue/matrix.late")

    def send_short_lived(number: int) -> None:
        link.send(queue, f"late {number}", expires=int(time.time() * 1000) + SOON_MS)

    send(link, queue, ["stays 0"])
    send_short_lived(0)
    yield BEFORE
    yield During(lambda: send_short_lived(1))
    send_short_lived(2)
    send(link, queue, ["stays 1"])
    yield AFTER
    wait_for(lambda: sorted(_poison(link, queue)[1]), [f"late {number}" for number in range(3)])
    assert _poison(link, queue)[0] == ["stays 0", "stays 1"]
    assert take(link.consumer(queue), 2) == ["stays 0", "stays 1"]


def scheduling(peer: Peer) -> Story:
    """A scheduled message comes at its time, once, from whoever is master then; a series as often as it shall."""
    link, queue = peer.connect(), peer.unique("/queue/matrix")
    schedule = queue.replace("/queue/", "/schedule/queue.")
    link.send(queue, "in an hour", AMQ_SCHEDULED_DELAY=3_600_000)
    link.send(queue, "series", AMQ_SCHEDULED_DELAY=SOON_MS, AMQ_SCHEDULED_PERIOD=SOON_MS, AMQ_SCHEDULED_REPEAT=2)
    send(link, queue, [0], AMQ_SCHEDULED_DELAY=SOON_MS)
    yield BEFORE
    yield During(lambda: link.send(queue, "1", AMQ_SCHEDULED_DELAY=SOON_MS))
    send(link, queue, [2], AMQ_SCHEDULED_DELAY=SOON_MS)
    yield AFTER
    consumer = link.consumer(queue)
    assert sorted(take(consumer, 6)) == ["0", "1", "2", "series", "series", "series"]
    assert link.browse(schedule) == ["in an hour"]
    link.send(queue, "end")
    assert take(consumer, 1) == ["end"]
    assert link.browse(queue) == []
