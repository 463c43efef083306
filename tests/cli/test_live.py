"""Live configuration: a read that hangs keeps nobody waiting."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from amq.config import BrokerConfig, load
from amq.config.reload import Reload
from amq.node import live
from amq.node.live import HUNG_MAX, Live
from amq.security import LoginGate
from tests.brokers import Brokers
from tests.patience import DEADLINE_S


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.applied: list[BrokerConfig] = []
        self.live = Live(Reload(load(str(path)), lambda: load(str(path))), LoginGate("", "yes"), self.applied.append)

    def replace(self, text: str) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text(text)
        os.replace(aside, self.path)

    def hang(self) -> None:
        """From now on a read waits for somebody who writes."""
        self.path.unlink()
        os.mkfifo(self.path)


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "amq.toml").write_text("")
    return World(tmp_path / "amq.toml")


def test_a_change_is_applied_and_an_error_is_told_each_time_to_who_asks(world: World) -> None:
    with structlog.testing.capture_logs() as logs:

        def told(event: str) -> int:
            return sum(line["event"].startswith(event) for line in logs)

        world.replace("[limits]\nmaxConnections = 7\n")
        world.live.ask("configuration")
        until(lambda: len(world.applied) == 1)
        assert world.applied[0].max_connections == 7
        world.live.ask("configuration", "users", by_hand=True)
        until(lambda: told("configuration read: nothing has changed") == 1)
        world.replace("[limits]\nmaxConnections = 0\n")
        world.live.ask("configuration", by_hand=True)
        until(lambda: told("configuration not changed") == 1)
        world.live.ask("configuration", by_hand=True)
        until(lambda: told("configuration not changed") == 2)
    assert len(world.applied) == 1


def test_a_read_that_hangs_is_given_up_and_the_next_one_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PATIENCE_S", 0.05)
    world.hang()
    hanging = str(world.path)
    with structlog.testing.capture_logs() as logs:
        world.live.ask("configuration")
        until(lambda: any("does not answer" in line["event"] for line in logs))
    with open(hanging, "r+b", buffering=0) as fifo:  # opened for both: the reader goes on to wait for the content
        world.replace("[limits]\nmaxConnections = 7\n")
        world.live.ask("configuration")
        until(lambda: len(world.applied) == 1)
        fifo.write(b"[limits]\nmaxConnections = 9\n")
    until(lambda: world.live.hung == 0)
    assert [config.max_connections for config in world.applied] == [7], "what came late does not count"


def test_reads_that_hang_are_few(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PATIENCE_S", 0.02)
    before = threading.active_count()
    world.hang()
    with structlog.testing.capture_logs() as logs:
        for number in range(HUNG_MAX):
            world.live.ask("configuration")
            until(lambda: world.live.hung == number + 1)  # noqa: B023 (called in this round)
        world.live.ask("configuration")
        assert any("earlier reads still hang" in line["event"] for line in logs)
        assert threading.active_count() <= before + HUNG_MAX + 1
        with open(world.path, "r+b", buffering=0):
            pass
        until(lambda: world.live.hung == 0)


@pytest.mark.deep
def test_a_broker_whose_configuration_hangs_ends_when_told(tmp_path: Path) -> None:
    config = tmp_path / "amq.toml"
    config.write_text("")
    with Brokers(tmp_path, config=config) as brokers:
        broker = brokers.master("a")
        config.unlink()
        os.mkfifo(config)
        broker.signal(1)  # SIGHUP
        broker.wait_event("SIGHUP")
        assert broker.stop() == 0
