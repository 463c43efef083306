"""A second reading of records, made from docs/journal-format.md alone: it knows nothing of the code that it checks."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

REASONS = ("acked", "expired", "dead-lettered", "purged", "fired")


def read(payload: bytes, names: dict[int, str]) -> Iterator[dict[str, Any]]:
    """What each record says, as `amq journal dump --bodies` prints it but for bodies, which are bytes. Adds to `names`
    the destinations that are defined."""
    position = 0
    while position < len(payload):
        size, crc, kind = struct.unpack_from("<IIB", payload, position)
        body = payload[position + 9 : position + 9 + size]
        assert crc == zlib.crc32(body, kind)
        name, facts = _READ[kind]
        yield {"type": name, **facts(body, names)}
        position += 9 + size


def _numbers(body: bytes, at: int, count: int | None = None) -> list[int]:
    return list(struct.unpack_from(f"<{(len(body) - at) // 8 if count is None else count}Q", body, at))


def _number(body: bytes, at: int = 0) -> int:
    return int.from_bytes(body[at : at + 4], "little")


def _destination(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    names[_number(body)] = body[5:].decode()
    return {"id": _number(body), "destination": body[5:].decode()}


def _sent(flags: int, priority: int, times: tuple[int, int], parts: list[bytes]) -> dict[str, Any]:
    content_type, duplicate_id, properties, body = parts
    return {
        "priority": priority,
        "timestamp_ms": times[0],
        "expires_ms": times[1],
        "content_type": content_type.decode(),
        **_owned("duplicate_id", duplicate_id),
        "body_bytes": len(body),
        "body": body,
        **(_extended(properties, flags) if flags & 128 else _plain(properties, flags)),
    }


CONTENTS = ("bytes", "text", "map", "stream", "object", "none")
PLACES = {
    "/queue/": "queue://",
    "/topic/": "topic://",
    "/remote-temp-queue/": "temp-queue://",
    "/remote-temp-topic/": "temp-topic://",
}


def _plain(section: bytes, flags: int) -> dict[str, Any]:
    properties = json.loads(section or b"{}")
    envelope: dict[str, Any] = {}
    if "correlation-id" in properties:
        id = properties.pop("correlation-id")
        found = re.fullmatch("ID:AMQP_BINARY:((?:[0-9A-F]{2})*)", id)
        envelope["correlation_id"] = {"bytes": base64.b64encode(bytes.fromhex(found[1])).decode()} if found else id
    if properties.get("reply-to"):
        parts = [re.fullmatch("(/[a-z-]+/)(.+)", part, re.DOTALL) for part in properties["reply-to"].split(",")]
        if all(part is not None and part[1] in PLACES for part in parts):
            envelope["reply_to"] = ",".join(PLACES[part[1]] + part[2] for part in parts if part)
            del properties["reply-to"]
        else:
            envelope["reply_to"] = properties["reply-to"]
            if not all(part.startswith((*PLACES.values(),)) for part in properties["reply-to"].split(",")):
                del properties["reply-to"]
    if properties.get("type"):
        envelope["type"] = properties.pop("type")
    return {"content": CONTENTS[flags & 1], "properties": properties} | ({"envelope": envelope} if envelope else {})


def _extended(section: bytes, flags: int) -> dict[str, Any]:
    facts, end = _value(section, 0)
    assert end == len(section)
    names = {"i": "message_id", "c": "correlation_id", "r": "reply_to", "t": "type", "s": "sent_ms", "n": "native"}
    envelope = {names[key]: value for key, value in facts.items() if key in names}
    if "sent_ms" in envelope:
        envelope["sent_ms"] = envelope["sent_ms"]["int64"]
    if "native" in envelope:
        envelope["native"][1] = envelope["native"][1]["bytes"]
    content = facts["k"]["int64"] if "k" in facts else flags & 1
    return {"content": CONTENTS[content], "properties": facts.get("p", {}), "envelope": envelope}


NUMBERS = {
    3: ("int8", "b"),
    4: ("int16", "h"),
    5: ("int32", "i"),
    6: ("int64", "q"),
    7: ("float32", "f"),
    8: ("float64", "d"),
}


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """A value with its type, as a dump shows it, and where it ends."""
    tag, at = data[at], at + 1
    if tag < 3:
        return (None, {"bool": False}, {"bool": True})[tag], at
    if tag in NUMBERS:
        name, code = NUMBERS[tag]
        (number,) = struct.unpack_from("<" + code, data, at)
        special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return {name: special.get(str(number), number)}, at + struct.calcsize("<" + code)
    size, at = _number(data, at), at + 4
    if tag in (9, 10):
        found = data[at : at + size]
        text = found.decode("utf-8", "surrogatepass") if tag == 9 else {"bytes": base64.b64encode(found).decode()}
        return text, at + size
    items: list[Any] = []
    names: list[str] = []
    for _ in range(size):
        if tag == 11:
            length = _number(data, at)
            names.append(data[at + 4 : at + 4 + length].decode("utf-8", "surrogatepass"))
            at += 4 + length
        item, at = _value(data, at)
        items.append(item)
    return (dict(zip(names, items, strict=True)) if tag == 11 else items), at


def _cut(body: bytes, at: int, lengths: tuple[int, ...]) -> list[bytes]:
    parts = []
    for length in lengths:
        parts.append(body[at : at + length])
        at += length
    return [*parts, body[at:]]


def _message(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    seq, number, flags, priority, *times, t, d, p = struct.unpack_from("<QIBBQQHHI", body)
    return {"destination": names[number], "seq": seq} | _sent(flags, priority, (*times,), _cut(body, 38, (t, d, p)))


def _multicast(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    seq, count, flags, priority, *times, t, d, p, n = struct.unpack_from("<QIBBQQHHII", body)
    holders = [struct.unpack_from("<II", body, 42 + 8 * i) for i in range(count)]
    name, *parts = _cut(body, 42 + 8 * count, (n, t, d, p))
    queues = [{"destination": names[number], "seq": seq + more} for number, more in holders]
    sent = _sent(flags, priority, (*times,), parts)
    return {"destination": name.decode(), "seq": seq, "queues": queues} | sent


def _consumed(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    return {"destination": names[_number(body)], "reason": REASONS[body[4]], "seqs": _numbers(body, 9)}


def _redelivered(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    counts = struct.iter_unpack("<QII", body[4:])
    return {
        "destination": names[_number(body)],
        "counts": [
            {"seq": seq, "deliveries": deliveries, "failures": failures} for seq, deliveries, failures in counts
        ],
    }


def _moved(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    end = 12 + 8 * _number(body, 8)
    return {
        "source": names[_number(body)],
        "target": names[_number(body, 4)],
        "seqs": _numbers(body[:end], 12),
        "ids": json.loads(body[end:] or b"[]"),
    }


def _owned(kind: str, data: bytes) -> dict[str, str]:
    """An id, and the user before it, where there is one."""
    before, *rest = data.decode().split("\0", 2)
    if before or len(rest) < 2:
        return {kind: data.decode()}
    user, id = rest
    return {kind: id, f"{kind}_user": user} if user else {kind: id}


def _group(body: bytes, names: dict[int, str]) -> dict[str, Any]:
    end = 12 + _number(body, 8)
    return {**_owned("outcome_id", body[12:end]), "records": list(read(body[end:], names))}


def _prepared(body: bytes, _: dict[int, str]) -> dict[str, Any]:
    end = 4 + _number(body)
    keys = ("xid", "seq", "created_ms", "timeout_ms", "owner", "batch", "sends", "acks", "ids")
    facts = dict(zip(keys, json.loads(body[4:end]), strict=True))
    if isinstance(facts["xid"], list):
        facts["xid"] = ":".join(["xa", *map(str, facts["xid"])])
    seqs = iter(_numbers(body, end))
    for key in ("sends", "acks"):
        facts[key] = {name: [next(seqs) for _ in range(count)] for name, count in facts[key].items()}
    assert next(seqs, None) is None
    return facts


def _resolved(body: bytes, _: dict[int, str]) -> dict[str, Any]:
    xid = body[9:]
    if body[8] & 2:
        end = 5 + xid[4]
        text = f"xa:{struct.unpack_from('<i', xid)[0]}:{xid[5:end].hex()}:{xid[end:].hex()}"
    else:
        text = xid.decode()
    return {"seq": _numbers(body, 0, 1)[0], "committed": bool(body[8] & 1), "xid": text}


def _marker(body: bytes, _: dict[int, str]) -> dict[str, Any]:
    return {"batch": _numbers(body, 0, 1)[0], "owner": body[8:].decode()}


def _marker_with_content(body: bytes, _: dict[int, str]) -> dict[str, Any]:
    batch, rows, checksum = _numbers(body, 0, 3)
    return {"batch": batch, "rows": rows, "checksum": checksum, "owner": body[24:].decode()}


def _parcel(body: bytes, _: dict[int, str]) -> dict[str, Any]:
    end = 4 + _number(body)
    facts = dict(zip(("channel", "number", "store", "queues", "count"), json.loads(body[4:end]), strict=True))
    seqs = iter(_numbers(body, end))
    facts["queues"] = {name: [next(seqs) for _ in range(count)] for name, count in facts["queues"].items()}
    assert next(seqs, None) is None
    return facts


def _trimmed(body: bytes, _: dict[int, str]) -> dict[str, Any]:
    epoch, number, *kept = _numbers(body, 0)
    return {"epoch": epoch, "number": number, "kept": [kept[i : i + 3] for i in range(0, len(kept), 3)]}


_READ = {
    1: ("destination", _destination),
    2: ("message", _message),
    3: ("consumed", _consumed),
    4: ("redelivered", _redelivered),
    5: ("group", _group),
    6: ("duplicates", lambda b, names: {"destination": names[_number(b)], "ids": json.loads(b[4:])}),
    7: ("outcomes", lambda b, _: {"ids": json.loads(b)}),
    8: ("trimmed", _trimmed),
    9: ("previous", lambda b, _: {"end": _numbers(b, 0)[0]}),
    10: ("multicast", _multicast),
    11: ("moved", _moved),
    12: ("prepared", _prepared),
    13: ("resolved", _resolved),
    14: ("marker", _marker),
    15: ("subscription", lambda b, _: dict(zip(("destination", "definition"), json.loads(b), strict=True))),
    16: ("marker", _marker_with_content),
    17: ("placed", lambda b, _: dict(zip(("cluster", "store", "number", "placement"), json.loads(b), strict=True))),
    18: ("parcel", _parcel),
}
