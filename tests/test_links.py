"""Clients that come back before the broker noticed that they were gone: half-open connections and stopped processes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import pytest
from brokers import Brokers
from relay import relayed

import amq
from amq.core.errors import AccessError, CommandError
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
QUIET = {"heartBeatSend": "1s", "heartBeatReceive": "1h"}  # the broker waits for ever, the client does not
STOPPED = """
import sys, amq
connection = amq.connect(sys.argv[1], client_id="c")
consumer = connection.session().consumer("/topic/t", subscription="s")
print("subscribed", flush=True)
consumer.receive(3600)
"""


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


@pytest.mark.parametrize("steals", ["true", "false"])
def test_a_stopped_client_makes_room_where_that_is_allowed(brokers: Brokers, steals: str) -> None:
    broker = brokers.master("a", allowLinkStealing=steals, **QUIET)
    url = f"stomp://127.0.0.1:{broker.port}"
    command = [sys.executable, "-c", STOPPED, f"{url}?heartBeat=0"]  # else it may see its own silence first
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stopped:
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "subscribed\n"
            stopped.send_signal(signal.SIGSTOP)
            refusal = pytest.raises(CommandError, match="has a consumer")
            refused = refusal if steals == "false" else contextlib.nullcontext()
            with amq.connect(url, client_id="c") as connection, refused:
                consumer = connection.session().consumer("/topic/t", subscription="s")
                connection.session().producer("/topic/t").send(b"1")
                message = consumer.receive(DEADLINE_S)
                assert message is not None
                stopped.send_signal(signal.SIGCONT)
                _, said = stopped.communicate(timeout=DEADLINE_S)  # it does not take the link back
                assert "a newer connection of client 'c'" in said
                message.ack(wait=True)
        finally:
            stopped.kill()


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
        assert [line["code"] for line in broker.said("connection refused")] == ["LINK_STOLEN"]
