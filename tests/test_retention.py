"""Last-value and ring queues with real brokers, through the death of the master."""

from __future__ import annotations

import amq
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S

KEYS = 20
UPDATES = 30


def url(*group: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in group)})"


def publish(producer: amq.Producer, updates: range) -> None:
    """One new value of each key for each of `updates`."""
    for update in updates:
        for key in range(KEYS):
            producer.send(f"{key}:{update}", headers={"share": key}, wait=False)
    producer.flush()


def waiting(session: amq.Session, queue: str) -> list[str]:
    """What is there once all that was replaced has left, which the journal knows before it confirms anything else."""
    session.producer("/queue/other").send("x")
    with session.browser(queue) as browser:
        return [message.text for message in browser]


def test_the_last_values_are_there_after_the_master_died(brokers: Brokers) -> None:
    """Also where it dies in the midst of updates, and the keys must be learnt from the disk."""
    master, slave = brokers.master("a", lastValueKey="share"), brokers.slave("b", lastValueKey="share")
    with amq.connect(url(master, slave)) as connection:
        session = connection.session()
        producer = session.producer("/queue/prices")
        publish(producer, range(UPDATES))
        assert waiting(session, "/queue/prices") == [f"{key}:{UPDATES - 1}" for key in range(KEYS)]
        for key in range(KEYS // 2):
            producer.send(f"{key}:unheard", headers={"share": key}, wait=False)
        master.kill()
        producer.flush()
        publish(producer, range(UPDATES, 2 * UPDATES))
        expected = [f"{key}:{2 * UPDATES - 1}" for key in range(KEYS)]
        assert waiting(session, "/queue/prices") == expected
        with session.consumer("/queue/prices") as consumer:
            for text in expected:
                message = consumer.receive(DEADLINE_S)
                assert message is not None
                assert message.text == text
                message.ack()
        assert waiting(session, "/queue/prices") == []


def test_a_ring_holds_the_newest_after_the_master_died(brokers: Brokers) -> None:
    master, slave = brokers.master("a", ringSize=50), brokers.slave("b", ringSize=50)
    with amq.connect(url(master, slave)) as connection:
        session = connection.session()
        producer = session.producer("/queue/log")
        publish(producer, range(UPDATES))
        master.kill()
        producer.send("last")
        tail = [f"{number % KEYS}:{number // KEYS}" for number in range(KEYS * UPDATES)][-49:]
        assert waiting(session, "/queue/log") == [*tail, "last"]
