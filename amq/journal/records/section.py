"""Properties, content kind and envelope of a message in its record: JSON, as ever, where that says all there is, and an
encoded map of typed values where it does not. Spec: docs/journal-format.md, "Extended messages".
"""

from __future__ import annotations

import base64
import json
import struct
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring_ascii
from typing import Any, Final, TypeAlias

from amq.core.message import (
    CONTENTS,
    CORRELATION_ID,
    REPLY_TO,
    TEXT,
    TYPE,
    Envelope,
    HeaderColumns,
    Lifted,
    Message,
    Native,
    headers,
    lift,
)
from amq.core.values import Nested, Properties, are_texts, are_values, decode_map, encode, to_typed_json

EXTENDED: Final = 0x80  # flag beside TEXT: the section is an encoded map of values
_NOTHING: Final = Envelope()[:5]
_COUNT: Final = struct.Struct("<I")
Section: TypeAlias = "tuple[Properties | None, int, Envelope | None]"  # properties, content and envelope


def encode_section(message: Message) -> tuple[int, bytes]:
    """Flags of a message, and the section of its properties: the JSON object of headers where that says all there is.
    Raises ValueError for what `amq.core.message.check` rejects."""
    envelope, properties, content = message.envelope, message.properties or {}, message.content
    if envelope is None:
        return content, json.dumps(properties).encode() if properties else b""
    if envelope.__class__ is Lifted:
        return content, json.dumps(headers(message)).encode()
    if not properties and envelope[:5] == _NOTHING and (native := envelope.native) is not None:
        # As below, without the calls for each value: so most messages of OpenWire are.
        begin, data = native_begin(native.protocol, content), native.data
        return EXTENDED | (content == TEXT), b"%b%b%b" % (begin, _COUNT.pack(len(data)), data)
    id, correlation_id, reply_to, kind, sent_ms, native = envelope
    if content <= TEXT and not id and not sent_ms and native is None and are_texts(properties.values()):
        found = dict(headers(message))
        section = json.dumps(found).encode()
        if lift(found) == envelope and found == properties:  # a reader finds the same again
            return content, section
    facts: dict[str, Nested] = {}
    if properties:
        facts["p"] = dict(properties)
    if content > TEXT:
        facts["k"] = content
    if correlation_id is not None:
        facts["c"] = correlation_id
    facts |= {key: fact for key, fact in (("i", id), ("r", reply_to), ("t", kind), ("s", sent_ms)) if fact}
    if native is not None:
        facts["n"] = [native.protocol, native.data]
    return EXTENDED | (content == TEXT), encode(facts)


def encode_sections(headers: HeaderColumns, count: int) -> list[bytes]:
    """The sections of `count` messages that have these headers, each as `encode_section` makes it. Without a dictionary
    for each. Measured: 0.5 µs a message with four headers, against 4."""
    lists, which, values = headers
    joined = "".join(values)
    if joined.isascii() and joined.isprintable() and '"' not in joined and "\\" not in joined:
        quoted, spelled = '"%s"', values
    else:
        quoted, spelled = "%s", list(map(encode_basestring_ascii, values))
    templates = [_template(names, quoted) for names in lists]
    if not which:
        width = len(lists[0])
        if not width:
            return [b""] * count
        rows = zip(*[iter(spelled)] * width, strict=True)
        return [(templates[0] % row).encode() for row in rows]
    widths, rest = [len(names) for names in lists], iter(spelled)
    return [(templates[i] % tuple(islice(rest, widths[i]))).encode() for i in which]


@lru_cache(maxsize=64)
def native_begin(protocol: str, content: int) -> bytes:
    """The section of a message of that content that has nothing but a native form, as `encode_section` makes it, up to
    the size of the data, which has four bytes."""
    facts: dict[str, Nested] = {"k": content} if content > TEXT else {}
    return encode({**facts, "n": [protocol, b""]})[: -_COUNT.size]


def _template(names: tuple[str, ...], quoted: str) -> str:
    if not names:
        return ""
    pairs = (f"{encode_basestring_ascii(name).replace('%', '%%')}: {quoted}" for name in names)
    return f"{{{', '.join(pairs)}}}"


def decode_section(section: bytes | memoryview, flags: int) -> Section:
    """Properties, content and envelope. Raises ValueError, RecursionError."""
    if not flags & EXTENDED:
        found = json.loads(str(section, "utf-8"))
        if not isinstance(found, dict):
            raise ValueError("properties are not a JSON object")
        lifts = CORRELATION_ID in found or TYPE in found or REPLY_TO in found
        return found, flags & TEXT, lift(found) if lifts else None
    facts = decode_map(bytes(section))
    properties, content = facts.pop("p", None), facts.pop("k", flags & TEXT)
    id, correlation_id = facts.pop("i", ""), facts.pop("c", None)
    reply_to, kind, sent_ms = facts.pop("r", ""), facts.pop("t", ""), facts.pop("s", 0)
    native = facts.pop("n", None)
    if not (properties is None or (isinstance(properties, dict) and are_values(properties.values()))):
        raise ValueError("properties are none")
    if content.__class__ is not int or content not in range(len(CONTENTS)):
        raise ValueError(f"content {content!r:.20} is unknown")
    texts = [each.__class__ is str for each in (id, reply_to, kind)]
    if not all(texts) or not isinstance(correlation_id, str | bytes | None) or sent_ms.__class__ is not int:
        raise ValueError("headers are none")
    if facts or not (native is None or _is_native(native)):
        raise ValueError("native form or further facts are none")
    envelope = Envelope(
        id,  # type: ignore[arg-type]
        correlation_id,
        reply_to,  # type: ignore[arg-type]
        kind,  # type: ignore[arg-type]
        sent_ms,
        Native(*native) if native else None,  # type: ignore[misc]
    )
    return properties, content, envelope  # type: ignore[return-value]


def _is_native(found: Nested) -> bool:
    return isinstance(found, list) and [each.__class__ for each in found] == [str, bytes]


def describe_section(message: Message) -> dict[str, Any]:
    """The same as JSON. A native form is its protocol and its data in base64."""
    properties, envelope = message.properties or {}, message.envelope
    facts: dict[str, Any] = {
        "content": CONTENTS[message.content],
        "properties": {name: to_typed_json(value) for name, value in properties.items()},
    }
    if envelope is None:
        return facts
    found = facts["envelope"] = {
        name: value for name, value in envelope._asdict().items() if value and name != "native"
    }
    if envelope.correlation_id is not None:
        found["correlation_id"] = to_typed_json(envelope.correlation_id)
    if envelope.native is not None:
        found["native"] = [envelope.native.protocol, base64.b64encode(envelope.native.data).decode("ascii")]
    return facts
