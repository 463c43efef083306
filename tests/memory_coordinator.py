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
from dataclasses import dataclass, field, replace

from amq.store.coordinated.board import CoordinatedBoard
from amq.store.coordinated.election import CoordinatedElection
from amq.store.coordinated.epochs import CoordinatedEpochs
from amq.store.coordinator import ABSENT, KeyEntry
from amq.store.port import Store
from tests.fakes import FakeClock, FakeHost

SESSION_S = 4.0

HOST = FakeHost(running=frozenset({(100, 5000)}))


def coordinated(files: Store, coordinator: MemoryCoordinator, *, alone: bool = False) -> Store:
    """The store `files` with its lock and its board in `coordinator`, and its epochs, too, unless the lock is there
    `alone`."""
    return replace(
        files,
        election=CoordinatedElection(coordinator, HOST, coordinator.ensemble.clock, alone=alone),
        epochs=files.epochs if alone else CoordinatedEpochs(coordinator),
        board=CoordinatedBoard(coordinator, HOST),
    )


@dataclass
class Ensemble:
    """All that the servers keep. A session ends when its owner has been away for `SESSION_S`. A client that waits
    for a change makes the time pass."""

    clock: FakeClock = field(default_factory=FakeClock)
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
            if session.until is not None and session.until <= self.clock.monotonic():
                self.expire(session)

    def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def _tell(self, key: str) -> None:
        self.changes.append(key)
        self.changed.notify_all()


class MemorySession:
    """See `amq.store.coordinator.Session`. It lasts as long as its process reaches the ensemble, and `SESSION_S`."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self._coordinator = coordinator
        self.is_over = False
        self.until: float | None = None  # its process is away, and it ends then

    def hold(self, key: str, value: bytes) -> int | None:
        ensemble = self._coordinator.reach(key)
        if self.is_over or key in ensemble.entries:
            return None
        number = ensemble.put(key, value)
        ensemble.owners[key] = self
        self._coordinator.answer(key)
        return number

    def rest_s(self) -> float:
        if self.is_over:
            return 0.0
        now = self._coordinator.ensemble.clock.monotonic()
        return SESSION_S if self.until is None else max(0.0, self.until - now)

    def close(self) -> None:
        if self._coordinator.away and self.until is not None:
            return  # it ends by itself
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
            found = is_there()
            if not found:
                self._ensemble.pause(timeout_s)
                self._ensemble.look()
                found = is_there()
            self._seen = len(self._ensemble.changes)
        return found


class MemoryCoordinator:
    """See `amq.store.coordinator.Coordinator`."""

    url = "memory://"
    session_s = SESSION_S
    call_s = 1.0

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self._away = False
        self.lost_answers = 0
        self.sessions: set[MemorySession] = set()
        self.lasts_s: list[float] = []  # how long each was to last

    @property
    def away(self) -> bool:
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self.ensemble.look()
        until = self.ensemble.clock.monotonic() + SESSION_S if away else None
        self._away = away
        for session in self.sessions:
            session.until = until

    def reach(self, what: str) -> Ensemble:
        """The ensemble, where this process can reach it."""
        if self.away:
            raise OSError(errno.ETIMEDOUT, "the coordinator does not answer", what)
        self.ensemble.look()
        return self.ensemble

    def answer(self, what: str) -> None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError(errno.ETIMEDOUT, "the answer of the coordinator is lost", what)

    def read(self, key: str) -> KeyEntry | None:
        return self.reach(key).entries.get(key)

    def read_all(self, *keys: str) -> dict[str, KeyEntry]:
        found = self.reach(keys[0]).entries
        below = tuple(key for key in keys if key.endswith("/"))
        return {key: entry for key, entry in found.items() if key in keys or key.startswith(below)}

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        keys = self.reach(directory).entries
        return sorted({key.removeprefix(prefix).partition("/")[0] for key in keys if key.startswith(prefix)})

    def compare_and_set(self, key: str, value: bytes, seen: int, first: tuple[str, bytes] | None = None) -> int | None:
        ensemble = self.reach(key)
        if first is not None and first[0] not in ensemble.entries:
            ensemble.put(*first)
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

    def open_session(self, lasts_s: float = 0.0) -> MemorySession:
        self.reach("a session")
        self.lasts_s.append(lasts_s)
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
