"""The header `transformation`: maps of JMS as XML or JSON, spelled as ActiveMQ's STOMP clients do (that is XStream's
spelling). A body that cannot be read or written so goes as it is, and `transformation-error` says why.

    <map><entry><string>name</string><int>7</int></entry></map>
    {"map": {"entry": [{"string": "name", "int": 7}, {"string": ["town", "Zug"]}]}}

A SEND may also have a plain JSON object. Objects of Java are not read: that would run a stranger's code.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from amq.core.errors import ProtocolError
from amq.core.message import (
    BYTES,
    LOOP_BYTES_MAX,
    MAP,
    TEXT,
    THREAD_BYTES_MAX,
    Content,
    Envelope,
    Message,
    neutral,
    plain,
    with_content,
)
from amq.core.values import DEPTH_MAX, Float32, Int8, Int16, Int32, Nested, decode_map, encode, text

TRANSFORMATION: Final = "transformation"
ERROR: Final = "transformation-error"
# Of what is read or written so, on the broker's one loop. Measured: to read 64 KiB of XML takes 11 ms, or 38 ms if they
# are nothing but tags; to write them takes 6 ms. JSON takes half of that.
BODY_BYTES_MAX: Final = 64 << 10
_BYTE, _XML, _JSON = "jms-byte", ("jms-xml", "jms-map-xml"), ("jms-json", "jms-map-json")
_NAMES: Final = (
    _BYTE,
    *_XML,
    *_JSON,
    "jms-object-xml",
    "jms-object-json",
    "jms-advisory-xml",
    "jms-advisory-json",
)
_MAPS: Final = {"jms-xml": "jms-map-xml", "jms-json": "jms-map-json"}  # names of both maps and objects

# Tag → the value of its text. `to` in the other direction goes by the first of the same class.
_READ: Final[dict[str, Callable[[str], Nested]]] = {
    "string": str,
    "int": lambda text: Int32(int(text)),
    "long": int,
    "boolean": lambda text: _boolean(text),
    "double": float,
    "float": lambda text: Float32(float(text)),
    "short": lambda text: Int16(int(text)),
    "byte": lambda text: Int8(int(text)),
    "char": str,
    "null": lambda text: None,  # noqa: ARG005
    "byte-array": lambda text: base64.b64decode(text, validate=True),
}
_TAGS: Final[dict[type, str]] = {
    bool: "boolean",
    Int8: "byte",
    Int16: "short",
    Int32: "int",
    int: "long",
    Float32: "float",
    float: "double",
    bytes: "byte-array",
    list: "list",
    dict: "map",
    type(None): "null",
}
_LISTS: Final = frozenset({"list", "linked-list", "vector"})
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def asked(headers: Mapping[str, str]) -> str:
    """The transformation that a SUBSCRIBE asks for, "" = none. Raises ProtocolError."""
    name = headers.get(TRANSFORMATION, "").lower()
    if name and name not in _NAMES:
        raise ProtocolError(f"transformation {name[:40]!r} is none of {', '.join(_NAMES)}", code="HEADER_INVALID")
    return name


# -- SEND --------------------------------------------------------------------------------------------------------------


def sent(message: Message, name: str) -> Message:
    """A message whose SEND had the header `transformation: name`. Never fails."""
    name = name.lower()
    properties = dict(message.properties or {})
    try:
        if name == _BYTE:
            content, body = BYTES, message.body
        elif len(message.body) > BODY_BYTES_MAX:
            raise ValueError(f"the body has more than {BODY_BYTES_MAX} bytes")
        elif name in _XML:
            content, body = MAP, encode(_from_xml(message.body))
        elif name in _JSON:
            content, body = MAP, encode(_from_json(message.body))
        else:
            raise ValueError(f"{name[:40]!r} cannot be read: use {', '.join((*_XML, *_JSON, _BYTE))}")
    except (ValueError, RecursionError) as error:
        properties[ERROR] = str(error)[:200]
        return _told(message, properties)
    if content == MAP:  # so STOMP consumers that ask for nothing get it as it was sent
        properties[TRANSFORMATION] = _MAPS.get(name, name)
    else:
        del properties[TRANSFORMATION]
    # A lifted envelope is of BYTES and TEXT alone.
    envelope = message.envelope if content != MAP else Envelope(*(message.envelope or ()))
    content_type = "" if content == MAP else message.content_type
    return with_content(message, Content(content, body, content_type), properties or None, envelope)


def _told(message: Message, properties: dict[str, Any]) -> Message:
    """The same body with these properties."""
    content = Content(message.content, message.body, message.content_type)
    return with_content(message, content, properties, message.envelope)


def _from_xml(data: bytes) -> dict[str, Nested]:
    # Loaded by the first who sends XML; it knows neither document types nor entities.
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        root = fromstring(data.decode())
    except ParseError as error:
        raise ValueError(f"no XML: {error}") from error
    if root.tag != "map":
        raise ValueError(f"the XML has <{root.tag[:40]}> where <map> is wanted")
    return _map([[(part.tag, part) for part in entry] for entry in root], _xml_value, 1)


def _xml_value(tag: str, part: Any, depth: int) -> Nested:
    _check(depth)
    if tag == "map":
        return _map([[(each.tag, each) for each in entry] for entry in part], _xml_value, depth + 1)
    if tag in _LISTS:
        return [_xml_value(each.tag, each, depth + 1) for each in part]
    return _scalar(tag, part.text or "")


def _from_json(data: bytes) -> dict[str, Nested]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("the JSON is not an object")
    inner = found.get("map")
    if len(found) > 1 or not isinstance(inner, dict) or not inner.keys() <= {"entry"}:
        return {name: _small(value) for name, value in found.items()}  # a plain object
    return _map(map(_parts, _several(inner.get("entry", []))), _json_value, 1)


def _small(value: Any) -> Nested:
    """A number that a program may read as `int` and as `long`, as far as it is one."""
    is_small = value.__class__ is int and -(1 << 31) <= value < 1 << 31
    return Int32(value) if is_small else value


def _parts(entry: Any) -> list[tuple[str, Any]]:
    """Key and value of an entry: two of the same tag are in a list."""
    if not isinstance(entry, dict):
        raise ValueError("an entry of the map is not an object")
    if len(entry) == 1:
        ((tag, both),) = entry.items()
        return [(tag, part) for part in _several(both)]
    return list(entry.items())


def _json_value(tag: str, part: Any, depth: int) -> Nested:
    _check(depth)
    if tag == "map":
        entries = part.get("entry", []) if isinstance(part, dict) else []
        return _map(map(_parts, _several(entries)), _json_value, depth + 1)
    if tag in _LISTS:
        tags = part.items() if isinstance(part, dict) else ()
        return [_json_value(name, each, depth + 1) for name, many in tags for each in _several(many)]
    if isinstance(part, dict | list):
        raise ValueError(f"<{tag[:40]}> is not a single value")
    if isinstance(part, bool):
        return _scalar(tag, text(part))
    return _scalar(tag, "" if part is None else str(part))


def _several(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _map(entries: Any, value: Callable[[str, Any, int], Nested], depth: int) -> dict[str, Nested]:
    _check(depth)
    found: dict[str, Nested] = {}
    for entry in entries:
        if len(entry) != 2 or entry[0][0] != "string":
            raise ValueError("an entry of the map is not a name in <string> and one value")
        (_, name), (tag, part) = entry
        found[str(value("string", name, depth))] = value(tag, part, depth)
    return found


def _scalar(tag: str, text: str) -> Nested:
    read = _READ.get(tag)
    if read is None:
        raise ValueError(f"<{tag[:40]}> is not a type of a map: use {', '.join(_READ)}, list or map")
    return read(text)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return text == "true"


def _check(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"maps and lists are nested more than {DEPTH_MAX} times")


# -- MESSAGE -----------------------------------------------------------------------------------------------------------


def shown(message: Message, name: str, bytes_max: int = LOOP_BYTES_MAX) -> Message:
    """`message` for a subscription with that transformation, "" = the one that its sender used, if any. CostlyError, as
    `neutral`; no other."""
    if not name:
        name = str((message.properties or {}).get(TRANSFORMATION, ""))
    if not name:
        return plain(message, bytes_max)
    message = neutral(message, bytes_max)
    if message.content != MAP or name not in (*_XML, *_JSON):
        return plain(message, bytes_max)
    properties = dict(message.properties or {})
    if len(message.body) > BODY_BYTES_MAX:
        properties[ERROR] = f"the map has more than {BODY_BYTES_MAX} bytes"
        return _told(plain(message, bytes_max), properties)
    try:
        values = decode_map(message.body)
    except ValueError:  # no codec wrote it: the bytes are all that can be shown
        return plain(message, bytes_max)
    properties[TRANSFORMATION] = _MAPS.get(name, name)
    body = "".join(_to_xml(values)) if name in _XML else json.dumps({"map": _to_json(values)}, ensure_ascii=False)
    # Properties are text where there is no envelope: a message with a map has one.
    return with_content(message, Content(TEXT, body.encode("utf-8", "replace")), properties, message.envelope)


@dataclass(frozen=True, slots=True)
class Translation:
    """`shown` for a subscription with that transformation, in a thread, which has time for large bodies."""

    name: str

    def __call__(self, message: Message) -> Message:
        return shown(message, self.name, THREAD_BYTES_MAX)


def _to_xml(value: Nested) -> Iterator[str]:
    tag = _TAGS.get(value.__class__, "string")
    yield f"<{tag}>"
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"<entry><string>{_escaped(name)}</string>"
            yield from _to_xml(each)
            yield "</entry>"
    elif isinstance(value, list):
        for each in value:
            yield from _to_xml(each)
    elif value is not None:
        yield _escaped(text(value))
    yield f"</{tag}>"


def _escaped(text: str) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", text), quote=False).replace("\r", "&#13;")


def _to_json(value: Nested) -> Any:
    if isinstance(value, dict):
        entries = [
            {"string": [name, each]}
            if _TAGS.get(each.__class__) is None
            else {"string": name, _TAGS[each.__class__]: _to_json(each)}
            for name, each in value.items()
        ]
        return {"entry": entries}
    if isinstance(value, list):
        tags: dict[str, list[Any]] = {}
        for each in value:
            tags.setdefault(_TAGS.get(each.__class__, "string"), []).append(_to_json(each))
        return tags
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, float) and value - value != 0:
        return text(value)  # JSON has neither infinity nor NaN
    return "" if value is None else value
