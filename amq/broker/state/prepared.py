"""PreparedTransactions: which transactions are prepared, and which batches of pipelines are committed.

Part of the state: it changes through `State.apply` alone. The messages that a prepared transaction sent and
acknowledged are in hidden queues (docs/journal-format.md); here is only which of them belong to which transaction.
Invariant: each record of these is in a segment that counts; it is written again before that segment goes, and the
record of an end outlives the record that it ends. A user's transactions are found by the user, those of several users
with one id by that, those of a pipeline (or cursor) by it, at no cost for others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from amq.broker.state.window import ID_BYTES
from amq.core.xid import AnyXid, Key, OwnedXid
from amq.journal.follower import DivergedError
from amq.journal.live import Segment
from amq.journal.records import Group, Marker, Prepared, Record, Trimmed, is_of_lease


class PreparedTransactions(dict[Key, tuple[Prepared, Segment]]):
    """key → (what is prepared, where its record stands). `markers`: owner → (marker of its newest batch, where)."""

    def __init__(self) -> None:
        super().__init__()
        self._by_user: dict[str, dict[Key, Prepared]] = {}
        self._by_owner: dict[str, dict[Key, Prepared]] = {}
        self._by_xid: dict[AnyXid, dict[Key, Prepared]] = {}  # those that belong to a user
        self.markers: dict[str, tuple[Marker, Segment]] = {}

    def of_user(self, user: str) -> Collection[Prepared]:
        """The transactions that belong to `user`, "" = to nobody; without leases."""
        return self._by_user.get(user, {}).values()

    def of_owner(self, owner: str) -> Collection[Prepared]:
        """Those of the pipeline or cursor `owner`."""
        return self._by_owner.get(owner, {}).values()

    def of_xid(self, xid: AnyXid) -> list[Prepared]:
        """Those with this id, of any user and of nobody."""
        nobodys = [self[xid][0]] if xid in self else []
        return [*nobodys, *self._by_xid.get(xid, {}).values()]

    def _indexes(self, prepared: Prepared) -> Iterator[tuple[dict[Any, dict[Key, Prepared]], AnyXid]]:
        if not is_of_lease(prepared.owner):
            yield self._by_user, prepared.user
        if prepared.owner:
            yield self._by_owner, prepared.owner
        if isinstance(prepared.key, OwnedXid):
            yield self._by_xid, prepared.xid

    def put(self, prepared: Prepared, segment: Segment) -> None:
        """Prepared, or written again."""
        if (before := self.remove(prepared.key)) is not None and before[1] is not segment:
            segment.refers.add(before[1].code)
        segment.id_bytes += prepared.record_bytes()
        self[prepared.key] = prepared, segment
        for index, name in self._indexes(prepared):
            index.setdefault(name, {})[prepared.key] = prepared

    def remove(self, key: Key) -> tuple[Prepared, Segment] | None:
        """Forget the transaction, which has ended, and return it."""
        found = self.pop(key, None)
        if found is not None:
            found[1].id_bytes -= found[0].record_bytes()
            for index, name in self._indexes(found[0]):
                del index[name][key]
                if not index[name]:
                    del index[name]
        return found

    def mark(self, marker: Marker, segment: Segment) -> None:
        """That batch is committed."""
        before = self.markers.get(marker.owner)
        if before is not None:
            if before[0].batch > marker.batch:
                return
            before[1].id_bytes -= len(marker.owner) + ID_BYTES
        segment.id_bytes += len(marker.owner) + ID_BYTES
        self.markers[marker.owner] = marker, segment

    def settle(self, trimmed: Trimmed) -> None:
        """All is read. A transaction in a segment that no longer counts ended long ago, and so did its record."""
        for key, (_, segment) in list(self.items()):
            if segment.key in trimmed:
                self.remove(key)

    def check_places(self, there: AbstractSet[int], trimmed: Trimmed) -> None:
        """Raises DivergedError where one is in a segment that is not there."""
        for key, (_, segment) in self.items():
            if segment.code not in there and segment.key not in trimmed:
                raise DivergedError(f"prepared transaction {key} stands in {segment.name}, which does not count")

    def standing_in(self, codes: AbstractSet[int], ending: AbstractSet[Key]) -> list[Group]:
        """The records that must be written again when the segments of these `codes` go. Not those of `ending`, whose
        end is on its way: behind it they would be prepared for ever."""
        records: list[Record] = [
            *(each for key, (each, segment) in self.items() if segment.code in codes and key not in ending),
            *(marker for marker, segment in self.markers.values() if segment.code in codes),
        ]
        return [Group(records)] if records else []
