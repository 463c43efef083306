"""Topics with a real broker: our client and stomp.py, through the death of the master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import amq
from tests.brokers import Broker, Brokers
from tests.cli.amq_process import amq as run_amq
from tests.patience import DEADLINE_S


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as brokers:
        yield brokers


def url(*group: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in group)})"


def receive(consumer: amq.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(DEADLINE_S)
        assert message is not None, f"only {found}"
        found.append(message.body)
        message.ack()
    return found


def test_a_subscription_is_made_again_on_the_next_master(brokers: Brokers) -> None:
    """What was not delivered when the master died is gone, as with any broker; what is sent afterwards comes."""
    master, slave = brokers.master("a"), brokers.slave("b")
    with amq.connect(url(master, slave)) as first, amq.connect(url(master, slave)) as second:
        consumers = [connection.session().consumer("/topic/prices.eu") for connection in (first, second)]
        everything = first.session().consumer("/topic/prices.>")
        producer = second.session().producer("/topic/prices.eu")
        for i in range(10):
            producer.send(b"%d" % i)
        for consumer in (*consumers, everything):
            assert receive(consumer, 10) == [b"%d" % i for i in range(10)]
        master.kill()
        # The producer's connection may be back before the other one: until that has subscribed nothing comes to it.
        late = first.session().consumer("/topic/late")
        second.session().consumer("/queue/back")
        producer.send(b"after")
        for consumer in (*consumers, everything):
            assert receive(consumer, 1) == [b"after"]
        late.close()


def test_a_slow_consumer_is_told_of_in_the_log(brokers: Brokers) -> None:
    broker = brokers.master("a", pendingMessageLimit=5)
    with amq.connect(url(broker)) as connection:
        session = connection.session()
        slow = session.consumer("/topic/t", prefetch=1)
        producer = session.producer("/topic/t")
        for i in range(20):
            producer.send(b"%d" % i)
        said = broker.wait_event("a topic's consumer is too slow: it misses messages")
        assert said["destination"] == "topic://t"
        assert said["policy"] == "discard-oldest"
        assert receive(slow, 6) == [b"0", *[b"%d" % i for i in range(15, 20)]]


def test_a_retroactive_consumer_gets_the_latest_first(brokers: Brokers) -> None:
    """What is kept for it ends with the master."""
    master, slave = brokers.master("a", subscriptionRecoveryCount=2), brokers.slave("b", subscriptionRecoveryCount=2)
    retroactive = {"activemq.retroactive": "true"}
    with amq.connect(url(master, slave)) as connection:
        producer = connection.session().producer("/topic/prices.eu")
        for i in range(5):
            producer.send(b"%d" % i)
        consumer = connection.session().consumer("/topic/prices.>", headers=retroactive)
        producer.send(b"5")
        assert receive(consumer, 3) == [b"3", b"4", b"5"]
        master.kill()
        producer.send(b"6")
        assert receive(consumer, 1) == [b"6"]


def test_request_and_reply_across_a_takeover(brokers: Brokers) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    with amq.connect(url(master, slave)) as asker, amq.connect(url(master, slave)) as service:
        requests = service.session().consumer("/queue/service")
        replies = asker.session().consumer("/temp-queue/replies")
        ask = asker.session().producer("/queue/service")
        names = set()
        for number in range(2):
            if number:
                master.kill()
            ask.send(b"question", headers={"reply-to": "/temp-queue/replies", "correlation-id": number})
            while True:  # what was not acknowledged before the kill comes again
                request = requests.receive(DEADLINE_S)
                assert request is not None
                request.ack(wait=True)
                if request.headers["correlation-id"] == str(number):
                    break
            name = request.headers["reply-to"]
            names.add(name)
            service.session().producer(name).send(b"answer %d" % number)
            reply = replies.receive(DEADLINE_S)
            assert reply is not None
            assert reply.body == b"answer %d" % number
            assert reply.headers["destination"] == "/temp-queue/replies"
            reply.ack()
        assert len(names) == 2, "a name of the old master leads nowhere"
        assert all(name.startswith("/remote-temp-queue/") for name in names)


def test_a_durable_subscription_misses_nothing(brokers: Brokers) -> None:
    """Away, or there when the master dies: all of it comes."""
    master, slave = brokers.master("a"), brokers.slave("b")
    with amq.connect(url(master, slave), client_id="away") as away:
        away.session().consumer("/topic/prices", subscription="s").close()
    there = amq.connect(url(master, slave), client_id="there")
    consumer = there.session().consumer("/topic/prices", subscription="s")
    with amq.connect(url(master, slave)) as connection:
        producer = connection.session().producer("/topic/prices")
        for i in range(20):
            producer.send(b"%d" % i)
        assert receive(consumer, 10) == [b"%d" % i for i in range(10)]
        master.kill()
        for i in range(20, 30):
            producer.send(b"%d" % i)
    late = receive(consumer, 20)
    while late[-1] != b"29":  # acknowledgements that were not confirmed may be lost with the master
        late += receive(consumer, 1)
    there.close()
    assert set(late) >= {b"%d" % i for i in range(10, 30)}
    with amq.connect(url(slave), client_id="away") as away:
        consumer = away.session().consumer("/topic/prices", subscription="s")
        assert receive(consumer, 30) == [b"%d" % i for i in range(30)]


@pytest.mark.deep
def test_durable_subscriptions_move_to_another_store(brokers: Brokers, tmp_path: Path) -> None:
    """By `amq journal export` and `import`; its client finds there what it had not got."""
    old, file, store = brokers.master("a"), tmp_path / "moved.jsonl", tmp_path / "moved"
    with amq.connect(url(old), client_id="c") as away:
        consumer = away.session().consumer("/topic/prices.>", subscription="s", selector="n < 8")
        producer = away.session().producer("/topic/prices.eu")
        producer.send(b"0", headers={"n": 0})
        assert receive(consumer, 1) == [b"0"]
        away.session().consumer("/queue/x")  # the acknowledgement is stored
        consumer.close()
        for i in range(1, 10):
            producer.send(b"%d" % i, headers={"n": i})
    old.stop()
    for words in (("export", "--store", brokers.store, "--output", file), ("import", "--store", store, file)):
        done = run_amq("journal", *words)
        assert (done.returncode, "not exported" in done.stderr) == (0, False), done.stderr
    with Brokers(tmp_path / "new", store=store) as group:
        new = group.master("b")
        with amq.connect(url(new), client_id="c") as back:
            producer = back.session().producer("/topic/prices.eu")
            producer.send(b"new", headers={"n": 1})
            consumer = back.session().consumer("/topic/prices.>", subscription="s", selector="n < 8")
            assert receive(consumer, 8) == [*(b"%d" % i for i in range(1, 8)), b"new"]
