"""A takeover of a replicated store, with each of its calls of the coordinator that the next one waits for."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amq.broker.events import RoleChanged
from amq.config.schema import BrokerConfig
from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.node import takeover
from amq.node.member import Member, Role
from amq.store.coordinator import Coordinator
from amq.store.files.vfs import SystemVfs
from amq.store.open import replica_in
from amq.store.replica.url import ReplicaUrl
from tests.coordinator_contract import Coordinators
from tests.copies import LocalNetwork
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import anybody, until

CALLS_MAX = 15
LEASE = "amq-lease"  # the thread of a takeover
SERVES = "it serves"


class CountedCoordinator:
    """`coordinator`, which takes `delay_s` more for each call, and answers none while it is `away`. `calls` = (thread,
    call, key)."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.url, self.call_s, self.session_s = coordinator.url, coordinator.call_s, coordinator.session_s
        self.watch, self.servers = coordinator.watch, coordinator.servers
        self.read, self.read_all = (
            self._counted("read", coordinator.read),
            self._counted("read_all", coordinator.read_all),
        )
        self.names, self.remove = self._counted("names", coordinator.names), self._counted("remove", coordinator.remove)
        self.compare_and_set = self._counted("compare_and_set", coordinator.compare_and_set)
        self.calls: list[tuple[str, str, str]] = []
        self.delay_s = 0.0
        self.away = False
        self._never = threading.Event()
        self._coordinator = coordinator

    def open_session(self, lasts_s: float = 0.0) -> CountedSession:
        return CountedSession(self, self._counted("open_session", self._coordinator.open_session)(lasts_s))

    def close(self) -> None:
        self._coordinator.close()

    def note(self, what: str, key: str) -> None:
        if self.away:
            raise OSError(errno.ETIMEDOUT, "the coordinator does not answer", key)
        self.calls.append((threading.current_thread().name, what, key))
        self._never.wait(self.delay_s)

    def _counted(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self.note(what, str(given[0]) if given else "")
            return call(*given)

        return counted


class CountedSession:
    """See `amq.store.coordinator.Session`."""

    def __init__(self, coordinator: CountedCoordinator, session: Any) -> None:
        self._coordinator, self._session = coordinator, session
        self.rest_s, self.close = session.rest_s, session.close

    def hold(self, key: str, value: bytes) -> int | None:
        self._coordinator.note("hold", key)
        found: int | None = self._session.hold(key, value)
        return found


async def counted_takeover(new: Coordinators, root: Path, delay_s: float = 0.0) -> list[str]:
    """Three members, whose master is cut off, as its session is; the calls of the next one, from the moment at which it
    sees that the lock is free until it serves. Each call takes `delay_s` more."""
    network, members = LocalNetwork(), dict[str, Member]()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(takeover, "CHECK_S_MAX", DEADLINE_S)  # a busy machine reads the journal slowly
        coordinators = {}
        for name in "abc":
            coordinators[name] = coordinator = CountedCoordinator(new())
            stack.callback(coordinator.close)
            members[name] = _member(name, root, coordinator, network)
            members[name].events.listen(RoleChanged, _noting(coordinator))
            await members[name].start()
            await members[name].wait_for(Role.MASTER if name == "a" else Role.SLAVE)
        old = members["a"]._doors.store
        await until(lambda: (seen := old.copies_seen()) is not None and sum(each.counts for each in seen.copies) == 3)
        for each in coordinators.values():
            each.delay_s = delay_s
        election: Any = old.election
        network.away.add(election._part.taken().me)
        coordinators["a"].away = True
        election._holding._session.close()
        try:
            await until(lambda: any(members[name].role is Role.MASTER for name in "bc"))
            won = next(name for name in "bc" if members[name].role is Role.MASTER)
            return _sequence(coordinators[won].calls)
        finally:
            network.away.clear()
            for each in coordinators.values():
                each.delay_s, each.away = 0.0, False
            for member in reversed(members.values()):
                await asyncio.wait_for(member.stop(), DEADLINE_S)


def _member(name: str, root: Path, coordinator: CountedCoordinator, network: LocalNetwork) -> Member:
    url = ReplicaUrl.parse(f"replica://{root / name}?group=g&coordinator=file:///nowhere")
    doors = SystemVfs(), SystemClock(), SystemThreads(), Random(name)
    config = BrokerConfig(
        name=name,
        store=url.text,
        transports=(f"stomp://127.0.0.1:{free_port()}",),
        lock_keep_alive_period_s=600.0,
        lock_acquire_sleep_interval_s=2.0,
    )
    return Member(config, anybody, store=replica_in(url, coordinator, network.connect, *doors))


def _noting(coordinator: CountedCoordinator) -> Callable[[RoleChanged], None]:
    def note(changed: RoleChanged) -> None:
        if changed.role == Role.MASTER.value:
            coordinator.calls.append((LEASE, SERVES, ""))

    return note


def _sequence(calls: list[tuple[str, str, str]]) -> list[str]:
    """From the look at the lock which the try for it follows, and the watch that wakes the member before it."""
    made = [(what, key) for thread, what, key in calls if thread == LEASE]
    end = made.index((SERVES, ""))
    held = max(at for at, (what, key) in enumerate(made[:end]) if what == "hold" and "/holder/" in key)
    start = max(at for at, (what, key) in enumerate(made[:held]) if (what, key) == ("read_all", "g/lock"))
    return ["the watch", *(f"{what} {key}" for what, key in made[start:end])]
