"""The unmodified Java client at the gateways of two nodes with two stores: each case does what it does at one broker.
The connections of a case go to one node after the other, so a client that comes back, or has the client id of another
one, does so elsewhere. Names decide what lives in which store. XA has parts in both. Queues move while it works."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from java_suite import Program, cases

from amq.cluster.directory import Cluster
from amq.cluster.placement import SLOTS, slot_of
from amq.core.destination import QUEUE_SCHEME
from tests.cli.amq_process import amq
from tests.cluster.nodes import Nodes, all_served
from tests.openwire.conftest import CONFIG
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
GROUPS_WAIT_MS = 10_000  # for their consumers, after a move


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Of all these tests. A store stays where it is: a hand-over in the middle of a move gives groups other owners."""
    directory = tmp_path_factory.mktemp("jms-cluster")
    (directory / "amq.toml").write_text(CONFIG)
    with Nodes(directory, stores=2) as nodes:
        for node in nodes.nodes.values():
            node.options = {"failbackDelay": "1h", "lockKeepAlivePeriod": "10s"}
            node.start(str(directory / "amq.toml"))
        nodes.until(lambda found: all_served(found) and all(node.ports for node in nodes.nodes.values()))
        yield nodes
        print(f"logs of the nodes:\n{nodes.logs()}")


def urls(nodes: Nodes, form: str = "tcp://127.0.0.1:{}") -> str:
    return ";".join(form.format(node.port) for node in nodes.nodes.values())


def test_a_branch_has_parts_in_two_stores(java: Program, nodes: Nodes) -> None:
    lines = java.run(urls(nodes), ["Xa.twoPhasesOverManyQueues"])
    assert [(name, line["ok"], line["detail"]) for name, line in lines.items()] == [
        ("Xa.twoPhasesOverManyQueues", True, "")
    ]
    assert "TRANSACTION" not in nodes.logs()


def joining(nodes: Nodes, joins: str) -> list[str]:
    """Two queues, of one store each, that go to the store `joins` when it gets its share."""
    now = Cluster(nodes.cluster).table().placement
    then = now.with_store(joins).shared_out().layout.slots
    found: dict[str, str] = {}
    names = (f"moved.{number}" for number in range(SLOTS))
    for name in (name for name in names if then[slot_of(name)] == joins):
        found.setdefault(now.home_of(QUEUE_SCHEME + name), name)
    assert len(found) == len(now.stores)
    return [*found.values()]


class MovedProgram:
    """java/suite/Moved.java at work."""

    def __init__(self, java: Program, *words: str) -> None:
        command = java.command("suite.Moved", *words)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")

    def _ask(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        return self._process.stdout.readline()

    def go_on(self) -> None:
        """Until it has got replies and messages more, or has met a problem."""
        until_s = time.monotonic() + DEADLINE_S
        replies, taken, problems = before = [int(word) for word in self._ask("tell").split()]
        while not problems and (replies < before[0] + 10 or taken < before[1] + 20):
            assert time.monotonic() < until_s, f"{replies} replies and {taken} messages, and no more"
            time.sleep(0.05)
            replies, taken, problems = (int(word) for word in self._ask("tell").split())

    def stop(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask("stop"))
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_requests_and_groups_go_on_while_their_queues_move(java: Program, nodes: Nodes) -> None:
    requests, groups = queues = joining(nodes, "s3")
    program = MovedProgram(java, urls(nodes, "failover:(tcp://127.0.0.1:{})"), requests, groups)
    try:
        program.go_on()
        for command, *words in (
            ("add-store", "s3", "--share"),
            ("move", "moved.>", "s1"),
            ("remove-store", "s3", "--to", "s2"),
        ):
            amq("cluster", command, "--cluster", nodes.cluster, *words).check_returncode()
            found = json.loads(amq("cluster", "where", "--cluster", nodes.cluster, *queues, "--json").stdout)
            home = "s1" if command != "add-store" else "s3"
            assert [each["home"] for each in found["destinations"]] == [home, home]
            program.go_on()
        seen = program.stop()
    finally:
        program.close()
    assert seen["problems"] == []
    assert seen["replies"] >= 40
    one, other = seen["committed"]
    assert sorted(one + other) == [*range(seen["sent"])], "each once"
    masters = nodes.until(all_served)["stores"]
    kept = seen["longest_ms"] < GROUPS_WAIT_MS and all(store["epoch"] == 1 for store in masters)
    for group in range(4):
        mine = [[number for number in numbers if number % 4 == group] for numbers in (one, other)]
        assert mine == [sorted(numbers) for numbers in mine], "in order"
        assert not (kept and all(mine)), f"group {group} has changed its owner: {mine}"


def test_each_case_does_the_same(java: Program, nodes: Nodes) -> None:
    lines = java.run(urls(nodes))
    assert lines.keys() == {case.name for case in cases()}
    assert {name: line["detail"] for name, line in lines.items() if not line["ok"]} == {}
