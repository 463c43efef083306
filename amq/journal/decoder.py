"""Bytes of the journal → records, each of which knows its own (`amq.journal.records`). Nothing is guessed: what is not
as it was written, or of a type that this broker does not know, is refused with file and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from amq.core.errors import CorruptError, NewerFormatError
from amq.journal.format import RECORD, RECORD_BYTES, crc32
from amq.journal.records import TYPES, Record
from amq.journal.records.group import GROUP, GROUP_HEAD, Group
from amq.journal.records.message import FRAMED_MESSAGE, MESSAGE, MESSAGE_KEYS, decode_message
from amq.journal.records.multicast import MULTICAST, decode_multicast
from amq.journal.records.upkeep import DESTINATION, DESTINATION_HEAD

_NUMBER = struct.Struct("<I")
SEVERAL = -1  # stands for the number of a destination: several queues hold the message


class Decoder:
    """Bytes → records, for one segment (destination numbers are the segment's own).

    `bodies` False leaves out of messages what only their consumers need: body, properties, content type.
    """

    def __init__(self, path: str, bodies: bool = True) -> None:
        self._path = path
        self._bodies = bodies
        self.names: dict[int, str] = {}

    def decode(
        self, payload: bytes | memoryview, at: int = 0, verify: bool = True, grouped: bool = False
    ) -> Iterator[Record]:
        """The records of one batch payload, which starts at offset `at` of the file; `grouped` = of a group, in which
        no other group stands. Raises CorruptError, NewerFormatError.
        """
        position, end = 0, len(payload)
        number, names, bodies = _NUMBER.unpack_from, self.names, self._bodies
        framed_bytes = FRAMED_MESSAGE.size
        while position < end:
            if end - position < RECORD_BYTES:
                raise CorruptError(self._path, at + position, "batch ends inside a record")
            size, crc, kind = RECORD.unpack_from(payload, position)
            start = position + RECORD_BYTES
            stop = start + size
            if stop > end:
                raise CorruptError(self._path, at + position, "record is longer than its batch")
            if verify and crc32(payload[start:stop], kind) != crc:
                raise CorruptError(self._path, at + position, "record fails its checksum")
            if kind == MESSAGE and size >= framed_bytes - RECORD_BYTES:
                name = names.get(number(payload, start + 8)[0])
                if name is None:
                    raise CorruptError(self._path, at + position, "the destination was not defined before")
                try:
                    message = decode_message(payload, position, stop, name, bodies)
                except (ValueError, RecursionError) as error:
                    raise CorruptError(self._path, at + position, f"message: {error}") from error
                message.offset, message.size = at + position, stop - position
                record: Record = message
            elif kind == MULTICAST:
                record = self._multicast(payload, position, stop, at)
            elif kind == GROUP and grouped:
                raise CorruptError(self._path, at + position, "a group is inside a group")
            else:
                try:
                    if kind == GROUP:
                        record = self._group(payload[start:stop], at + start)
                    else:
                        record = self._other(kind, bytes(payload[start:stop]), at + start)
                except (struct.error, ValueError, KeyError, RecursionError) as error:
                    raise CorruptError(self._path, at + position, f"record of type {kind}: {error}") from error
            yield record
            position = stop

    def _multicast(self, payload: bytes | memoryview, position: int, stop: int, at: int) -> Record:
        try:
            record = decode_multicast(payload, position, stop, self.names, self._bodies)
        except (struct.error, ValueError, LookupError, RecursionError) as error:
            raise CorruptError(self._path, at + position, f"message of several queues: {error!r}") from error
        record.place(at + position, stop - position)
        return record

    def _group(self, body: bytes | memoryview, at: int) -> Group:
        """Its body is not copied: it may hold large messages."""
        seq, size = GROUP_HEAD.unpack_from(body)
        start = GROUP_HEAD.size + size
        if start > len(body):
            raise ValueError("the outcome id is longer than the record")
        outcome_id = str(body[GROUP_HEAD.size : start], "utf-8")
        return Group(list(self.decode(body[start:], at + start, grouped=True)), outcome_id, seq)

    def _other(self, kind: int, body: bytes, at: int) -> Record:
        try:
            if kind in TYPES:
                return TYPES[kind].decode(body, self.names, kind)
            raise NewerFormatError(f"record type {kind} is unknown here")
        except NewerFormatError as error:
            why = f"{self._path}: offset {at}: {error.description}: upgrade this broker"
            raise NewerFormatError(why) from error


def raw_messages(payload: memoryview, names: dict[int, str]) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(start, stop, number of the destination, seq, start and stop of the producer-given id) of each message in the
    payload of a batch whose CRC is known to be right, also of those in groups. Of one that several queues hold the
    number is SEVERAL, and only start and stop count. Adds to `names` the destinations that the payload defines. Raises
    struct.error, ValueError.
    """
    position, end, framed = 0, len(payload), FRAMED_MESSAGE.size
    keys, last = MESSAGE_KEYS.unpack_from, len(payload) - MESSAGE_KEYS.size
    while position < end:
        if position <= last:
            size, kind, seq, destination, type_bytes, id_bytes = keys(payload, position)
        else:
            size, _, kind = RECORD.unpack_from(payload, position)
        stop = position + RECORD_BYTES + size
        if stop > end:
            raise ValueError("record is longer than its batch")
        if kind == MESSAGE:
            if stop - position < framed:
                raise ValueError("record of a message is too short")
            id_start = position + framed + type_bytes
            yield position, stop, destination, seq, id_start, id_start + id_bytes
        elif kind == MULTICAST:
            yield position, stop, SEVERAL, 0, 0, 0
        elif kind == GROUP:  # its records are framed as all others are, and end where it does
            position += RECORD_BYTES
            position += GROUP_HEAD.size + GROUP_HEAD.unpack_from(payload, position)[1]
            continue
        elif kind == DESTINATION:
            start = position + RECORD_BYTES
            number, _ = DESTINATION_HEAD.unpack_from(payload, start)
            names[number] = str(payload[start + DESTINATION_HEAD.size : stop], "utf-8")
        position = stop


def raw_records(payload: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """(type, body) of each record of a batch whose CRC is known to be right; bodies of messages are left out ("")."""
    position = 0
    while position < len(payload):
        size, _, kind = RECORD.unpack_from(payload, position)
        position += RECORD_BYTES
        yield kind, b"" if kind == MESSAGE else bytes(payload[position : position + size])
        position += size
