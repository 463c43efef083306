"""A broker for each test, or stores of a cluster, closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.carrying import Cluster, clusters
from tests.broker.world import World


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes a world with these options instead of the defaults."""
    made: list[World] = []

    def make(**config: Any) -> World:
        path = tmp_path / str(len(made))
        path.mkdir()
        made.append(World(path, **config))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    with clusters(tmp_path) as make:
        yield make


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster()
