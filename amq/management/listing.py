"""Listing: pages of rows that are filtered and sorted, worked out in slices.

A query has `name` (a pattern with `*` and `?`), `filter` (`consumers=0,messages>100`), `sort` (a field, `-` before it =
descending), `offset` and `limit`. Invariant: a page holds at most `LIMIT_MAX` rows, and only these are built whole.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from amq.core.errors import CommandError
from amq.management.slices import Slices, pieces

LIMIT_MAX: Final = 500
CONDITIONS_MAX: Final = 8
TEXT_MAX: Final = 1000
T = TypeVar("T")
Row = dict[str, Any]
_CONDITION: Final = re.compile(r"(\w+)(>=|<=|!=|=|>|<)(-?\d{1,18})")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Query:
    """A part of a list. `conditions` = (field, operator, number)."""

    name: str = ""
    conditions: tuple[tuple[str, str, int], ...] = ()
    sort: str = "name"
    descending: bool = False
    offset: int = 0
    limit: int = LIMIT_MAX

    @classmethod
    def parse(cls, found: Mapping[str, str]) -> Query:
        """Raises CommandError."""
        sort = found.get("sort", "name")
        conditions: list[tuple[str, str, int]] = []
        for text in filter(None, found.get("filter", "").split(",")):
            if (match := _CONDITION.fullmatch(text)) is None or len(conditions) >= CONDITIONS_MAX:
                raise invalid(f"filter {text[:80]!r}: write FIELD=NUMBER, or with > < >= <= !=, at most 8 with commas")
            conditions.append((match[1], match[2], int(match[3])))
        return cls(
            text_of(found, "name"),
            tuple(conditions),
            sort.removeprefix("-"),
            sort.startswith("-"),
            number(found, "offset", 0, 1 << 40),
            number(found, "limit", LIMIT_MAX, LIMIT_MAX),
        )


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A kind of rows. `fields` can be sorted and filtered by; `more` = what else a row has. `name` is always there."""

    name: Callable[[T], str]
    fields: Mapping[str, Callable[[T], int]]
    more: Callable[[T], Row]

    def row(self, item: T) -> Row:
        return {"name": self.name(item), **{field: of(item) for field, of in self.fields.items()}, **self.more(item)}

    async def page(self, slices: Slices, items: Iterable[T], query: Query) -> Row:
        """{"items": rows, "total": how many there are, "offset", "limit"}. Raises CommandError."""
        keep, key = self._condition(query), self._key(query)
        runs: list[list[tuple[Any, str, int, T]]] = [[]]
        total = 0
        async with slices.work() as work:
            for piece in pieces(items):
                found = [(key(item), self.name(item), total + n, item) for n, item in enumerate(filter(keep, piece))]
                total += len(found)
                runs[-1] += found
                if len(runs[-1]) >= LIMIT_MAX:
                    runs[-1].sort()
                    runs.append([])
                await work.did(len(piece))
            runs[-1].sort()
            rows: list[Row] = []
            chosen: Iterator[tuple[Any, str, int, T]] = merge(*runs)
            for skipped in pieces(islice(chosen, query.offset)):
                await work.did(len(skipped))
            for some in pieces(islice(chosen, query.limit)):
                rows += [self.row(item) for *_, item in some]
                await work.did(len(some))
        return {"items": rows, "total": total, "offset": query.offset, "limit": query.limit}

    def _condition(self, query: Query) -> Callable[[T], bool]:
        pattern = re.compile(fnmatch.translate(query.name)) if query.name else None
        tests = []
        for field, written, value in query.conditions:
            self._check(field)
            tests.append((self.fields[field], _OPERATORS[written], value))

        def keep(item: T) -> bool:
            if pattern is not None and pattern.match(self.name(item)) is None:
                return False
            return all(compare(of(item), value) for of, compare, value in tests)

        return keep

    def _key(self, query: Query) -> Callable[[T], Any]:
        if query.sort == "name":
            if query.descending:
                return lambda item: (*(-ord(char) for char in self.name(item)), 1)
            return lambda _: 0
        self._check(query.sort)
        of = self.fields[query.sort]
        return (lambda item: -of(item)) if query.descending else of

    def _check(self, field: str) -> None:
        if field not in self.fields:
            raise invalid(f"{field[:80]!r} is not a field of numbers here: use {', '.join(self.fields) or 'none'}")


def number(found: Mapping[str, str], name: str, default: int, most: int) -> int:
    """The whole number that the query has of that name, from 0 to `most`. Raises CommandError."""
    text = found.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 15 or int(text) > most:
        raise invalid(f"{name}={text[:40]!r}: write a whole number from 0 to {most}")
    return int(text)


def text_of(found: Mapping[str, str], name: str) -> str:
    """Raises CommandError where it is too long."""
    text = found.get(name, "")
    if len(text) > TEXT_MAX:
        raise invalid(f"{name} has {len(text)} characters, at most {TEXT_MAX}")
    return text


def invalid(why: str) -> CommandError:
    return CommandError(why, code="REQUEST_INVALID")
