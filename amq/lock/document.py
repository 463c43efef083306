"""The one format of what the lock component stores: a JSON object with kind, format version and checksum.

    {"amq": KIND, "body": {...}, "crc32": "xxxxxxxx", "format": 1}

People can read it with `cat`; spaces may follow, so that a record that is written in place always covers the one
before it. Invariant: `decode` gives a body whose checksum is right, or raises CorruptError or NewerFormatError;
unwritten space (nothing, or zeros) is never a document.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from amq.errors import CorruptError, NewerFormatError
from amq.vfs import Vfs

FORMAT = 1
DOCUMENT_BYTES_MAX = 16 << 20


def encode(kind: str, body: Mapping[str, Any], size: int = 0) -> bytes:
    """`body` as a document of `kind`, padded with spaces to at least `size` bytes."""
    document = {"amq": kind, "format": FORMAT, "crc32": _checksum(kind, body), "body": body}
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return (text + b"\n").ljust(size)


def decode(kind: str, data: bytes, path: str, offset: int = 0) -> dict[str, Any]:
    """The body of the document `data`, which was read from `path` at `offset`. Raises CorruptError,
    NewerFormatError."""
    try:
        document = json.loads(data)
        version = document["format"]
        if isinstance(version, int) and version > FORMAT:
            raise NewerFormatError(
                f"{path}: format {version} was written by a newer amq, this one knows {FORMAT}: upgrade this broker"
            )
        body: dict[str, Any] = document["body"]
        good = (
            version == FORMAT
            and document["amq"] == kind
            and isinstance(body, dict)
            and document["crc32"] == _checksum(kind, body)
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptError(path, offset, f"not a {kind} document: {error}") from error
    if not good:
        raise CorruptError(path, offset, f"{kind} document is damaged: its checksum, kind or format is wrong")
    return body


def field(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], path: str) -> Any:
    """`body[name]`, which must be of `kind` (bool is no int). Raises CorruptError."""
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CorruptError(path, 0, f"field {name!r} is missing or of the wrong type")
    return value


def read_file(vfs: Vfs, path: str) -> bytes:
    """The content of the small file `path`, opened afresh (close-to-open). Raises CorruptError where it is absurdly
    large."""
    fd = vfs.open(path, os.O_RDONLY)
    try:
        size = vfs.fstat(fd).st_size
        if size > DOCUMENT_BYTES_MAX:
            raise CorruptError(path, DOCUMENT_BYTES_MAX, f"file is {size} bytes long, far more than amq writes here")
        return read_all(vfs, fd, size, 0)
    finally:
        vfs.close(fd)


def read_all(vfs: Vfs, fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes from `offset`, less only at the end of the file."""
    data = b""
    while len(data) < size:
        part = vfs.pread(fd, size - len(data), offset + len(data))
        if not part:
            break
        data += part
    return data


def _checksum(kind: str, body: Any) -> str:
    text = json.dumps([kind, FORMAT, body], sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
