"""Lookouts: threads that look at what only a file system or a database can say: who is master of a store, and what the
cluster is.

Each store has a thread, so one that hangs keeps no other from being looked at. Invariants: the event loop never waits
for a look; what a lookout finds, it posts there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import structlog

from amq.cluster.directory import STORES_MAX
from amq.core.errors import AmqError
from amq.doors.threads import Threads
from amq.node.group import addresses_of
from amq.store.host import SystemHost
from amq.store.open import open_store
from amq.store.port import Store
from amq.store.status import store_status

LOOK_S = 5.0  # between two looks while all is well
WANTED_LOOK_S = 0.1  # between two looks while somebody waits for what is found
_HOST = SystemHost()
LINK = "link"  # the fact of a master that says where its link is
_log = structlog.get_logger("amq.gateway")


@dataclass(frozen=True)
class Master:
    """The master of a store. `address` = of its link; `urls` = where clients find it, and behind these where they find
    the brokers that may be master next."""

    broker: str
    address: str
    urls: tuple[str, ...] = field(default=(), compare=False)


_store_of = lru_cache(maxsize=STORES_MAX)(open_store)  # a database has one door for all looks


def find_master(location: str) -> Master | None:
    """The master of the store at `location`, None = it has none that takes links now. Raises AmqError, OSError."""
    return master_of(_store_of(location))


def master_of(store: Store) -> Master | None:
    """The master of `store`: see `find_master`."""
    try:
        status = store_status(store)
    except FileNotFoundError:
        return None  # no broker has served it yet
    found = status.master
    if found is None:
        return None
    address = found.facts.get(LINK)
    if not isinstance(address, str) or not address:
        return None
    return Master(found.name, address, (*addresses_of([found], _HOST), *addresses_of(status.slaves, _HOST)))


class Lookout:
    """Calls `look` in a thread, again and again; it posts what it finds itself. `what` is for the log."""

    def __init__(self, threads: Threads, what: str, look: Callable[[], None]) -> None:
        self._look = look
        self._what = what
        self._wanted = threads.event()
        self._stopped = threads.event()
        self._trouble = ""
        self._is_wanted = False
        threads.start("amq-lookout", self._run)

    def want(self, wanted: bool) -> None:
        """Somebody waits for what is found, or does no more."""
        self._is_wanted = wanted
        if wanted:
            self._wanted.set()

    def stop(self) -> None:
        """Look no more. Does not wait."""
        self._stopped.set()
        self._wanted.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wanted.clear()
            trouble = ""
            try:
                self._look()
            except (AmqError, OSError) as error:
                trouble = str(error)
            if trouble and trouble != self._trouble:
                _log.warning("the gateway cannot look; it goes on with what it knows", what=self._what, reason=trouble)
            self._trouble = trouble
            if self._is_wanted:
                self._stopped.wait(WANTED_LOOK_S)
            else:
                self._wanted.wait(LOOK_S)
