"""A part of a coordinator: all keys begin with one word, so that several groups share its servers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from amq.store.coordinator import Coordinator, KeyEntry, KeyWatch, Session


class ScopedSession:
    """See `amq.store.coordinator.Session`."""

    def __init__(self, session: Session, scope: str) -> None:
        self._session, self._scope = session, scope
        self.rest_s, self.close = session.rest_s, session.close

    def hold(self, key: str, value: bytes) -> int | None:
        return self._session.hold(f"{self._scope}/{key}", value)


class ScopedCoordinator:
    """See `amq.store.coordinator.Coordinator`: the keys of `coordinator` below `scope`."""

    def __init__(self, coordinator: Coordinator, scope: str) -> None:
        self._coordinator, self._scope = coordinator, scope
        self.url = coordinator.url
        self.session_s, self.call_s = coordinator.session_s, coordinator.call_s
        self.servers, self.close = coordinator.servers, coordinator.close

    def read(self, key: str) -> KeyEntry | None:
        found = self._coordinator.read(self._under(key))
        return found._replace(key=key) if found is not None else None

    def read_all(self, *keys: str) -> dict[str, KeyEntry]:
        found = self._coordinator.read_all(*map(self._under, keys)).values()
        start = len(self._scope) + 1
        return {(key := each.key[start:]): each._replace(key=key) for each in found}

    def names(self, directory: str) -> list[str]:
        return self._coordinator.names(self._under(directory) if directory else self._scope)

    def compare_and_set(self, key: str, value: bytes, seen: int, first: tuple[str, bytes] | None = None) -> int | None:
        given = (self._under(first[0]), first[1]) if first is not None else None
        return self._coordinator.compare_and_set(self._under(key), value, seen, given)

    def remove(self, key: str, seen: int) -> bool:
        return self._coordinator.remove(self._under(key), seen)

    def open_session(self, lasts_s: float = 0.0) -> ScopedSession:
        return ScopedSession(self._coordinator.open_session(lasts_s), self._scope)

    def watch(self, key: str) -> AbstractContextManager[KeyWatch]:
        return self._coordinator.watch(self._under(key))

    def _under(self, key: str) -> str:
        return f"{self._scope}/{key}"
