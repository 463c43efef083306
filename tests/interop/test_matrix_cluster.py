"""The stories of the matrix, unchanged, through a node with two stores: all at once, while the node dies with its
gateway and the masters of both stores. Names decide which stories have parts in two stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("stomp")

from matrix_clients import Link, open_clients
from matrix_group import CONFIG, Moment, Peer, Story, play, wait_unread
from test_matrix import FEATURES

from tests.cluster.pair import NodePair
from tests.sampling import thorough

pytestmark = pytest.mark.deep
MOMENTS = [Moment.UNTOLD, *thorough(*(moment for moment in Moment if moment is not Moment.UNTOLD))]


class DeadlyNodes(NodePair):
    """A group of the matrix."""

    def wait_unread(self, connections: int) -> None:
        wait_unread(self.master.port, connections)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeadlyNodes]:
    directory = tmp_path_factory.mktemp("matrix-cluster")
    config = directory / "amq.toml"
    config.write_text(CONFIG)
    nodes = DeadlyNodes(directory, config)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def clients(nodes: DeadlyNodes, node_modules: Path | None) -> Iterator[dict[str, Callable[[str], Link]]]:
    """See `open_clients`."""
    with open_clients(nodes.relay.ports, node_modules) as clients:
        yield clients


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name.lower())
def test_the_node_is_killed(nodes: DeadlyNodes, clients: dict[str, Callable[[str], Link]], moment: Moment) -> None:
    peers: list[Peer] = []
    stories: list[Story] = []
    for feature in FEATURES:
        cell = f"{feature.__name__}.{moment.name.lower()}"
        peers += [Peer(name, cell, moment, open_link) for name, open_link in clients.items()]
        stories += [feature(peer) for peer in peers[-len(clients) :]]
    try:
        play(nodes, peers, stories, moment)
    finally:
        for peer in peers:
            peer.close()
