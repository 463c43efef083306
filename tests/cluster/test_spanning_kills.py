"""Transactions over two stores as processes: each is in both stores or in none, and its client hears what is true,
whatever is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

import amq
from amq.client import CommitOutcomeUnknownError, TransactionRolledBackError
from tests.cluster.nodes import Node, Nodes
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
QUEUES = {"/queue/left": "s1", "/queue/right": "s2"}  # the first one decides
EACH = 10  # committed transactions before a kill


class Application(threading.Thread):
    """It sends each number to both queues, in a transaction, and notes what it hears of that."""

    def __init__(self, url: str) -> None:
        super().__init__(name="application", daemon=True)
        self.committed: list[int] = []
        self.rolled_back: list[int] = []
        self.failure: BaseException | None = None
        self._url = url
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            with amq.connect(self._url) as connection, connection.session(transacted=True) as session:
                producers = [session.producer(queue) for queue in QUEUES]
                number = 0
                while not self._stopped.wait(0.005):
                    number += 1
                    try:
                        with session.transaction():
                            for producer in producers:
                                producer.send(str(number))
                    except TransactionRolledBackError:
                        self.rolled_back.append(number)
                    except CommitOutcomeUnknownError:
                        pass
                    else:
                        self.committed.append(number)
        except BaseException as error:  # noqa: BLE001 - `until` shows it
            self.failure = error

    def wait_committed(self, nodes: Nodes) -> None:
        wanted = len(self.committed) + EACH
        self.until(lambda: len(self.committed) >= wanted, nodes)

    def until(self, is_so: Callable[[], bool], nodes: Nodes) -> None:
        until = time.monotonic() + 2 * DEADLINE_S
        while not is_so():
            assert self.failure is None, f"{self.failure!r}\n{nodes.logs()}"
            assert time.monotonic() < until, nodes.logs()
            time.sleep(0.01)

    def stop(self, nodes: Nodes) -> None:
        self._stopped.set()
        self.until(lambda: not self.is_alive(), nodes)


def listens(node: Node) -> bool:
    return bool(node.ports)


def gateways(nodes: Nodes) -> list[int]:
    return [pid for node in nodes.nodes.values() for pid in node.gateways]


def master_of(nodes: Nodes, store: str) -> list[int]:
    found = nodes.until(lambda found: all(each["master"] for each in found["stores"]))
    (name,) = (each["master"] for each in found["stores"] if each["store"] == store)
    return nodes.nodes[name].members_of(store)


def test_each_transaction_is_in_both_stores_or_in_none(nodes: Nodes) -> None:
    for node in nodes.nodes.values():
        node.start()
    nodes.until(
        lambda found: all(store["master"] for store in found["stores"]) and all(map(listens, nodes.nodes.values()))
    )
    for queue, store in QUEUES.items():
        nodes.place(queue.removeprefix("/queue/"), store).check_returncode()
    brokers = ",".join(f"stomp://127.0.0.1:{node.port}" for node in nodes.nodes.values())
    url = f"failover:({brokers})"
    application = Application(url)
    application.start()
    for victims in gateways, lambda nodes: master_of(nodes, "s1"), lambda nodes: master_of(nodes, "s2"):
        application.wait_committed(nodes)
        killed = victims(nodes)
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
    application.wait_committed(nodes)
    application.stop(nodes)
    with amq.connect(url) as connection:
        application.until(lambda: not connection.recover(), nodes)
        browsers = [connection.session().browser(queue) for queue in QUEUES]
        left, right = (sorted(int(message.text) for message in browser) for browser in browsers)
    assert left == right == sorted(set(left)), "a transaction was carried out in part, or twice"
    assert set(application.committed) <= set(left)
    assert not set(application.rolled_back) & set(left)
