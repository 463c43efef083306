"""The unmodified Java client through the gateways of a node with two stores: what docs/cluster.md says is different,
and no more. Names decide what lives in which store. XA has parts in both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from java_suite import Program, cases

from tests.cluster.nodes import Node, Nodes, each_as_it_should_be
from tests.openwire.conftest import CONFIG

pytestmark = pytest.mark.deep
# The case → the row of the page that says why.
DIFFERENT = {"Connections.clientIdInUse": "exclusive client id"}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "amq.toml").write_text(CONFIG)
    nodes = Nodes(tmp_path, stores=2)
    node = nodes.nodes["a"]
    try:
        node.start(str(tmp_path / "amq.toml"))
        nodes.until(each_as_it_should_be)
        yield node
        print(f"log of the node:\n{node.log_text()}")
    finally:
        nodes.kill()


def test_each_case_does_the_same_or_the_page_says_why_not(java: Program, node: Node) -> None:
    lines = java.run(f"tcp://127.0.0.1:{node.port}")
    assert lines.keys() == {case.name for case in cases()}
    failed = {name: line["detail"] for name, line in lines.items() if not line["ok"]}
    assert {name: detail for name, detail in failed.items() if name not in DIFFERENT} == {}
    rows = PAGE.read_text().partition("\n## What is different over several stores\n")[2]
    assert all(f"\n| {row} | " in rows for row in DIFFERENT.values())


def test_a_branch_has_parts_in_two_stores(java: Program, node: Node) -> None:
    lines = java.run(f"tcp://127.0.0.1:{node.port}", ["Xa.twoPhasesOverManyQueues"])
    assert [(name, line["ok"], line["detail"]) for name, line in lines.items()] == [
        ("Xa.twoPhasesOverManyQueues", True, "")
    ]
    assert "TRANSACTION" not in node.log_text()
