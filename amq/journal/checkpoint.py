"""Checkpoint files: what a state was at one position of the journal, so that a start need not read what is before it.

    STORE/checkpoints/<epoch>-<segment>-<offset>.ckpt = block*      block = bytes 4 | CRC 4 | kind 1 | payload

Little-endian. The CRC of a block covers kind and payload and starts from the CRC of the block before it, so none can be
missing, doubled or exchanged; the last one is `END`. A file gets its name when all of it is durable. Checkpoints only
save time: one that is damaged or missing is passed over, and nothing that counts is in them alone.

`amq.broker.state.snapshot` defines the content of a state. Spec: docs/journal-format.md.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Generator

from amq.core.errors import CorruptError, NewerFormatError
from amq.journal.follower import Position
from amq.journal.format import HEADER_BYTES, crc32
from amq.journal.records import Trimmed
from amq.store.segment_log import Checkpoints

CHECKPOINTS_KEPT = 2
FORMAT = 2  # as that of segments: 0.1 wrote 1, and passes over what is newer
(
    HEAD,
    QUEUE,
    ROWS,
    COUNTS,
    DUPLICATES,
    OUTCOMES,
    END,
    SHARED,
    PREPARED,
    MARKERS,
    SUBSCRIPTIONS,
    PLACEMENT,
    PARCELS,
) = range(1, 14)
_BLOCK = struct.Struct("<IIB")
_READ_BYTES = 1 << 20
_BLOCK_BYTES_MAX = 256 << 20
_NAME = re.compile(r"([0-9]{8})-([0-9]{8})-([0-9]{10})\.ckpt")
_TEMPORARY = ".tmp"


def checkpoint_name(position: Position) -> str:
    """Sorts as positions do."""
    return f"{position.epoch:08d}-{position.number:08d}-{position.offset:010d}.ckpt"


def parse_checkpoint_name(name: str) -> tuple[int, int, int] | None:
    """(epoch, segment, offset), or None where `name` is not a checkpoint's."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def list_checkpoints(checkpoints: Checkpoints) -> list[str]:
    """Their names, newest first."""
    try:
        names = checkpoints.names()
    except FileNotFoundError:
        return []
    return sorted(filter(parse_checkpoint_name, names), reverse=True)


class CheckpointFile:
    """A checkpoint that is being written. Every method but `frame` calls the disk. Raises OSError."""

    def __init__(self, checkpoints: Checkpoints, position: Position) -> None:
        self._checkpoints = checkpoints
        self._position = position
        self._temporary = f"{position.epoch:08d}{_TEMPORARY}"
        self._draft = checkpoints.draft(self._temporary)
        self._crc = 0
        self.size = 0

    def frame(self, kind: int, payload: bytes) -> bytes:
        """The next block."""
        self._crc = crc32(payload, crc32(bytes((kind,)), self._crc))
        return _BLOCK.pack(len(payload), self._crc, kind) + payload

    def write(self, data: bytes) -> None:
        """Blocks that follow those before."""
        self._draft.write(data)
        self.size += len(data)

    def finish(self) -> None:
        """Give it its name; delete all but the newest few."""
        self._draft.publish(checkpoint_name(self._position))
        names = self._checkpoints.names()
        kept = sorted(filter(parse_checkpoint_name, names))[-CHECKPOINTS_KEPT:]
        own = (self._position.epoch, self._position.number, self._position.offset)

        def is_old(name: str) -> bool:
            key = parse_checkpoint_name(name)
            if key is None:
                return name.endswith(_TEMPORARY) and name < self._temporary
            return name not in kept and key < own

        self._checkpoints.delete(filter(is_old, names))

    def discard(self) -> None:
        """It could not be written: give back what it took of the disk."""
        self._draft.discard()

    def close(self) -> None:
        self._draft.close()


def read_checkpoint(checkpoints: Checkpoints, name: str) -> Generator[tuple[int, bytes], None, None]:
    """(kind, payload) of each block, from `HEAD` to `END`. Raises CorruptError, NewerFormatError, OSError."""
    with checkpoints.open(name) as file:
        path, file_bytes = file.place, file.size()
        data, start, position, crc, kind = b"", 0, 0, 0, 0  # `data` is at `start` of the file
        while kind != END:
            need = _BLOCK.size
            for _ in range(2):
                if start + position + need > file_bytes:
                    raise CorruptError(path, start + position, "checkpoint ends before its last block")
                if position + need > len(data):
                    start, data, position = start + position, data[position:], 0
                    left = file_bytes - start - len(data)
                    data += file.read(start + len(data), min(max(need, _READ_BYTES), left))
                if position + need > len(data):
                    raise CorruptError(path, start + position, "checkpoint ends before its last block")
                size, says, kind = _BLOCK.unpack_from(data, position)
                need = _BLOCK.size + size
                if size > _BLOCK_BYTES_MAX:
                    raise CorruptError(path, start + position, f"block says that it has {size} bytes")
            payload = data[position + _BLOCK.size : position + need]
            crc = crc32(payload, crc32(bytes((kind,)), crc))
            if crc != says:
                raise CorruptError(path, start + position, "block fails its checksum")
            position += need
            yield kind, payload


def encode_head(position: Position, trimmed: Trimmed, store_uuid: bytes) -> bytes:
    """Payload of the first block."""
    body = {
        "format": FORMAT,
        "byteorder": sys.byteorder,
        "store_uuid": store_uuid.hex(),
        "trimmed": trimmed.through,
        "kept": [[*key, end] for key, end in trimmed.kept.items()],
        "epoch": position.epoch,
        "number": position.number,
        "offset": position.offset,
        "batch_offset": position.batch_offset,
        "batch": position.batch,
        "salt": position.salt,
        "destinations": list(position.destinations.items()),
    }
    return json.dumps(body).encode()


def decode_head(path: str, payload: bytes) -> tuple[Position, Trimmed, bytes]:
    """(position, trimmed, store uuid). Raises CorruptError, NewerFormatError."""
    try:
        body = json.loads(payload)
        if body["format"] > FORMAT:
            raise NewerFormatError(f"{path} has checkpoint format {body['format']}, this amq reads to {FORMAT}")
        if body["byteorder"] != sys.byteorder:
            raise CorruptError(path, 0, "checkpoint was written on a machine with another byte order")
        destinations = {int(number): str(name) for number, name in body["destinations"]}
        position = Position(
            int(body["epoch"]),
            int(body["number"]),
            int(body["offset"]),
            int(body["batch_offset"]),
            int(body["batch"]),
            int(body["salt"]),
            destinations,
        )
        if not HEADER_BYTES <= position.batch_offset < position.offset or position.batch <= 0:
            raise ValueError("no place between two batches")
        epoch, number = body["trimmed"]
        kept = {(int(epoch), int(number)): int(end) for epoch, number, end in body["kept"]}
        return position, Trimmed(int(epoch), int(number), kept), bytes.fromhex(body["store_uuid"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptError(path, 0, f"head of the checkpoint: {error!r}") from error
