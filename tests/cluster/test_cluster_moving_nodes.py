"""A queue moves between two stores of nodes that serve it, while its producer sends, and their masters are killed."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from bench.wire import WireConnection, WireFrame
from tests.cli.amq_process import amq
from tests.cluster.nodes import Nodes, each_as_it_should_be
from tests.patience import DEADLINE_S
from tests.traffic import QUEUE, Producer, connect_any, drain

pytestmark = pytest.mark.deep
NAME = QUEUE.rpartition("/")[2]


def acknowledge(connection: WireConnection, count: int) -> set[int]:
    """Take the first messages; their numbers when the acknowledgement is confirmed."""
    connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "0", "ack": "client", "prefetch-count": count})
    frames: list[WireFrame] = []
    while len(frames) < count:
        frame = connection.next_frame(DEADLINE_S)
        if frame.command == "MESSAGE":
            frames.append(frame)
    connection.send("ACK", {"id": frames[-1].headers["ack"], "receipt": "acknowledged"})
    connection.receipt("acknowledged", DEADLINE_S)
    return {int(frame.body.split()[1]) for frame in frames}


def test_a_queue_moves_under_traffic_and_kills(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, stores=2)
    try:
        for node in nodes.nodes.values():
            node.start()
        found = nodes.until(each_as_it_should_be)
        masters = {store["store"]: store["master"] for store in found["stores"]}
        nodes.place(NAME, "s1").check_returncode()
        gateway = nodes.nodes["a"]
        producer = Producer([gateway])  # type: ignore[list-item]
        producer.start()
        producer.wait_confirmed(1000)
        with connect_any([gateway]) as connection:  # type: ignore[list-item]
            acknowledged = acknowledge(connection, 100)
        for turn, killed in enumerate((None, "s1", "s2")):
            target = "s2" if turn % 2 == 0 else "s1"
            nodes.begin("move", NAME, target)
            if killed is not None:
                for pid in nodes.nodes[masters[killed]].members_of(killed):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            nodes.settle()
            producer.wait_confirmed(100)
            where = amq("cluster", "where", "--cluster", nodes.cluster, NAME, "--json").stdout
            assert json.loads(where)["destinations"][0]["home"] == target
        confirmed = producer.stop()
        nodes.until(each_as_it_should_be)  # no hand-over is due: it could leave the acknowledgement without an answer
        with connect_any([gateway]) as connection:  # type: ignore[list-item]
            bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
            assert drain(connection, 0) == []
        assert bodies == sorted(set(bodies)), "stored twice, or out of order"
        assert not acknowledged & set(bodies), "their acknowledgement was confirmed"
        assert set(confirmed) <= acknowledged | set(bodies)
        assert producer.failovers == 0, "its connection has held"
    finally:
        nodes.kill()
