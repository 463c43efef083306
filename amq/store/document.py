"""The one format of what the lock component stores: a JSON object with kind, format version and checksum.

    {"amq": KIND, "body": {...}, "crc32": "xxxxxxxx", "format": 1}

People can read it with `cat`; spaces may follow, so that a record that is written in place always covers the one
before it. Invariant: `decode` gives a body whose checksum is right, or raises CorruptError or NewerFormatError;
unwritten space (nothing, or zeros) is never a document.

An epoch has format 2 since segments may have version 2. A broker of 0.1 reads the newest epoch before it claims the
store, so it stops there and has written nothing (docs/master-slave.md, "Brokers of two versions in one group"). The
other kinds keep format 1: brokers of both versions read them from each other.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from amq.core.errors import CorruptError, NewerFormatError

FORMATS = {"epoch": 2}  # the newest of each kind, which is written; 1 where none is named


def encode(kind: str, body: Mapping[str, Any], size: int = 0) -> bytes:
    """`body` as a document of `kind`, padded with spaces to at least `size` bytes."""
    version = newest_format(kind)
    document = {"amq": kind, "format": version, "crc32": _checksum(kind, version, body), "body": body}
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return (text + b"\n").ljust(size)


def decode(kind: str, data: bytes, path: str, offset: int = 0) -> dict[str, Any]:
    """The body of the document `data`, which was read from `path` at `offset`. Raises CorruptError,
    NewerFormatError."""
    return decode_any(kind, data, path, offset)[1]


def decode_any(kind: str, data: bytes, path: str, offset: int = 0) -> tuple[int, dict[str, Any]]:
    """The same, with its format before it."""
    newest = newest_format(kind)
    try:
        document = json.loads(data)
        version = document["format"]
        if isinstance(version, int) and version > newest:
            raise NewerFormatError(
                f"{path}: format {version} was written by a newer amq, this one knows {newest}: upgrade this broker"
            )
        body: dict[str, Any] = document["body"]
        good = (
            isinstance(version, int)
            and version >= 1
            and document["amq"] == kind
            and isinstance(body, dict)
            and document["crc32"] == _checksum(kind, version, body)
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptError(path, offset, f"not a {kind} document: {error}") from error
    if not good:
        raise CorruptError(path, offset, f"{kind} document is damaged: its checksum, kind or format is wrong")
    return version, body


def newest_format(kind: str) -> int:
    """The format in which documents of `kind` are written, and the newest that is read."""
    return FORMATS.get(kind, 1)


def field(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], path: str) -> Any:
    """`body[name]`, which must be of `kind` (bool is not an int). Raises CorruptError."""
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CorruptError(path, 0, f"field {name!r} is missing or of the wrong type")
    return value


def _checksum(kind: str, version: int, body: Any) -> str:
    text = json.dumps([kind, version, body], sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
