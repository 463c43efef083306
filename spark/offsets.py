"""Offsets of a stream, and the partitions between two offsets. Needs neither Spark nor a broker.

An offset tells how far the query has read each destination: `{"v": 1, "store": …, "at": {destination: number of its
last lease}, "leases": {destination: [[number, messages], …]}}`. `leases` holds the leases of the batch that ends there.
With `cluster`, the id of a cluster, a gateway of that was asked, and the numbers of a later offset may be of another
store, where the destinations have moved.
So Spark can plan a batch again without the broker, and gets the same batch. Invariant: the partitions of `cut` hold
each message of the slices once, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amq.core.errors import ConfigError

VERSION, STORES_VERSION = 1, 2


class OffsetError(ConfigError):
    """The source cannot continue from this offset: it belongs to another store, or to another source."""

    code = "OFFSET_INVALID"


@dataclass(frozen=True)
class Slice:
    """Messages of a lease, from position `start` up to but not including `stop`."""

    destination: str
    lease: int
    start: int
    stop: int


@dataclass(frozen=True)
class Offset:
    """`at` = number of the last lease of each destination, 0 = none; `store` "" = not known yet; `cluster` "" = no
    gateway was asked."""

    store: str
    at: Mapping[str, int]
    leases: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    cluster: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form in which Spark stores it."""
        leases = {name: [list(each) for each in found] for name, found in self.leases.items()}
        cluster = {"cluster": self.cluster} if self.cluster else {}
        return {"v": VERSION, "store": self.store, "at": dict(self.at), "leases": leases, **cluster}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Offset:
        """The offset whose `to_json` is `found`. Raises OffsetError."""
        if found.get("v") == STORES_VERSION:
            raise OffsetError(
                "this offset is of a stream over a cluster: give the address of its gateways in option url"
            )
        if found.get("v") != VERSION:
            raise OffsetError(f"this offset is not of version {VERSION} of format amq: {json.dumps(found)[:200]}")
        try:
            at = {str(name): int(number) for name, number in found["at"].items()}
            leases = {name: [(int(n), int(count)) for n, count in each] for name, each in found["leases"].items()}
            return cls(str(found["store"]), at, leases, str(found.get("cluster", "")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OffsetError(f"this is not an offset of format amq: {json.dumps(found)[:200]}") from error

    def slices(self, start: Offset) -> list[Slice]:
        """The messages after `start` up to this offset."""
        at = start.at_in(self.store)
        return [
            Slice(name, number, 0, count)
            for name, leases in self.leases.items()
            for number, count in leases
            if number > at.get(name, 0)
        ]

    def at_in(self, store: str) -> Mapping[str, int]:
        """The numbers of the last leases, in the words of that store: none where this offset is of another one."""
        return self.at if self.store in ("", store) else dict.fromkeys(self.at, 0)


def of_stores(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The offset of a stream over stores: `{"v": 2, "stores": {name: its offset}}`."""
    return {"v": STORES_VERSION, "stores": dict(found)}


def by_store(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The offsets of the stores in one whose form `of_stores` made. Raises OffsetError."""
    stores = found.get("stores")
    if found.get("v") != STORES_VERSION or not isinstance(stores, dict):
        raise OffsetError(f"this is not an offset of format amq: {json.dumps(found)[:200]}")
    return stores


def messages_in(found: Mapping[str, Any]) -> int:
    """Messages of the batch that ends at that offset of one store."""
    return sum(count for leases in Offset.of(found).leases.values() for _, count in leases)


def begin(destinations: Sequence[str], given: Mapping[str, Any], patterns: bool = False) -> Offset:
    """The offset at which a new query begins; `given` is an offset, or {destination: number}. `patterns`: it reads
    patterns of queues as well. Raises OffsetError."""
    offset = Offset.of(given) if "v" in given else None
    found = offset.at if offset is not None else given
    at = numbers([*destinations, *found] if patterns else destinations, found, "startingOffsets")
    store, cluster = (offset.store, offset.cluster) if offset is not None else ("", "")
    return Offset(
        store, {name: at.get(name, 0) for name in (*destinations, *(found if patterns else ()))}, cluster=cluster
    )


def numbers(destinations: Sequence[str], given: Mapping[str, Any], option: str) -> Mapping[str, int]:
    """`given`, the value of `option`, after a check: it may hold numbers of these destinations. Raises OffsetError."""
    if unknown := sorted(set(given) - set(destinations)):
        raise OffsetError(f"option '{option}' names {unknown[0]!r}, which the option destination does not")
    if not all(type(number) is int and number >= 0 for number in given.values()):
        raise OffsetError(f"option '{option}' must have numbers by destination, as in {{\"/queue/orders\": 17}}")
    return given


def cut(slices: Sequence[Slice], parts: int, weights: Sequence[int] = ()) -> list[list[Slice]]:
    """At most `parts` partitions of about equal size; none is empty. `weights`: of a message of each slice, as its
    bytes; else all messages weigh the same."""
    weights = weights or [1] * len(slices)
    total = sum(weight * (each.stop - each.start) for each, weight in zip(slices, weights, strict=True))
    size = -(-total // parts)
    found: list[list[Slice]] = []
    room = 0
    for each, weight in zip(slices, weights, strict=True):
        start = each.start
        while start < each.stop:
            if room <= 0:
                found.append([])
                room = size
            stop = min(each.stop, start - (-room // weight))
            found[-1].append(Slice(each.destination, each.lease, start, stop))
            room -= weight * (stop - start)
            start = stop
    return found
