"""Prepared transactions, and batches of pipelines. Spec: docs/journal-format.md, two-phase transactions."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Protocol

from amq.core.errors import NewerFormatError
from amq.core.ownership import owned
from amq.core.xid import AnyXid, Key, Xid, from_json, key_of, outcome_id, to_json
from amq.journal.format import RECORD_BYTES, frame_record
from amq.journal.records.base import BaseRecord, S

PREPARED, RESOLVED, MARKER, MARKER_WITH_CONTENT = 12, 13, 14, 16
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_RESOLVED = struct.Struct("<QB")  # seq, flags
# Flags. With the second a binary id follows, else text; with the third the user comes before it.
_COMMITTED, _BINARY, _OWNED = 1, 2, 4
_U16 = struct.Struct("<H")
_BINARY_XID = struct.Struct("<iB")  # format, bytes of the global id; that, and the branch
_MARKER_WITH_CONTENT = struct.Struct("<QQQ")  # batch, rows, checksum


class Preparing(Protocol[S]):
    """The methods of a fold that these records call."""

    def prepare(self, prepared: Prepared, segment: S) -> None:
        """Note a prepared transaction, or the new place of its record."""

    def resolve(self, resolved: Resolved, segment: S) -> None:
        """A prepared transaction has ended."""

    def mark(self, marker: Marker, segment: S) -> None:
        """That batch is committed, or its marker stands elsewhere now."""


@dataclass(frozen=True, slots=True)
class Prepared(BaseRecord):
    """Transaction `xid` is prepared: what was sent in it is in `sent://…`, what was acknowledged in `held://…`,
    until a `Resolved` says how it ended.

    seq          its age
    created_ms   wall clock
    timeout_ms   it is rolled back so long after that; 0 = never
    owner, batch the pipeline that it is a part of, "" and 0 = none
    sends, acks  {full name of the queue: seqs}
    ids          (queue, producer-given id, seq) of those of `sends` that have one
    user         the user to whom it belongs, "" = to nobody: an earlier version, or a client without a login made it
    span, stores the xid of its parts in other stores, which end as it does, and these stores; "" = it has none
    """

    kinds = (PREPARED,)
    type_name = "prepared"
    xid: AnyXid
    seq: int
    created_ms: int
    timeout_ms: int
    owner: str = ""
    batch: int = 0
    sends: dict[str, list[int]] = field(default_factory=dict)
    acks: dict[str, list[int]] = field(default_factory=dict)
    ids: list[tuple[str, str, int]] = field(default_factory=list)
    user: str = ""
    span: str = ""
    stores: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return key_of(self.user, self.xid)

    @property
    def span_key(self) -> Key:
        """The key of its parts, and of the decision of them."""
        return key_of(self.user, self.span)

    def body(self) -> bytes:
        head = self._head()
        seqs = [seq for part in (self.sends, self.acks) for each in part.values() for seq in each]
        return _U32.pack(len(head)) + head + struct.pack(f"<{len(seqs)}Q", *seqs)

    def _head(self) -> bytes:
        """All but the seqs, which are many."""
        return json.dumps(
            [
                to_json(self.xid),
                self.seq,
                self.created_ms,
                self.timeout_ms,
                self.owner,
                self.batch,
                {name: len(seqs) for name, seqs in self.sends.items()},
                {name: len(seqs) for name, seqs in self.acks.items()},
                self.ids,
                *([self.user] if self.user or self.span else ()),
                *([self.span, self.stores] if self.span else ()),
            ]
        ).encode()

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(PREPARED, self.body())

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Prepared:
        start = _U32.size + _U32.unpack_from(body)[0]
        found = json.loads(body[_U32.size : start])
        types = [int, int, int, str, int, dict, dict, list]
        stores = found.pop() if isinstance(found, list) and len(found) == len(types) + 4 else []
        span = found.pop() if stores else ""
        user = found.pop() if isinstance(found, list) and len(found) == len(types) + 2 else ""
        if not isinstance(found, list) or [type(each) for each in found[1:]] != types or not isinstance(user, str):
            raise ValueError("no prepared transaction")
        if not isinstance(span, str) or not isinstance(stores, list) or {*map(type, stores)} - {str}:
            raise ValueError("stores are not a list of names")
        xid, seq, created_ms, timeout_ms, owner, batch, sends, acks, ids = from_json(found[0]), *found[1:]
        if not all(isinstance(each, list) and [type(x) for x in each] == [str, str, int] for each in ids):
            raise ValueError("ids are not a list of [queue, id, seq]")
        if not all(type(count) is int and count >= 0 for part in (sends, acks) for count in part.values()):
            raise ValueError("counts are not numbers")
        if start + 8 * sum((*sends.values(), *acks.values())) != len(body):
            raise ValueError("not as many seqs as it says")
        seqs = iter(struct.unpack_from(f"<{(len(body) - start) // 8}Q", body, start))
        sent, held = ({name: list(islice(seqs, count)) for name, count in part.items()} for part in (sends, acks))
        given = [tuple(each) for each in ids]
        return cls(xid, seq, created_ms, timeout_ms, owner, batch, sent, held, given, user, span, stores)

    def record_bytes(self) -> int:
        seqs = sum(len(each) for part in (self.sends, self.acks) for each in part.values())
        return RECORD_BYTES + _U32.size + len(self._head()) + 8 * seqs

    def apply(self, fold: Preparing[S], segment: S, /) -> None:
        fold.prepare(self, segment)

    def facts(self) -> dict[str, Any]:
        return {
            "xid": str(self.xid),
            "seq": self.seq,
            "created_ms": self.created_ms,
            "timeout_ms": self.timeout_ms,
            "owner": self.owner,
            "batch": self.batch,
            "sends": self.sends,
            "acks": self.acks,
            "ids": self.ids,
            **({"user": self.user} if self.user else {}),
            **({"span": self.span, "stores": self.stores} if self.span else {}),
        }


class Resolved(BaseRecord):
    """The prepared transaction `xid` of `user` is over: it was committed, or rolled back. `seq` is the age of that
    word."""

    kinds = (RESOLVED,)
    type_name = "resolved"
    __slots__ = ("committed", "seq", "user", "xid")

    def __init__(self, xid: AnyXid, committed: bool, seq: int, user: str = "") -> None:
        self.xid = xid
        self.user = user
        self.committed = committed
        self.seq = seq

    @property
    def outcome_id(self) -> str:
        """The id under which it is remembered among the outcomes of commits."""
        return owned(self.user, outcome_id(self.xid, self.committed))

    @property
    def key(self) -> Key:
        return key_of(self.user, self.xid)

    def encode(self, _: dict[str, int], /) -> bytes:
        xid, user, flags = self.xid, self.user.encode(), int(self.committed)
        whose = _U16.pack(len(user)) + user if user else b""
        flags |= _OWNED if user else 0
        if isinstance(xid, str):
            return frame_record(RESOLVED, _RESOLVED.pack(self.seq, flags) + whose + xid.encode())
        head = _RESOLVED.pack(self.seq, flags | _BINARY) + whose + _BINARY_XID.pack(xid.format, len(xid.global_id))
        return frame_record(RESOLVED, head + xid.global_id + xid.branch)

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Resolved:
        seq, flags = _RESOLVED.unpack_from(body)
        if flags & ~(_COMMITTED | _BINARY | _OWNED):
            raise NewerFormatError(f"flags {flags} of the end of a transaction are unknown")
        committed, start, user = bool(flags & _COMMITTED), _RESOLVED.size, ""
        if flags & _OWNED:
            start += _U16.size + _U16.unpack_from(body, start)[0]
            user = body[_RESOLVED.size + _U16.size : start].decode()
            if start > len(body) or not user:
                raise ValueError("the user is longer than the record, or is missing")
        if not flags & _BINARY:
            return cls(body[start:].decode(), committed, seq, user)
        xid_format, size = _BINARY_XID.unpack_from(body, start)
        start += _BINARY_XID.size
        if start + size > len(body):
            raise ValueError("the id is longer than the record")
        return cls(Xid(xid_format, body[start : start + size], body[start + size :]).check(), committed, seq, user)

    def apply(self, fold: Preparing[S], segment: S, /) -> None:
        fold.resolve(self, segment)

    def facts(self) -> dict[str, Any]:
        user = {"user": self.user} if self.user else {}
        return {"xid": str(self.xid), "committed": self.committed, "seq": self.seq, **user}


@dataclass(frozen=True, slots=True)
class BatchContent:
    """The content of a batch, as its coordinator says: the number of rows, and a checksum that does not depend on their
    order. Both are unsigned numbers of 64 bits. The broker compares them and does not know how they were made."""

    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Marker(BaseRecord):
    """Batch `batch` of the pipeline `owner` is committed, and all before it. `content` None = nobody said what it
    holds."""

    kinds = (MARKER, MARKER_WITH_CONTENT)
    type_name = "marker"
    owner: str
    batch: int
    content: BatchContent | None = None

    def encode(self, _: dict[str, int], /) -> bytes:
        owner, content = self.owner.encode(), self.content
        if content is None:
            return frame_record(MARKER, _U64.pack(self.batch) + owner)
        head = _MARKER_WITH_CONTENT.pack(self.batch, content.rows, content.checksum)
        return frame_record(MARKER_WITH_CONTENT, head + owner)

    @classmethod
    def decode(cls, body: bytes, _: dict[int, str], kind: int, /) -> Marker:
        if kind == MARKER:
            return cls(body[_U64.size :].decode(), _U64.unpack_from(body)[0])
        batch, rows, checksum = _MARKER_WITH_CONTENT.unpack_from(body)
        return cls(body[_MARKER_WITH_CONTENT.size :].decode(), batch, BatchContent(rows, checksum))

    def apply(self, fold: Preparing[S], segment: S, /) -> None:
        fold.mark(self, segment)

    def facts(self) -> dict[str, Any]:
        content = {} if self.content is None else asdict(self.content)
        return {"owner": self.owner, "batch": self.batch, **content}
