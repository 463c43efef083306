"""`traceparent` and `tracestate` (W3C Trace Context) pass through the broker as they came, whatever protocols meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import amq as client
from amq.protocols.openwire.primitives import decode_map, encode_map
from tests import openwire_client
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S

TRACE = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE,rojo@v1=00f067aa0ba902b7:\\n;x, empty=",  # STOMP escapes ":" and "\"
}
COUNT = 3


def send_stomp(broker: Broker, queue: str) -> None:
    with client.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(f"/queue/{queue}")
        for number in range(COUNT):
            producer.send(f"body {number}", headers=TRACE)


def receive_stomp(broker: Broker, queue: str) -> list[dict[str, object]]:
    with client.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        consumer = session.consumer(f"/queue/{queue}")
        found = [consumer.receive(DEADLINE_S) for _ in range(COUNT)]
        return [{name: message.headers.get(name) for name in TRACE} for message in found if message is not None]


def send_openwire(broker: Broker, queue: str) -> None:
    with openwire_client.peer_of(f"tcp://127.0.0.1:{broker.port}") as peer:
        messages = [openwire_client.message(number, properties=encode_map(TRACE)) for number in range(COUNT)]
        openwire_client.send(peer, queue, messages)


def receive_openwire(broker: Broker, queue: str) -> list[dict[str, object]]:
    with openwire_client.peer_of(f"tcp://127.0.0.1:{broker.port}") as peer:
        found = openwire_client.receive(peer, queue, COUNT)
    properties = [decode_map(message.fields["properties"]) for message in found]
    return [{name: each.get(name) for name in TRACE} for each in properties]


SENDERS = {"stomp": send_stomp, "openwire": send_openwire}
RECEIVERS = {"stomp": receive_stomp, "openwire": receive_openwire}


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["", "takeover"])
def test_trace_context_passes_untouched(tmp_path: Path, kill: bool) -> None:
    """Also through the journal, to a broker that took over."""
    with Brokers(tmp_path, scheme="auto") as brokers:
        broker = brokers.master("a")
        ways: list[tuple[str, Callable[[Broker, str], list[dict[str, object]]]]] = []
        for sender, send in SENDERS.items():
            for receiver, receive in RECEIVERS.items():
                send(broker, f"{sender}.{receiver}")
                ways.append((f"{sender}.{receiver}", receive))
        if kill:
            other = brokers.slave("b")
            broker.kill()
            other.wait_serving()
            broker = other
        for queue, receive in ways:
            assert receive(broker, queue) == [TRACE] * COUNT, queue
