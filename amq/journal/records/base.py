"""BaseRecord: all that the broker and its tools ask of a record, but of a message. Each record type has a class, which
holds its bytes, its effect, how it is printed, and a few facts.

Effect: a record applies itself to a *fold*: to the state of a broker (`State`), whose segments are `Segment`s, or to
the live part of a journal (`Liveness`), whose segments are names. Each family of records says in a Protocol what it
asks of a fold; `amq.journal.records.Fold` is all of them. So what a record does and what it keeps alive are one thing.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self, TypeVar

from amq.journal.format import Chunk

S = TypeVar("S", contravariant=True)  # a segment, as the fold knows it
Ids = list[tuple[str, int]]  # (id, seq of what brought it: its age)


class BaseRecord(ABC):
    """A record. `kinds` are its numbers in the bytes, `type_name` is what people read."""

    kinds: ClassVar[tuple[int, ...]]
    type_name: ClassVar[str]
    __slots__ = ()

    # -- bytes --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, ids: dict[str, int], /) -> Chunk:
        """The framed record. `ids`: the number of each destination by name."""

    @classmethod
    def decode(cls, body: bytes, names: dict[int, str], kind: int, /) -> Self:
        """The record of that `kind` and body; `names` are the destinations that its segment has defined. Raises
        ValueError, LookupError, struct.error, RecursionError, NewerFormatError. Records that hold messages are read by
        the decoder itself."""
        raise NotImplementedError(f"{cls.type_name} {kind}: {len(body)} bytes, {len(names)} names")

    def record_bytes(self) -> int:
        """How many bytes it takes in the journal. Of messages it is known before they have seqs. Raises struct.error,
        as `encode` would."""
        return len(self.encode({}))

    def place(self, offset: int, size: int) -> None:  # noqa: B027
        """Note that the record is at `offset` of its segment, `size` bytes."""

    # -- effect -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def apply(self, fold: Any, segment: Any, /) -> None:
        """Let it take effect. `segment` is where it stands."""

    def message_count(self) -> int:
        """Of how many messages it speaks, if it is not a group."""
        return 1

    def is_larger(self, count: int) -> bool:
        """Does it speak of more messages than `count`?"""
        return self.message_count() > count

    def pieces(self, count: int) -> Iterator[BaseRecord]:  # noqa: ARG002
        """Records that have the same effect together, one after the other, each about `count` messages or fewer. A
        record that only has an effect as a whole is one piece."""
        yield self

    # -- facts --------------------------------------------------------------------------------------------------------

    def destinations(self) -> Iterable[str]:
        """Names of the destinations whose numbers are in its bytes."""
        return ()

    def leaving(self) -> Iterable[int]:
        """Seqs of the messages that leave the queue in which they stand."""
        return ()

    def takes_space(self) -> bool:
        """Does it store messages, for which there is no room where a full disk keeps some for acknowledgements?"""
        return False

    def describe(self, bodies: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """As JSON, for people and tools. Bodies of messages only where asked for."""
        return {"type": self.type_name, **self.facts()}

    def facts(self) -> dict[str, Any]:
        """All of it but its type."""
        return {}


def decode_ids(text: bytes) -> Ids:
    """Raises ValueError, RecursionError."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(map(_is_id, found)):
        raise ValueError("ids are not a JSON list of [id, seq]")
    return [(each[0], each[1]) for each in found]


def _is_id(found: object) -> bool:
    return isinstance(found, list) and [type(each) for each in found] == [str, int]
