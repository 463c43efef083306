"""Patterns: which of many subscriptions a name concerns, in time that grows with the name and not with their number.

A tree of words. Invariant: `match` yields what `amq.core.destination.matches` says, each value once for each
pattern under which it was added, and always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from amq.core.destination import ANY_REST, ANY_WORD

T = TypeVar("T")


class Patterns(Generic[T]):
    """Values under patterns. A pattern or name is a sequence of words."""

    __slots__ = ("_branches", "_here", "_rest")

    def __init__(self) -> None:
        self._branches: dict[str, Patterns[T]] = {}
        self._here: dict[T, None] = {}  # whose pattern ends with this word
        self._rest: dict[T, None] = {}  # and with `>` behind it

    def __bool__(self) -> bool:
        return bool(self._branches or self._here or self._rest)

    def add(self, pattern: Sequence[str], value: T) -> None:
        if not pattern:
            self._here[value] = None
        elif pattern[0] == ANY_REST:
            self._rest[value] = None
        else:
            self._branches.setdefault(pattern[0], Patterns()).add(pattern[1:], value)

    def discard(self, pattern: Sequence[str], value: T) -> None:
        """Undo an `add`; nothing happens where there was none."""
        if not pattern:
            self._here.pop(value, None)
        elif pattern[0] == ANY_REST:
            self._rest.pop(value, None)
        elif (branch := self._branches.get(pattern[0])) is not None:
            branch.discard(pattern[1:], value)
            if not branch:
                del self._branches[pattern[0]]

    def match(self, name: Sequence[str]) -> Iterator[T]:
        """The values of all patterns that stand for `name`."""
        yield from self._rest
        if not name:
            yield from self._here
            return
        for word in (name[0], ANY_WORD):
            if word in self._branches:
                yield from self._branches[word].match(name[1:])
