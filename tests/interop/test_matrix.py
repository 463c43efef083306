"""Every feature × kill -9 of the master before, during and after its use, with three clients: stomp.py, stompit (Node)
and our own. What must survive is told by the stories in `matrix_features` and `matrix_topics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stomp")

import matrix_features as queues
import matrix_topics as topics
from matrix_clients import Link, open_clients
from matrix_group import FreezablePair, Moment, Peer, Story, play

FEATURES: list[Callable[[Peer], Story]] = [
    queues.sends,
    queues.acknowledgements,
    queues.browsing,
    queues.pulling,
    queues.last_values,
    queues.rings,
    queues.exclusive_consumers,
    queues.consumer_priority,
    queues.message_groups,
    queues.selectors,
    queues.local_transactions,
    queues.prepares,
    queues.second_phases,
    queues.batches,
    queues.exactly_once,
    topics.topics,
    topics.durable_subscriptions,
    topics.ends_of_durable_subscriptions,
    topics.shared_durable_subscriptions,
    topics.composites_and_wildcards,
    topics.virtual_topics,
    topics.diverts,
    topics.requests_and_replies,
    topics.redelivery,
    topics.dead_letters,
    topics.expiry,
    topics.scheduling,
]


EVERY = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreezablePair]:
    pair = FreezablePair(tmp_path_factory.mktemp("matrix"))
    try:
        yield pair
    finally:
        pair.close()


@pytest.fixture(scope="module")
def clients(pair: FreezablePair, node_modules: Path | None) -> Iterator[dict[str, Callable[[str], Link]]]:
    """See `open_clients`."""
    with open_clients(pair.relay.ports, node_modules) as clients:
        yield clients


def cells() -> Iterator[Any]:
    """Each feature with the hardest moment, carried out and not told, and each third, in turn, with one of the others.
    `make test-thorough` has the rest; clients of JMS have each moment of each story (`test_jms_matrix`)."""
    others = [moment for moment in Moment if moment is not Moment.UNTOLD]
    for number, feature in enumerate(FEATURES):
        for moment in Moment:
            sample = moment is Moment.UNTOLD or (
                number % EVERY == 0 and moment is others[number // EVERY % len(others)]
            )
            mark = pytest.mark.deep if sample else pytest.mark.thorough
            yield pytest.param(feature, moment, id=f"{feature.__name__}-{moment.name.lower()}", marks=mark)


@pytest.mark.parametrize(("feature", "moment"), [*cells()])
def test_the_master_is_killed(
    pair: FreezablePair, clients: dict[str, Callable[[str], Link]], feature: Callable[[Peer], Story], moment: Moment
) -> None:
    cell = f"{feature.__name__}.{moment.name.lower()}"
    peers = [Peer(name, cell, moment, open_link) for name, open_link in clients.items()]
    try:
        play(pair, peers, [feature(peer) for peer in peers], moment)
    finally:
        for peer in peers:
            peer.close()
