"""Record: a message, or any other record; and what is asked of either.

`Message` is not a record class: most records are messages, and a broker stores and sends them. These functions ask a
message what other records are asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amq.core.message import Message
from amq.journal.format import Chunk
from amq.journal.records.base import BaseRecord
from amq.journal.records.message import describe_message, encode_message, message_bytes

Record = Message | BaseRecord


def encode_record(record: Record, ids: dict[str, int]) -> Chunk:
    """Any record's bytes. `ids`: the number of each destination by name."""
    if isinstance(record, Message):
        return encode_message(record, ids[record.destination])
    return record.encode(ids)


def record_bytes(record: Record) -> int:
    """How many bytes it takes in the journal. Of messages it is known before they have seqs. Raises struct.error, as
    its encoding would."""
    return message_bytes(record) if isinstance(record, Message) else record.record_bytes()


def place(record: Record, offset: int, size: int) -> None:
    """Note that `record` is at `offset` of its segment, `size` bytes."""
    if isinstance(record, Message):
        record.offset, record.size = offset, size
    else:
        record.place(offset, size)


def messages_in(record: Record) -> int:
    """Of how many messages it speaks, if it is not a group."""
    return 1 if isinstance(record, Message) else record.message_count()


def is_larger(record: Record, count: int) -> bool:
    """Does it speak of more messages than `count`?"""
    return not isinstance(record, Message) and record.is_larger(count)


def takes_space(record: Record) -> bool:
    """Does storing this need room that a full disk should keep for acknowledgements?"""
    return isinstance(record, Message) or record.takes_space()


def destinations_of(records: Iterable[Record]) -> dict[str, None]:
    """Names of the destinations that `records` name, in the order of their first mention."""
    names: dict[str, None] = {}
    for record in records:
        if isinstance(record, Message):
            names[record.destination] = None
        else:
            names |= dict.fromkeys(record.destinations())
    return names


def kind_name(record: Record) -> str:
    """`message`, `consumed`, …: one of `records.KINDS`."""
    return "message" if isinstance(record, Message) else record.type_name


def describe(record: Record, bodies: bool = False) -> dict[str, Any]:
    """A record as JSON. Bodies of messages only where asked for: as text, or `body_base64` where they are not UTF-8."""
    return describe_message(record, bodies) if isinstance(record, Message) else record.describe(bodies)
