"""A cluster whose stores are all served by one node in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog

import amq
from amq.cluster import masters
from amq.cluster.directory import Cluster
from amq.cluster.masters import Masters
from amq.cluster.whole import WholeCluster
from amq.config.schema import BrokerConfig
from amq.gateway.members import member_ways
from amq.management.listing import Row
from amq.node import process
from amq.node.member import Member, Role
from amq.node.node import Node
from amq.security.credentials import link_context
from amq.security.login import User
from tests.patience import DEADLINE_S
from tests.service_world import PERIOD_S

T = TypeVar("T")


class PatientCluster(WholeCluster):
    """It waits for as long as a busy machine takes."""

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        user: User | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> Row:
        return super().ask(method, path, body, user, timeout_s)


class ServedCluster:
    """`cluster` with stores s1, s2, ... Those in `served` have a master, node `a`."""

    def __init__(self, folder: Path, stores: int = 3, served: int | None = None, spread: str = "", **options: Any):
        self.directory = str(folder / "c")
        names = [f"s{number}" for number in range(1, stores + 1)]
        self.cluster = Cluster.create(self.directory, dict.fromkeys(names, ""))
        for name in filter(None, spread.split()):
            placement = self.cluster.place(self.cluster.table().placement.placed(name, "spread")).placement
            self.cluster.place(placement.settled())
        self.socket, self.secret = folder / "a.sock", folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_bytes(self.cluster.secret())
        self.names = names[:served]
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.run(self._start())

    def stop(self) -> None:
        self.run(self.node.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _start(self) -> None:
        ways = {"peers": member_ways(self.cluster.location, lambda: link_context(self._config(self.names[0])))}
        self.node = Node([self._config(name) for name in self.names], doors=dict.fromkeys(self.names, ways))
        await self.node.start()
        for member in self.node.members.values():
            assert await asyncio.wait_for(member.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER, member.failure
        seen = Masters(self.cluster)
        while sum(each.obeys is not None for each in seen.look()) < len(self.names):  # others see it, too
            await asyncio.sleep(0.1)
        seen.close()

    def _config(self, name: str) -> BrokerConfig:
        table = self.cluster.table()
        chosen: dict[str, Any] = {
            "name": "a",
            "transports": ("stomp://127.0.0.1:0",),
            "lock_keep_alive_period_s": PERIOD_S,
            "lock_acquire_sleep_interval_s": 0.1,
            "management_socket": str(self.socket),
            "link_listen": "tcp://127.0.0.1:0",
            "link_secret_file": str(self.secret),
            "placed": {
                "cluster": self.cluster.id,
                "store": name,
                "number": table.number,
                "placement": table.placement.to_json(),
            },
            **self._options,
        }
        return BrokerConfig(store=self.cluster.location(name), **chosen)

    def member(self, store: str) -> Member:
        return self.node.members[store]

    def url(self, store: str) -> str:
        master = self.member(store).master
        assert master is not None
        return master.urls[0]

    def home(self, name: str) -> str:
        return self.cluster.table().placement.home_of(f"queue://{name}")

    def queue_in(self, store: str) -> str:
        """A name of a queue that lives there."""
        return next(name for name in (f"q{number}" for number in range(1000)) if self.home(name) == store)

    def fill(self, name: str, count: int, store: str = "", **headers: str) -> None:
        with amq.connect(self.url(store or self.home(name))) as connection, connection.session() as session:
            producer = session.producer(f"/queue/{name}")
            for number in range(count):
                producer.send(f"{name} {number}", wait=False, headers=headers)
            producer.flush()

    def stop_member(self, store: str) -> None:
        """It has no master then."""
        self.run(self.member(store).stop())

    def ask_by_links(self) -> None:
        """As if the node were on another host: its management socket is not on this one."""
        self.socket.unlink()


@contextmanager
def served_cluster(folder: Path, **options: Any) -> Iterator[ServedCluster]:
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )  # commands have the output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "keep_loaded_objects", lambda: None)
        patch.setattr(process, "drop_loaded_objects", lambda: None)
        patch.setattr(masters, "LOOK_S", DEADLINE_S)
        made = ServedCluster(folder, **options)
        made.start()
        try:
            yield made
        finally:
            made.stop()
            structlog.configure(**before)
