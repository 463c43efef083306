"""MessageRun: deliveries that differ in number, time and body alone, as columns.

Invariant: as a sequence it is the messages themselves, which are made when somebody asks for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from amq.core.message import Message, stood


class MessageRun(Sequence[Message]):
    """`like` = one of them without its body."""

    __slots__ = ("_has_nul", "_messages", "bodies", "like", "seqs", "times")

    def __init__(
        self,
        like: Message,
        seqs: Sequence[int],
        times: Sequence[int],
        bodies: Sequence[bytes],
        has_nul: bool | None = None,
    ) -> None:
        self.like = like
        self.seqs = seqs
        self.times = times
        self.bodies = bodies
        self._has_nul = has_nul
        self._messages: list[Message] | None = None

    def numbered(self, bits: int, index: int) -> MessageRun:
        """A copy whose numbers have `index` in that many bits behind each."""
        seqs = [seq << bits | index for seq in self.seqs]
        return MessageRun(self.like, seqs, self.times, self.bodies, self._has_nul)

    @property
    def has_nul(self) -> bool:
        """Is a byte 0 in some body?"""
        found = self._has_nul
        if found is None:
            found = self._has_nul = any(b"\0" in body for body in self.bodies)
        return found

    @property
    def messages(self) -> list[Message]:
        found = self._messages
        if found is None:
            facts = self.seqs, self.times, repeat(0), repeat(0)
            found = self._messages = stood(self.like, self.bodies, facts)
        return found

    def __len__(self) -> int:
        return len(self.bodies)

    def __getitem__(self, at: Any) -> Any:
        return self.messages[at]
