"""The unmodified Java client at the gateways of two nodes with two stores: each case does what it does at one broker.
The connections of a case go to one node after the other, so a client that comes back, or has the client id of another
one, does so elsewhere. Names decide what lives in which store. XA has parts in both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from java_suite import Program, cases

from tests.cluster.nodes import Nodes, each_as_it_should_be
from tests.openwire.conftest import CONFIG

pytestmark = pytest.mark.deep


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "amq.toml").write_text(CONFIG)
    with Nodes(tmp_path, stores=2) as nodes:
        for node in nodes.nodes.values():
            node.start(str(tmp_path / "amq.toml"))
        nodes.until(each_as_it_should_be)
        yield nodes
        print(f"logs of the nodes:\n{nodes.logs()}")


def urls(nodes: Nodes) -> str:
    return ";".join(f"tcp://127.0.0.1:{node.port}" for node in nodes.nodes.values())


def test_each_case_does_the_same(java: Program, nodes: Nodes) -> None:
    lines = java.run(urls(nodes))
    assert lines.keys() == {case.name for case in cases()}
    assert {name: line["detail"] for name, line in lines.items() if not line["ok"]} == {}


def test_a_branch_has_parts_in_two_stores(java: Program, nodes: Nodes) -> None:
    lines = java.run(urls(nodes), ["Xa.twoPhasesOverManyQueues"])
    assert [(name, line["ok"], line["detail"]) for name, line in lines.items()] == [
        ("Xa.twoPhasesOverManyQueues", True, "")
    ]
    assert "TRANSACTION" not in nodes.logs()
