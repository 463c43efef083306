"""Nodes that leave stores behind, as real processes: one stops in good order, comes back, and is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amq.cluster.removing import NOTE_FILE
from tests.cluster.nodes import Nodes, each_as_it_should_be
from tests.cluster.test_cluster_moving_nodes import NAME
from tests.traffic import Producer, connect_any, drain

QUICKLY = ("--scale-down-after", "0.5", "--scale-down-after-failure", "0.5")


def has_stores(*names: str) -> Any:
    return lambda found: [store["store"] for store in found["stores"]] == [*names] and not found["moving"]


@pytest.mark.deep
def test_the_stores_of_a_node_that_goes_are_emptied_into_the_others(tmp_path: Path) -> None:
    with Nodes(tmp_path, stores=3) as nodes:
        a, b = nodes.nodes.values()
        a.start()
        b.start("--scale-down", "s3", "--scale-down-to", "s2", *QUICKLY)
        nodes.until(each_as_it_should_be)
        nodes.place(NAME, "s3").check_returncode()
        producer = Producer([a])  # type: ignore[list-item]
        producer.start()
        producer.wait_confirmed(500)
        assert b.stop() == 0
        nodes.until(has_stores("s1", "s2"))
        assert (Path(nodes.cluster) / "stores" / "s3" / NOTE_FILE).exists()
        producer.wait_confirmed(100)

        b.start("--scale-down", "s3", "--scale-down", "s2", *QUICKLY)
        nodes.until(each_as_it_should_be)
        assert "they may have left it" in b.log.read_text()
        b.kill()
        nodes.until(has_stores("s1"))
        producer.wait_confirmed(100)
        confirmed = producer.stop()
        assert producer.failovers == 0, "its connection has held"
        with connect_any([a]) as connection:  # type: ignore[list-item]
            bodies = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
            assert drain(connection, 0) == []
        assert bodies == sorted(set(bodies)), "stored twice, or out of order"
        assert set(confirmed) <= set(bodies)
