"""Viewer: the part that a queue knows of a consumer which looks and takes nothing."""

from __future__ import annotations

from typing import Protocol

from amq.core.message import Message


class Viewer(Protocol):
    """A consumer that looks and takes nothing: see `amq.broker.queues.browser`."""

    @property
    def held_bytes(self) -> int: ...
    def step(self, now_ms: int) -> None: ...
    def paged_in(self, messages: list[Message]) -> None: ...
    def moved_in(self, seqs: list[int]) -> None: ...
