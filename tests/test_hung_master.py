"""A master that pauses with its lock is replaced; when it goes on it confirms nothing and becomes a slave."""

from __future__ import annotations

import time

import pytest
from brokers import SERVING, Broker, Brokers

import amq
from bench.wire import WireError
from tests.patience import DEADLINE_S

PERIOD_S = 0.2
TIMEOUT_S = 3.0
HANGS = {"lockKeepAlivePeriod": "200ms", "hungMasterTimeout": "3s"}
LEAVES = HANGS | {"hungMasterTimeout": 0}  # it replaces no master that is only slow


def url(*brokers: Broker, **options: object) -> str:
    members = ",".join(f"stomp://127.0.0.1:{broker.port}" for broker in brokers)
    return f"failover:({members})?randomize=false" + "".join(f"&{key}={value}" for key, value in options.items())


def test_a_stopped_master_is_replaced_and_becomes_a_slave(brokers: Brokers) -> None:
    old, new = brokers.master("a", **LEAVES), brokers.add("b", **HANGS)
    with amq.connect(url(old, new, **{"nested.heartBeat": 300})) as connection:
        producer = connection.session().producer("/queue/q")
        producer.send(b"1")
        said = len(old.log)
        old.freeze()
        began = time.monotonic()
        taken = new.start().wait_serving()
        assert "gave no sign of life" in taken["reason"]
        assert taken["waited_s"] >= PERIOD_S, "the lease of the old master is waited for"
        assert time.monotonic() - began >= TIMEOUT_S
        producer.send(b"2")
        old.thaw()
        old.wait_event("mastership lost or refused", after=said)
        old.wait_line(lambda line: line.get("role") == "slave", "slave", after=said)
        producer.send(b"3")
        assert not [line for line in old.log[said:] if line.get("event") == SERVING]
        consumer = connection.session().consumer("/queue/q")
        bodies = []
        for _ in range(3):
            message = consumer.receive(DEADLINE_S)
            assert message is not None
            message.ack(wait=True)
            bodies.append(message.body)
        assert bodies == [b"1", b"2", b"3"]
    new.stop()
    old.wait_serving(after=said)


@pytest.mark.deep
def test_the_woken_master_confirms_nothing(brokers: Brokers) -> None:
    """A client that stays with the old master gets no receipt from it, whenever it wakes."""
    old, new = brokers.master("a", **LEAVES), brokers.add("b", **HANGS)
    with old.connect() as raw:
        raw.send("SEND", {"destination": "/queue/q", "receipt": "before"}, b"x")
        raw.receipt("before", DEADLINE_S)
        old.freeze()
        raw.send("SEND", {"destination": "/queue/q", "receipt": "late"}, b"late")
        new.start().wait_serving()
        old.thaw()
        with pytest.raises((WireError, OSError)):
            raw.receipt("late", DEADLINE_S)
