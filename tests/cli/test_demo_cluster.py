"""`amq demo --cluster`: its verdict is earned, its takers see broken promises, it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from amq_process import amq, running
from brokers import Brokers

from amq.cli import exits
from amq.cli.demo_brokers import free_port
from amq.cli.demo_cluster import ClusterVerdict, NodeKill, Prober
from amq.cli.demo_traffic import NumberTaker
from amq.client import connect
from tests.patience import DEADLINE_S
from tests.processes import naming

SMALL = ("demo", "--cluster", "--brokers", 2, "--stores", 2)


@pytest.mark.deep
def test_a_killed_node_costs_no_message_and_no_connection(tmp_path: Path) -> None:
    picture = tmp_path / "takeover.svg"
    done = amq(*SMALL, "--kills", 1, "--json", "--picture", picture, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"]
    assert verdict["confirmed"] == verdict["received"] > 0
    assert (verdict["lost"], verdict["disordered"], verdict["stored_twice"], verdict["acks_undone"]) == (0, 0, 0, 0)
    assert verdict["probes"] > verdict["refused"] == 0
    (kill,) = verdict["kills"]
    (other,) = {"node-1", "node-2"} - {kill["node"]}
    assert kill["stores"]
    assert kill["taken"] == dict.fromkeys(kill["stores"], other)
    for store in kill["line"]["stores"]:
        if store["store"] in kill["stores"]:
            assert [span["node"] for span in store["served"]][:2] == [kill["node"], other]
    assert f"kill -9 of {kill['node']}" in picture.read_text()
    picture.unlink()
    assert naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_cluster_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    environment = {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with running(*SMALL, "--kills", 1000, env=environment) as demo:
        assert demo.stdout is not None
        while b"kill -9 node-" not in demo.stdout.readline():
            assert demo.poll() is None
        assert naming(tmp_path)
        demo.send_signal(number)
        demo.communicate(timeout=DEADLINE_S)
    if number is signal.SIGINT:
        assert demo.returncode == 130
        assert naming(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + DEADLINE_S
    while left := naming(tmp_path):  # the node is gone, its processes notice that and end
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.parametrize(
    "words", [("--cluster", "--console"), ("--cluster", "--store", "x"), ("--stores", "3"), ("--picture", "x")]
)
def test_a_cluster_has_its_own_stores(words: tuple[str, ...]) -> None:
    done = amq("demo", *words)
    assert done.returncode == exits.USAGE
    assert "--cluster" in done.stderr


def cluster_verdict(**changes: Any) -> ClusterVerdict:
    facts: dict[str, Any] = {
        "queues": 2,
        "stores": 2,
        "confirmed": 10,
        "received": 10,
        "seconds": 1.0,
        "lost": 0,
        "disordered": 0,
        "kills": [NodeKill("a", 5, ["s1"], {"s1": "b"}, 0.1, 0.2)],
        "delivered_again": 3,
        "stored_twice": 0,
        "acks_undone": 0,
        "probes": 100,
        "refused": 0,
        "longest_wait_s": 0.2,
        "left": 0,
        "problems": [],
    }
    return ClusterVerdict(**facts | changes)


def test_a_good_verdict_of_a_cluster() -> None:
    assert cluster_verdict().ok
    assert cluster_verdict(kills=[]).ok
    assert cluster_verdict(received=11).ok, "sent, without a confirmation"
    assert any("s1 by b" in said for _, said in cluster_verdict().sentences())


@pytest.mark.parametrize(
    "flaw",
    [
        {"lost": 1},
        {"confirmed": 0},
        {"disordered": 1},
        {"stored_twice": 1},
        {"acks_undone": 1},
        {"probes": 0},
        {"refused": 1},
        {"left": 1},
        {"problems": ["x"]},
        {"kills": [NodeKill("a", 5, ["s1", "s2"], {"s1": "b"})]},
    ],
)
def test_each_broken_promise_of_a_cluster_spoils_the_verdict(flaw: dict[str, Any]) -> None:
    assert not cluster_verdict(**flaw).ok
    assert sum(not good for good, _ in cluster_verdict(**flaw).sentences()) == 1


def test_a_taker_finds_a_loss_and_a_wrong_order() -> None:
    confirmed: list[int] = []
    taker = NumberTaker("", "/queue/q", lambda: confirmed[-1] if confirmed else None)

    def come(*numbers: int) -> None:
        taker._keep([SimpleNamespace(body=b"%d" % number) for number in numbers])  # type: ignore[misc]

    come(0, 1, 2)
    come(4)
    assert (taker.disordered, taker.lost(5)) == (0, 1)
    come(3)
    assert (taker.disordered, taker.lost(5)) == (1, 0)
    taker._confirmed.update("abcde")
    assert not taker._is_done(), "the sender goes on"
    confirmed.append(6)
    assert not taker._is_done(), "one is not acknowledged"
    taker._confirmed.add("f")
    assert taker._is_done()


def test_an_acknowledgement_that_no_broker_confirmed_is_found_by_a_browse(brokers: Brokers) -> None:
    url = f"stomp://127.0.0.1:{brokers.master('a').port}"
    taker = NumberTaker(url, "/queue/q", lambda: 2)
    with connect(url) as connection, connection.session(ack="client") as session:
        session.producer("/queue/q").send(b"1")
        held = session.consumer("/queue/q").receive(DEADLINE_S)
        assert held is not None
        # as after a failover: both were kept, and the broker confirmed neither acknowledgement; it has stored one
        taker._message_ids = {"acknowledged": "ID:0", held.duplicate_id: held.id}
        taker._clear_doubt(session)
        assert taker._confirmed == {"acknowledged"}, "a consumer holds the other"
        held.ack(wait=True)
        taker._clear_doubt(session)
        assert taker._is_done()
    assert taker.acks_undone == 0


def test_a_prober_counts_refusals_while_it_watches() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        prober = Prober("a", server.getsockname()[1])
        prober.start()
        try:
            prober.watch(True)
            server.accept()[0].close()
            prober.watch(False)
            assert prober.probes > prober.refused == 0
            server.close()
            prober.watch(True)
            while not prober.refused:
                os.sched_yield()
            prober.watch(False)
            seen = prober.probes
        finally:
            prober.stop()
    assert prober.probes == seen


def test_free_ports_in_a_row_are_free() -> None:
    first = free_port(20)
    for port in range(first, first + 20):
        with socket.create_server(("127.0.0.1", port)):
            pass
