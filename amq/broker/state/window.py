"""Window: the youngest of the ids that a destination remembers, and where they are in the journal. Windows: the same
for each owner of ids, so that nobody makes the broker forget an id of somebody else.

An id's age is the seq it was stored with. So it does not matter in which order a replay finds ids, their copies in
later segments, and messages that were copied forward: the window ends as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import chain

from amq.core.ownership import owner_of
from amq.journal.live import Segment

ID_BYTES = 20  # of an id in the journal beside its characters: its seq, quotes, brackets


class IdWindow(OrderedDict[str, tuple[int, Segment]]):
    """id → (seq, segment), oldest first; at most `size` of them once `settle` was called, and from then on.
    `Segment.id_bytes` counts their bytes.
    """

    __slots__ = ("_settled", "_size")

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._settled = True

    def remember(self, id: str, seq: int, segment: Segment) -> None:
        """Keep `id`. The oldest goes when there are too many."""
        if not self._size:
            return
        known = self.get(id)
        if known is not None and known[0] > seq:
            return  # an older message with the same id, from a time when it had been forgotten
        if known is None or known[0] != seq:
            youngest = next(reversed(self.values()))[0] if self else 0
            self._settled = self._settled and seq > youngest
            if known is not None:
                self.move_to_end(id)
        if known is not None:
            known[1].id_bytes -= len(id) + ID_BYTES
        segment.id_bytes += len(id) + ID_BYTES
        self[id] = (seq, segment)
        if len(self) > self._size:
            if self._settled:
                oldest, (_, before) = self.popitem(last=False)
                before.id_bytes -= len(oldest) + ID_BYTES
            elif len(self) > 2 * self._size:
                self.settle()

    def stand(self, id: str, seq: int, segment: Segment) -> None:
        """The id was written again and is in `segment` now; one that was forgotten meanwhile stays forgotten."""
        is_full = self._settled and len(self) >= self._size > 0
        if is_full and id not in self and seq < next(iter(self.values()))[0]:
            return
        self.remember(id, seq, segment)

    def forget(self) -> None:
        """Keep none."""
        for id, (_, segment) in self.items():
            segment.id_bytes -= len(id) + ID_BYTES
        self.clear()

    def settle(self) -> None:
        """After a replay: by age, the youngest only."""
        if not self._settled:
            by_age = sorted(self.items(), key=lambda item: item[1][0])
            self.clear()
            self.update(by_age[-self._size :])
            for id, (_, segment) in by_age[: -self._size]:
                segment.id_bytes -= len(id) + ID_BYTES
            self._settled = True

    def standing_in(self, codes: AbstractSet[int]) -> list[tuple[str, int]]:
        """(id, seq) of those whose record goes when the segments of these `codes` do."""
        return [(id, seq) for id, (seq, segment) in self.items() if segment.code in codes]


class IdWindows:
    """A `IdWindow` of `size` ids for each owner, in `by_owner`: a user, or "" = none."""

    __slots__ = ("_size", "by_owner")

    def __init__(self, size: int) -> None:
        self._size = size
        self.by_owner: dict[str, IdWindow] = {}

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and id in self.by_owner.get(owner_of(id), ())

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.by_owner.values())

    def __len__(self) -> int:
        return sum(map(len, self.by_owner.values()))

    def items(self) -> Iterator[tuple[str, tuple[int, Segment]]]:
        """By owner, oldest first."""
        return chain.from_iterable(window.items() for window in self.by_owner.values())

    def of(self, id: str) -> IdWindow:
        """The window of its owner."""
        return self.by_owner.setdefault(owner_of(id), IdWindow(self._size))

    def remember(self, id: str, seq: int, segment: Segment) -> None:
        """See `Window.remember`."""
        self.of(id).remember(id, seq, segment)

    def stand(self, id: str, seq: int, segment: Segment) -> None:
        """See `Window.stand`."""
        self.of(id).stand(id, seq, segment)

    def settle(self) -> None:
        """See `Window.settle`."""
        for window in self.by_owner.values():
            window.settle()

    def standing_in(self, codes: AbstractSet[int]) -> list[tuple[str, int]]:
        """See `Window.standing_in`."""
        return [pair for window in self.by_owner.values() for pair in window.standing_in(codes)]

    def clear(self) -> None:
        """Keep none."""
        for window in self.by_owner.values():
            window.forget()
