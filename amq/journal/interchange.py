"""The file that `amq journal export` writes and `import` reads: newline-delimited JSON. Spec: docs/journal-tools.md.

    header      {"amq": "journal export", "version": 1, "store": UUID, "epoch": N, "exported": TIME, "destinations": …}
    remembered  {"type": "remembered", "destination": NAME, "ids": [...]}     ids of messages that are no longer stored
    outcomes    {"type": "outcomes", "ids": [...]}                            commits that took place
    batch       {"type": "batch", "owner": NAME, "batch": N, …}               newest committed batch of a pipeline
    subscription {"type": "subscription", "queue": NAME, "definition": {...}} a durable one, and where its messages wait
    message     {"type": "message", "destination": NAME, "seq": N, "body": TEXT or "body_base64": BYTES, …}
    typed message  the same of a message that is more than text headers and a body of bytes or text
    prepared    {"type": "prepared", "xid": ID, "sends": N, "acks": N, …}     this many messages before it are its
    end         {"type": "end", "messages": N, "crc32": "xxxxxxxx", "problems": N}

Invariant: a file without its end line, or with other lines than were written, is never taken for whole. The CRC covers
every byte before the end line; a person who edits a file leaves it out. Only "\\n" ends a line.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from amq.core.errors import CommandError, StoreError
from amq.core.message import (
    CONTENTS,
    DEFAULT_PRIORITY,
    SUBSCRIPTION_SCHEME,
    TEXT,
    Envelope,
    Lifted,
    Message,
    Native,
    check,
    headers,
    lift,
)
from amq.core.values import Value, are_texts, from_typed_json
from amq.core.xid import AnyXid, Key, from_json, key_from_json, key_of, to_json
from amq.journal.hidden import RETAINED_SCHEME
from amq.journal.records import BatchContent, describe
from amq.journal.records.subscription import checked

KIND = "journal export"
VERSION = 1
TYPED = "typed message"  # a message with what amq 0.1 does not know; it refuses a file with such a line
IDS_PER_LINE = 1000
END_TYPE = "end"
_SHORT_BYTES_MAX = (1 << 16) - 1  # as the journal has it
_U32_MAX = (1 << 32) - 1
_U64_MAX = (1 << 64) - 1
_PART_BYTES_MAX = 1 << 20  # of a line that is only looked at; a header and an end line are shorter


@dataclass(frozen=True, slots=True)
class Header:
    """`store` is the store's uuid in hex, "" for a store that holds nothing; `destinations` None = all."""

    store: str
    epoch: int
    exported_ms: int
    destinations: tuple[str, ...] | None = None

    def encode(self) -> bytes:
        exported = f"{datetime.fromtimestamp(self.exported_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return _line(
            {
                "amq": KIND,
                "version": VERSION,
                "store": self.store,
                "epoch": self.epoch,
                "exported": exported,
                "exported_ms": self.exported_ms,
                "destinations": self.destinations,
            }
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """A message, and how often it was delivered and came back, of which this many times as a failure.

    Its `seq` is the one that it had; its `duplicate_id` the one that its destination remembered, or "". `queue` is
    that of the durable subscription for which it waits, or `retained://NAME` where it is the retained message of the
    topic to which it was sent; "" = it is in the queue that is its destination. `sent_by` and
    `held_by` are keys of prepared transactions: of the one that sent it, so that nobody may see it yet; of the one that
    acknowledged it, and gives it back where it is rolled back.
    """

    message: Message
    deliveries: int = 0
    failures: int = 0
    queue: str = ""
    sent_by: Key = ""
    held_by: Key = ""

    @property
    def is_plain(self) -> bool:
        """Are all its properties text, its content bytes or text, and has it no more than what headers say?"""
        envelope = self.message.envelope
        return (envelope is None or isinstance(envelope, Lifted)) and not self.queue.startswith(RETAINED_SCHEME)

    def encode(self) -> bytes:
        facts = describe(self.message, bodies=True) | {"duplicate_id": self.message.duplicate_id}
        facts.pop("duplicate_id_user", None)  # it is in the id
        if self.is_plain:  # as amq 0.1 reads it
            facts["text"] = facts.pop("content") == "text"
            facts["properties"] = headers(self.message) or {}
            facts.pop("envelope", None)
        else:
            facts["type"] = TYPED
        for name in ("queue", "sent_by", "held_by"):
            if value := getattr(self, name):
                facts[name] = to_json(value)
        return _line({**facts, "deliveries": self.deliveries, "failures": self.failures})


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids that are remembered, oldest first: of messages to `destination` that are gone; "" = outcomes of commits."""

    destination: str
    ids: list[str]

    def encode(self) -> bytes:
        if self.destination:
            return _line({"type": "remembered", "destination": self.destination, "ids": self.ids})
        return _line({"type": "outcomes", "ids": self.ids})


@dataclass(frozen=True, slots=True)
class Durable:
    """A durable subscription: what its messages call its queue, and what it is (`Subscribed.definition`)."""

    queue: str
    definition: dict[str, Any]

    def encode(self) -> bytes:
        return _line({"type": "subscription", "queue": self.queue, "definition": self.definition})


@dataclass(frozen=True, slots=True)
class PipelineBatch:
    """The newest committed batch of the pipeline `owner`, and what it holds, where its coordinator said so."""

    owner: str
    batch: int
    content: BatchContent | None = None

    def encode(self) -> bytes:
        content = {} if self.content is None else asdict(self.content)
        return _line({"type": "batch", "owner": self.owner, "batch": self.batch, **content})


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A transaction that is prepared and neither committed nor rolled back: as `Prepared`, but that `sends` and `acks`
    are how many messages it has sent and acknowledged. All of them were written before it."""

    xid: AnyXid
    owner: str
    batch: int
    created_ms: int
    timeout_ms: int
    sends: int
    acks: int
    user: str = ""
    span: str = ""
    stores: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return key_of(self.user, self.xid)

    def encode(self) -> bytes:
        facts = {name: value for name, value in asdict(self).items() if value or name not in ("user", "span", "stores")}
        return _line({"type": "prepared", **facts, "xid": to_json(self.xid)})


@dataclass(frozen=True, slots=True)
class End:
    messages: int
    crc32: int | None
    problems: int = 0

    def encode(self) -> bytes:
        return _line(
            {
                "type": END_TYPE,
                "messages": self.messages,
                "crc32": f"{self.crc32:08x}",
                "problems": self.problems,
            }
        )


Item = Exported | Ids | Durable | PipelineBatch | InDoubt


class ExportWriter:
    """Items → lines, through `write`. Call `end` once, last."""

    def __init__(self, header: Header, write: Callable[[bytes], object]) -> None:
        self.messages = 0
        self._crc = 0
        self._write = write
        self._put(header.encode())

    def add(self, item: Item) -> None:
        self.messages += isinstance(item, Exported)
        self._put(item.encode())

    def end(self, problems: int = 0) -> None:
        self._write(End(self.messages, self._crc, problems).encode())

    def _put(self, line: bytes) -> None:
        self._crc = zlib.crc32(line, self._crc)
        self._write(line)


class ImportReader:
    """Lines → items. `name` is the file's, for errors; every error is a StoreError that names the line."""

    def __init__(self, name: str) -> None:
        self.header: Header | None = None
        self.ended = False
        self.messages = 0
        self.lines = 0
        self._name = name
        self._crc = 0
        self._parts: dict[Key, list[int]] = {}  # transaction → how many it sent, and acknowledged; [] = it is whole

    def feed(self, line: bytes) -> Item | None:
        """The next line, with its line end. None for header and end line."""
        self.lines += 1
        if self.ended:
            raise self._damaged("there is text after the end line: two files in one, perhaps")
        if not line.endswith(b"\n"):
            raise self._cut("the file ends within a line")
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError("no JSON object")
            if self.header is None:
                self.header = self._read_header(found)
                item: Item | None = None
            elif found.get("type") == END_TYPE:
                self._end(found)
                return None
            else:
                item = _read_item(found)
                self._count(item)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        self._crc = zlib.crc32(line, self._crc)
        self.messages += isinstance(item, Exported)
        return item

    def _count(self, item: Item) -> None:
        """A transaction is whole when its line comes, or is none."""
        if isinstance(item, Exported) and (xid := item.sent_by or item.held_by):
            parts = self._parts.setdefault(xid, [0, 0])
            if not parts:
                raise ValueError(f"a message of transaction {str(xid)!r} comes after the line of that")
            parts[bool(item.held_by)] += 1
        elif isinstance(item, InDoubt):
            sends, acks = self._parts.get(item.key, [0, 0]) or [-1, -1]
            if sends < 0:
                raise ValueError(f"transaction {str(item.xid)!r} is in the file twice")
            if (sends, acks) != (item.sends, item.acks):
                raise ValueError(
                    f"transaction {str(item.xid)!r} has sent {item.sends} messages and acknowledged {item.acks}: "
                    f"{sends} and {acks} are before this line"
                )
            self._parts[item.key] = []

    def finish(self) -> None:
        """There are no more lines."""
        if not self.ended:
            raise self._cut("its end line is missing")

    def _read_header(self, found: Mapping[str, Any]) -> Header:
        if found.get("amq") != KIND:
            raise ValueError("this is not a file of `amq journal export`")
        version = _number(found, "version", _U64_MAX)
        if version > VERSION:
            raise StoreError(
                f"{self._name}: format {version} was written by a newer amq, this one reads to {VERSION}: upgrade",
                code="STORE_NEWER_FORMAT",
            )
        names = found.get("destinations")
        return Header(
            _text(found, "store"),
            _number(found, "epoch", _U64_MAX),
            _number(found, "exported_ms", _U64_MAX),
            None if names is None else tuple(map(str, names)),
        )

    def _end(self, found: Mapping[str, Any]) -> None:
        end = End(_number(found, "messages", _U64_MAX), int(found["crc32"], 16) if "crc32" in found else None)
        sent = [xid for xid, parts in self._parts.items() if parts and parts[0]]
        if sent:
            why = f"messages are sent by transaction {str(sent[0])!r}, and no line says that it is prepared"
            raise self._damaged(why)
        if end.messages != self.messages:
            raise self._cut(f"it holds {self.messages} messages, its end line says {end.messages}")
        if end.crc32 is not None and end.crc32 != self._crc:
            raise self._damaged("the file is not as it was written: its checksum is wrong")
        self.ended = True

    def _damaged(self, why: str) -> StoreError:
        return StoreError(f"{self._name}: line {self.lines}: {why}: export again", code="EXPORT_DAMAGED")

    def _cut(self, why: str) -> StoreError:
        return StoreError(
            f"{self._name}: line {self.lines}: {why}: the file is not whole; get the rest and import it again",
            code="EXPORT_CUT",
        )


def read_lines(name: str, file: BinaryIO, size: int, line_bytes_max: int) -> list[bytes]:
    """The next lines of `file`, of `size` bytes together or a little more; none at its end. Raises StoreError where a
    line has more than `line_bytes_max`."""
    found: list[bytes] = []
    while size > 0 and (line := file.readline(line_bytes_max + 1)):
        if len(line) > line_bytes_max:
            raise StoreError(
                f"{name}: a line has more than {line_bytes_max} bytes, so it holds no message that a broker with this "
                "maxFrameSize takes: raise it with -o maxFrameSize=SIZE if the file can be trusted",
                code="EXPORT_DAMAGED",
            )
        found.append(line)
        size -= len(line)
    return found


def check_whole(name: str, file: BinaryIO) -> Header:
    """Read all of a file that can be read again: is it whole? Raises StoreError; leaves the file at its start. Of a
    line no more than a part is in memory."""
    reader, last = ImportReader(name), b""
    crc = before = 0  # of all parts, and of those before the last line
    begins = True
    while part := file.readline(_PART_BYTES_MAX):
        last = part if begins else b""
        if reader.header is None:
            reader.feed(part)
        elif begins:
            before = crc
            reader.lines += 1
        crc = zlib.crc32(part, crc)
        begins = part.endswith(b"\n")
    file.seek(0)
    if reader.header is None:
        raise StoreError(f"{name}: is empty: `amq journal export` writes at least a header", code="EXPORT_CUT")
    try:
        found = json.loads(last) if last.endswith(b"\n") else {}
    except (ValueError, RecursionError):
        found = {}
    if not isinstance(found, dict) or found.get("type") != END_TYPE:
        reader.finish()
    if isinstance(found.get("crc32"), str) and found["crc32"] != f"{before:08x}":
        why = f"{name}: is not as it was written: its checksum is wrong: export again"
        raise StoreError(why, code="EXPORT_DAMAGED")
    return reader.header


def _line(facts: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(facts, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair in a property, which JSON allows as an escape: written so too
        return json.dumps(facts).encode() + b"\n"


def _read_item(found: Mapping[str, Any]) -> Item:
    kind = found.get("type")
    if kind == "outcomes":
        return Ids("", _ids(found))
    if kind == "remembered":
        return Ids(_text(found, "destination"), _ids(found))
    if kind == "subscription":
        queue, definition = checked([found.get("queue"), found.get("definition")])
        if not definition or not queue.startswith(SUBSCRIPTION_SCHEME):
            raise ValueError("a subscription without a queue or a definition")
        _check_utf_8(json.dumps([queue, definition], ensure_ascii=False))
        return Durable(queue, definition)
    if kind == "batch":
        numbers = (_number(found, name, _U64_MAX) for name in ("rows", "checksum"))
        content = BatchContent(*numbers) if "rows" in found else None
        return PipelineBatch(_text(found, "owner"), _number(found, "batch", _U64_MAX), content)
    if kind == "prepared":
        batch, created_ms, timeout_ms, sends, acks = (
            _number(found, name, _U64_MAX) for name in ("batch", "created_ms", "timeout_ms", "sends", "acks")
        )
        user = _text(found, "user") if "user" in found else ""
        xid, owner = from_json(found.get("xid")), _text(found, "owner")
        span, stores = (_text(found, "span") if "span" in found else ""), found.get("stores", [])
        if not isinstance(stores, list) or bool(stores) != bool(span) or {*map(type, stores)} - {str}:
            raise ValueError("the stores of its other parts are not a list of names")
        return InDoubt(xid, owner, batch, created_ms, timeout_ms, sends, acks, user, span, tuple(stores))
    if kind not in ("message", TYPED):
        raise ValueError(f"a line of type {kind!r} is unknown")
    if "body_base64" in found:
        body = base64.b64decode(_text(found, "body_base64"), validate=True)
    else:
        body = _text(found, "body").encode()
    properties, envelope = _properties(found), _envelope(found)
    kind_of_body = CONTENTS.index(found["content"]) if "content" in found else int(found.get("text") is True)
    if envelope is None and are_texts(properties.values()) and kind_of_body <= TEXT:
        envelope = lift(properties)  # type: ignore[arg-type]  # all of them are text
    else:
        envelope = envelope or Envelope()
    destination = _text(found, "destination")
    if not destination.encode():
        raise ValueError("a message without destination")
    message = Message(
        destination,
        body,
        properties or None,
        _short(found, "content_type"),
        _number(found, "priority", 9, DEFAULT_PRIORITY),
        True,
        _number(found, "timestamp_ms", _U64_MAX),
        _number(found, "expires_ms", _U64_MAX, 0),
        _short(found, "duplicate_id"),
        kind_of_body,
        _number(found, "seq", _U64_MAX),
        envelope,
    )
    try:
        check(message)
    except CommandError as error:
        raise ValueError(error.description) from error
    deliveries, failures = (_number(found, name, _U32_MAX, 0) for name in ("deliveries", "failures"))
    queue = _text(found, "queue", "")
    sent_by, held_by = (key_from_json(found.get(name, "")) for name in ("sent_by", "held_by"))
    if queue.startswith(RETAINED_SCHEME) and (queue != RETAINED_SCHEME + destination or held_by):
        raise ValueError(f"a retained message of {destination} stands in {queue}")
    if sent_by and (queue or held_by):
        raise ValueError("a message that a prepared transaction sent is in no queue yet")
    return Exported(message, deliveries, failures, queue, sent_by, held_by)


def _properties(found: Mapping[str, Any]) -> dict[str, Value]:
    written = found.get("properties") or {}
    if not isinstance(written, dict):
        raise ValueError("properties are not an object")
    properties = {name: from_typed_json(value) for name, value in written.items()}
    for each in (*properties, *properties.values()):
        if isinstance(each, str):
            _check_utf_8(each)
    return properties


def _envelope(found: Mapping[str, Any]) -> Envelope | None:
    facts = found.get("envelope")
    if facts is None:
        return None
    if not isinstance(facts, dict):
        raise ValueError("field 'envelope' is not an object")
    native, correlation_id = facts.get("native"), facts.get("correlation_id")
    if native is not None:
        protocol, data = native
        if not isinstance(protocol, str):
            raise ValueError("the protocol of a native form is not a text")
        _check_utf_8(protocol)
        native = Native(protocol, base64.b64decode(data, validate=True))
    if correlation_id is not None and not isinstance(correlation_id := from_typed_json(correlation_id), str | bytes):
        raise ValueError("a correlation id is neither text nor bytes")
    names = ("message_id", "reply_to", "type")
    texts = {name: _text(facts, name, "") for name in names}
    return Envelope(
        correlation_id=correlation_id, sent_ms=_number(facts, "sent_ms", _U64_MAX, 0), native=native, **texts
    )


def _text(found: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = found.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"field {name!r} is missing or no text")
    _check_utf_8(value)
    return value


def _check_utf_8(text: str) -> None:
    """Raises ValueError where `text` has halves of surrogate pairs, which no protocol and no record can carry."""
    text.encode()


def _short(found: Mapping[str, Any], name: str) -> str:
    value = _text(found, name, "")
    if len(value.encode()) > _SHORT_BYTES_MAX:
        raise ValueError(f"field {name!r} is longer than {_SHORT_BYTES_MAX} bytes")
    return value


def _number(found: Mapping[str, Any], name: str, maximum: int, default: int | None = None) -> int:
    value = found.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise ValueError(f"field {name!r} is missing or no number from 0 to {maximum}")
    return value


def _ids(found: Mapping[str, Any]) -> list[str]:
    ids = found["ids"]
    if not isinstance(ids, list) or not all(isinstance(id, str) and id for id in ids):
        raise ValueError("field 'ids' is not a list of texts")
    for id in ids:
        _check_utf_8(id)
    return ids
