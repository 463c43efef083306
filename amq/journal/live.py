"""Segment: one that is kept, and how much in it is still needed. Compaction and trimming go by these counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Segment:
    """A segment that is kept, and what in it is still needed.

    end         bytes that count, header included
    live        messages in it that have not left their queue
    live_bytes  of their records
    shared      offset of each record that several of these messages may have in common → how many
    id_bytes    what the remembered ids take that are in it
    file_bytes  of its file, 0 = as many as count
    refers      codes of older segments of whose messages it says that they left, were copied or came back: it stays as
                long as one of those does
    code        epoch and number as one number, which sorts as they do
    key         (epoch, number)
    """

    name: str
    epoch: int
    number: int
    end: int
    live: int = 0
    live_bytes: int = 0
    id_bytes: int = 0
    file_bytes: int = 0
    refers: set[int] = field(default_factory=set, compare=False)
    shared: dict[int, int] = field(default_factory=dict)
    code: int = field(init=False, compare=False)
    key: tuple[int, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.key = self.epoch, self.number
        self.code = self.epoch << 32 | self.number

    def share(self, offset: int, size: int) -> None:
        """One more message is in the record there, as others may."""
        before = self.shared.get(offset, 0)
        self.shared[offset] = before + 1
        self.live += 1
        self.live_bytes += 0 if before else size

    def leave(self, offset: int, size: int) -> None:
        """A message that stands there leaves its queue, or stands elsewhere now."""
        others = self.shared.get(offset, 1) - 1
        if others:
            self.shared[offset] = others
        else:
            self.shared.pop(offset, None)
            self.live_bytes -= size
        self.live -= 1
