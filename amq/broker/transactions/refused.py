"""Refused: the questions of users that were answered "it did not take place", which must stay true."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator


class Refused:
    """(user, name) for each. Of each user the newest `limit()` names are kept, so that no user can make the broker
    forget what it has said to another."""

    __slots__ = ("_limit", "_names")

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._names: dict[str, dict[Hashable, None]] = {}

    def add(self, user: str, name: Hashable) -> None:
        """The oldest name of this user goes when there are too many."""
        names = self._names.setdefault(user, {})
        names[name] = None
        if len(names) > self._limit():
            del names[next(iter(names))]

    def __contains__(self, found: tuple[str, Hashable]) -> bool:
        user, name = found
        return name in self._names.get(user, ())

    def __iter__(self) -> Iterator[tuple[str, Hashable]]:
        return ((user, name) for user, names in self._names.items() for name in names)
