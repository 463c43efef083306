"""Checkpoints beside a journal of another moment, as in copies of a store: a start from them is right, or they are
passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amq.config.schema import BrokerConfig
from amq.journal.checkpoint import list_checkpoints
from amq.store.epoch import Epoch
from amq.store.files.log import FileLog
from amq.store.segment_log import CHECKPOINTS_DIRECTORY
from tests.broker.world import World
from tests.files import OWNER
from tests.maintenance.test_moving import VFS
from tests.stored import started, stored_state

IDS = 10


class Moment(NamedTuple):
    """A copy of a store, and what its newest epoch says."""

    store: Path
    epoch: int
    sealed: dict[str, int]


def start(store: Path, moment: Moment) -> tuple[dict[str, Any], int]:
    """What the next master has, and how many bytes of the journal it read."""
    config = BrokerConfig(store=str(store), duplicate_window=IDS)
    state, recovered = started(VFS, config, Epoch(moment.epoch, OWNER, moment.sealed, 0, "test"))
    for segment in recovered.segments:
        assert segment.end <= (store / "journal" / segment.name).stat().st_size
    return stored_state(state, VFS, str(store)), recovered.read_bytes


def history(path: Path) -> list[Moment]:
    """A store at many moments of its life: messages come and go, segments are trimmed, the master changes once."""
    world = World(path / "store", checkpoint_distance_bytes=6 << 10, duplicate_window=IDS)
    client, moments = world.connect(), []
    for step in range(30):
        if step == 18:
            world.crash_and_recover()
            client = world.connect()
        if step % 9 == 4:
            client.subscribe("a", prefetch=100, id=f"s{step}")
        for number in range(4):
            body = b"%d.%d " % (step, number) + b"x" * 700
            client.send(body, "ab"[step % 10 == number == 3], duplicate_id=f"{step}.{number}")
        world.settle()
        for delivery in client.deliveries[:-2]:
            client.ack(delivery.body)
        client.deliveries = client.deliveries[-2:]
        if step % 9 == 8:
            client.unsubscribe(f"s{step - 4}")
            client.deliveries = []
        world.settle()
        copy = path / f"copy{step}"
        shutil.copytree(world.store, copy)
        moments.append(Moment(copy, world.epoch, dict(world.sealed)))
    world.close()
    return moments


@pytest.mark.deep
def test_the_journal_of_one_moment_and_the_checkpoints_of_another(tmp_path: Path) -> None:
    moments = history(tmp_path)
    assert len({max((m.store / "journal").glob("*.seg")).name for m in moments}) > 6, "segments came"
    assert len({min((m.store / "journal").glob("*.seg")).name for m in moments}) > 3, "segments went"
    read = {"older": 0, "newer": 0}  # checkpoints that a start began at
    for at, moment in enumerate(moments):
        bare = tmp_path / "bare"
        shutil.copytree(moment.store, bare)
        shutil.rmtree(bare / CHECKPOINTS_DIRECTORY, ignore_errors=True)
        truth, all_bytes = start(bare, moment)
        for other, source in enumerate(moments):
            if not list_checkpoints(FileLog(VFS, str(source.store)).checkpoints):
                continue
            mixed = tmp_path / "mixed"
            shutil.copytree(bare, mixed)
            shutil.copytree(source.store / CHECKPOINTS_DIRECTORY, mixed / CHECKPOINTS_DIRECTORY)
            found, read_bytes = start(mixed, moment)
            assert found == truth, f"journal of moment {at}, checkpoints of moment {other}"
            read["older" if other <= at else "newer"] += read_bytes < all_bytes
            shutil.rmtree(mixed)
        shutil.rmtree(bare)
    assert read["older"] > 40
    assert read["newer"], "one of a later moment, at a position that the copy has, serves as well"
