"""Acceptance: descriptors run out for strangers first, then for clients, and never for the mastership."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from brokers import Broker, Brokers
from traffic import Producer, connect_any, send

from amq.management.client import ManagementClient
from amq.store.open import open_store
from amq.store.presence import read_presence
from amq.transports.places import RESERVE
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
FILES = 300
STRANGERS = 400
BACK_S = 3.0
OPTIONS = {"journalSegmentSize": "1MiB", "connectTimeout": "1h"}


class Crowd(threading.Thread):
    """`STRANGERS` connections to `port` that say nothing. Those that the broker closes come back, all together, after
    `BACK_S`: a flood that never pauses is what limits for each address are for."""

    def __init__(self, port: int) -> None:
        super().__init__(name="crowd")
        self._port = port
        self._ending = threading.Event()
        self.connected = 0

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while True:
                with suppress(ConnectionError):  # the broker was killed
                    while len(selector.get_map()) < STRANGERS:
                        sock = socket.create_connection(("127.0.0.1", self._port), DEADLINE_S)
                        selector.register(sock, selectors.EVENT_READ)
                        self.connected += 1
                if self._ending.wait(BACK_S):
                    break
                for key, _ in selector.select(0):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]

    def __enter__(self) -> Crowd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


@pytest.fixture
def pair(brokers: Brokers) -> tuple[Broker, Broker]:
    """A master and a slave, each with few files."""
    both = brokers.add("a", **OPTIONS), brokers.add("b", **OPTIONS)
    for broker, is_up in zip(both, (Broker.wait_serving, Broker.wait_slave), strict=True):
        broker.files_max = FILES
        is_up(broker.start())
    return both


def open_files(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def wait_crowded(broker: Broker) -> None:
    until = time.monotonic() + DEADLINE_S
    while not broker.said("a connection without a login gave way to another"):
        assert time.monotonic() < until, broker.log_text()
        time.sleep(0.02)


def segments(store: Path | str) -> set[str]:
    return set(os.listdir(os.path.join(store, "journal")))


def test_strangers_never_cost_the_mastership(pair: tuple[Broker, Broker]) -> None:
    master, slave = pair
    warned = master.wait_event("maxConnections is 10000, and this process may open 300 files")
    assert warned["level"] == "warning"
    client = Producer([master, slave])
    client.start()
    client.wait_confirmed(10)
    (running,) = (each for each in read_presence(open_store(str(master.store)).board) if each.name == "a")
    with ManagementClient(running.management) as management:
        renewals = management.ask("GET", "/totals")["lease_renewals"]
    before = segments(master.store)
    with Crowd(master.port) as crowd:
        wait_crowded(master)
        for number in range(3):  # new clients find a place, again and again
            with connect_any([master]) as other:
                for _ in range(10):
                    send(other, b"x" * 200_000, queue=f"/queue/other{number}")
        client.wait_confirmed(500)
        with ManagementClient(running.management) as management:  # operators do, too, and the lease was renewed
            until = time.monotonic() + DEADLINE_S
            while management.ask("GET", "/totals")["lease_renewals"] < renewals + 3:
                assert time.monotonic() < until, master.log_text()
                time.sleep(0.1)
        assert open_files(master) <= FILES - RESERVE // 2
        assert segments(master.store) - before, "the journal made no file"
        assert crowd.connected > STRANGERS
    assert client.failovers == 0, "the client that had logged in was disconnected"
    assert not master.said("mastership lost")
    with Crowd(master.port):
        wait_crowded(master)
        master.kill()
    slave.wait_serving()
    with Crowd(slave.port):
        wait_crowded(slave)
        client.wait_confirmed(100)
    client.stop()
    assert not slave.said("mastership lost")
    assert slave.stop() == 0
    assert not master.said("internal error") + slave.said("internal error")


def test_a_broker_that_may_open_too_few_files_says_so(brokers: Brokers) -> None:
    broker = brokers.add("a")
    broker.files_max = 100
    assert broker.start().wait_exit() == 3
    assert broker.wait_event("stopped")["code"] == "FILES_LIMIT"
