"""Audience: the subscribers that get the messages of one topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from amq.selectors import Selector, SelectorIndex

T = TypeVar("T")


class Audience(Generic[T]):
    """The subscribers to everything, in the order in which they came, and those with a selector."""

    __slots__ = ("everything", "some")

    def __init__(self) -> None:
        self.everything: dict[T, None] = {}
        self.some: SelectorIndex[T] = SelectorIndex()

    def __len__(self) -> int:
        return len(self.everything) + len(self.some)

    def __iter__(self) -> Iterator[T]:
        yield from self.everything
        yield from self.some

    def add(self, who: T, selector: Selector | None) -> None:
        if selector is None:
            self.everything[who] = None
        else:
            self.some.add(who, selector)

    def discard(self, who: T, selector: Selector | None) -> None:
        if selector is None:
            del self.everything[who]
        else:
            self.some.remove(who)
