"""Fixtures: a store with a past, and a copy of it to damage."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.files import write_epoch

pytest.register_assert_rewrite("tests.maintenance.damaged")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five epochs with a past, whose last master is gone."""
    from tests.maintenance.test_moving import used_store  # here, so that its assertions are rewritten first

    path = tmp_path_factory.mktemp("original")
    world = used_store(path)
    client = world.connect()
    for number in range(40):
        client.send(b"last %d " % number + b"z" * 500, "ab"[number % 2])
        world.settle()
    world.broker.reconfigure(replace(world.config, checkpoint_distance_bytes=1))
    for number in range(4):
        client.send(b"beside a checkpoint %d " % number + b"z" * 500, "ab"[number % 2])
        world.settle()
    world.crash_and_recover()
    older = {name: end for name, end in world.sealed.items() if name < f"{world.epoch - 1:08d}"}
    write_epoch(world.store, world.epoch - 1, older)
    write_epoch(world.store, world.epoch, world.sealed)
    world.crash()
    assert len(world.segments()) > 6
    return path


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "store")
    return tmp_path / "store"
