"""Clients that come back before the broker noticed that they were gone.

tests/broker/test_broker_links.py has who takes the place of whom.
"""

from __future__ import annotations

import pytest
from brokers import Brokers
from relay import relayed

import amq
from amq.core.errors import AccessError
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
QUIET = {"heartBeatSend": "1s", "heartBeatReceive": "1h"}  # the broker waits for ever, the client does not


def test_our_client_is_not_refused_for_its_own_ghost(brokers: Brokers) -> None:
    broker = brokers.master("a", **QUIET)
    with relayed(broker.port) as relay, amq.connect(f"stomp://127.0.0.1:{broker.port}") as other:
        url = f"failover:(stomp://127.0.0.1:{relay.ports[0]},stomp://127.0.0.1:{broker.port})?randomize=false"
        with amq.connect(url + "&nested.heartBeat=1000&nested.connectTimeout=500", client_id="c") as connection:
            consumer = connection.session().consumer("/topic/t", subscription="s")
            producer = other.session().producer("/topic/t")
            producer.send(b"1")
            held = consumer.receive(DEADLINE_S)
            assert held is not None
            assert held.body == b"1"
            relay.freeze()
            producer.send(b"2")
            for body in (b"1", b"2"):
                message = consumer.receive(DEADLINE_S)
                assert message is not None
                assert message.body == body
                message.ack(wait=True)
        assert {line["code"] for line in broker.said("connection refused")} == {"LINK_STOLEN"}


def test_who_was_replaced_stays_away(brokers: Brokers) -> None:
    """Two programs with one client id do not take the link from each other for ever."""
    broker = brokers.master("a", allowLinkStealing="true")
    url = f"failover:(stomp://127.0.0.1:{broker.port})"
    with amq.connect(url, client_id="c") as older:
        consumer = older.session().consumer("/queue/a")
        with amq.connect(url, client_id="c") as newer:
            with pytest.raises(AccessError, match="a newer connection"):
                consumer.receive(DEADLINE_S)
            newer.session().producer("/queue/a").send(b"1")
        broker.wait_event("connection refused")
        assert [line["code"] for line in broker.said("connection refused")] == ["LINK_STOLEN"]
