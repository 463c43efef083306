"""A coordinator in memory, with faults, for tests that need one and no servers.

`Ensemble` is what its servers keep; `MemoryCoordinator` is one process' view of it. Faults: `away` (no call reaches the
ensemble), `lost_answers` (of the next calls that change something: they take place, and their caller learns nothing),
`expire` (the ensemble ends a session whose owner goes on).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from amq.doors.clock import Clock
from amq.store.coordinator import ABSENT, KeyEntry
from tests.fakes import FakeClock

SESSION_S = 4.0


@dataclass
class Ensemble:
    """All that the servers keep. A session ends when its owner has renewed it for the last time `SESSION_S` ago."""

    clock: Clock = field(default_factory=FakeClock)
    revision: int = 100
    entries: dict[str, KeyEntry] = field(default_factory=dict)
    owners: dict[str, MemorySession] = field(default_factory=dict)  # of entries that go with a session
    changed: threading.Condition = field(default_factory=threading.Condition)
    changes: list[str] = field(default_factory=list)

    def put(self, key: str, value: bytes) -> int:
        with self.changed:
            self.revision += 1
            self.entries[key] = KeyEntry(key, value, self.revision)
            self._tell(key)
        return self.revision

    def drop(self, key: str) -> None:
        with self.changed:
            self.revision += 1
            del self.entries[key]
            self.owners.pop(key, None)
            self._tell(key)

    def expire(self, session: MemorySession) -> None:
        session.is_over = True
        for key in [key for key, owner in self.owners.items() if owner is session]:
            self.drop(key)

    def look(self) -> None:
        """End the sessions that were not renewed in time."""
        for session in set(self.owners.values()):
            if session.until <= self.clock.monotonic():
                self.expire(session)

    def _tell(self, key: str) -> None:
        self.changes.append(key)
        self.changed.notify_all()


class MemorySession:
    """See `amq.store.coordinator.Session`. It is renewed whenever its process asks the coordinator for something, and
    by `renew`."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self._coordinator = coordinator
        self.is_over = False
        self.until = coordinator.ensemble.clock.monotonic() + SESSION_S

    def renew(self) -> None:
        if not self.is_over and not self._coordinator.away:
            self.until = self._coordinator.ensemble.clock.monotonic() + SESSION_S

    def hold(self, key: str, value: bytes) -> int | None:
        ensemble = self._coordinator.reach(key)
        if self.is_over or key in ensemble.entries:
            return None
        number = ensemble.put(key, value)
        ensemble.owners[key] = self
        self._coordinator.answer(key)
        return number

    def rest_s(self) -> float:
        left = self.until - self._coordinator.ensemble.clock.monotonic()
        return max(0.0, left) if not self.is_over else 0.0

    def close(self) -> None:
        self.is_over = True
        self.until = min(self.until, self._coordinator.ensemble.clock.monotonic() + SESSION_S)
        if not self._coordinator.away:
            self._coordinator.ensemble.expire(self)
        self._coordinator.sessions.discard(self)


class MemoryWatch:
    """See `amq.store.coordinator.KeyWatch`."""

    def __init__(self, ensemble: Ensemble, key: str) -> None:
        self._ensemble, self._key = ensemble, key
        self._seen = len(ensemble.changes)

    def wait(self, timeout_s: float) -> bool:
        def is_there() -> bool:
            new = self._ensemble.changes[self._seen :]
            return any(key == self._key or key.startswith(f"{self._key}/") for key in new)

        with self._ensemble.changed:
            found = self._ensemble.changed.wait_for(is_there, timeout_s)
            self._seen = len(self._ensemble.changes)
        return found


class MemoryCoordinator:
    """See `amq.store.coordinator.Coordinator`."""

    url = "memory://"
    session_s = SESSION_S
    call_s = 1.0

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.away = False
        self.lost_answers = 0
        self.sessions: set[MemorySession] = set()

    def reach(self, what: str) -> Ensemble:
        """The ensemble, where this process can reach it."""
        if self.away:
            raise OSError(errno.ETIMEDOUT, "the coordinator does not answer", what)
        self.ensemble.look()
        for session in self.sessions:
            session.renew()
        return self.ensemble

    def answer(self, what: str) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError(errno.ETIMEDOUT, "the answer of the coordinator is lost", what)

    def read(self, key: str) -> KeyEntry | None:
        return self.reach(key).entries.get(key)

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        keys = self.reach(directory).entries
        return sorted({key.removeprefix(prefix).partition("/")[0] for key in keys if key.startswith(prefix)})

    def compare_and_set(self, key: str, value: bytes, seen: int) -> int | None:
        ensemble = self.reach(key)
        found = ensemble.entries.get(key)
        if (found.revision if found else ABSENT) != seen:
            return found.revision if found is not None and found.value == value else None
        number = ensemble.put(key, value)
        self.answer(key)
        return number

    def remove(self, key: str, seen: int) -> bool:
        ensemble = self.reach(key)
        found = ensemble.entries.get(key)
        if found is None or found.revision != seen:
            return False
        ensemble.drop(key)
        self.answer(key)
        return True

    def open_session(self) -> MemorySession:
        self.reach("a session")
        session = MemorySession(self)
        self.sessions.add(session)
        return session

    @contextmanager
    def watch(self, key: str) -> Iterator[MemoryWatch]:
        yield MemoryWatch(self.ensemble, key)

    def servers(self) -> list[tuple[str, str]]:
        return [("memory", "cut off" if self.away else "")]

    def close(self) -> None:
        """There is no connection."""
