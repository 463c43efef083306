"""Jolokia: the part of ActiveMQ's HTTP bridge to JMX that monitoring tools read: attributes of the broker and of queues
and topics, with the names that ActiveMQ gives them; and `purge()`.

Answers have HTTP status 200, and their own in `status`, as Jolokia's have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from amq.console.link import Link
from amq.core.errors import AmqError
from amq.management.listing import Row
from amq.security.login import User

BATCH_MAX: Final = 100
_NOT_FOUND: Final = "javax.management.InstanceNotFoundException"
_NO_ATTRIBUTE: Final = "javax.management.AttributeNotFoundException"
_ILLEGAL: Final = "java.lang.IllegalArgumentException"
_PART: Final = re.compile(r"(?:[^/!]|!.)+")


def _share(part: str, whole: str) -> Callable[[Row], Any]:
    return lambda row: int(100 * row[part] / row[whole]) if row[whole] else 0


def _of(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name]


BROKER: Final[Mapping[str, Callable[[Row], Any]]] = {
    "BrokerName": _of("name"),
    "BrokerVersion": _of("version"),
    "Slave": lambda row: row["role"] != "master",
    "TotalMessageCount": _of("messages"),
    "TotalConsumerCount": _of("consumers"),
    "TotalEnqueueCount": lambda row: row["enqueued"] + row["forgotten_enqueued"],
    "TotalDequeueCount": lambda row: row["dequeued"] + row["forgotten_dequeued"],
    "CurrentConnectionsCount": _of("connections"),
    "TotalConnectionsCount": _of("connections_opened"),
    "MemoryPercentUsage": _share("memory_used_bytes", "memory_limit_bytes"),
    "MemoryLimit": _of("memory_limit_bytes"),
    "StorePercentUsage": _share("store_used_bytes", "store_limit_bytes"),
    "StoreLimit": _of("store_limit_bytes"),
    "TempPercentUsage": lambda _: 0,
}
QUEUE: Final[Mapping[str, Callable[[Row], Any]]] = {
    "Name": _of("name"),
    "QueueSize": _of("messages"),
    "ConsumerCount": _of("consumers"),
    "EnqueueCount": _of("enqueued"),
    "DequeueCount": _of("dequeued"),
    "InFlightCount": _of("in_flight"),
    "DispatchCount": lambda row: row["dequeued"] + row["in_flight"],
    "MemoryUsageByteCount": _of("memory_bytes"),
    "StoreMessageSize": _of("bytes"),
    "Paused": _of("paused"),
    "DLQ": _of("dead_letter_queue"),
    "MemoryPercentUsage": _share("bytes", "limit_bytes"),
}
TOPIC: Final[Mapping[str, Callable[[Row], Any]]] = {"Name": _of("name"), "ConsumerCount": _of("consumers")}


class RefusedError(Exception):
    """A request that Jolokia would answer with another status than 200."""

    def __init__(self, status: int, kind: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.kind = kind


def parse_path(path: str) -> dict[str, Any]:
    """The request that `read/MBEAN/ATTRIBUTE` is. `!` is before a character that stands for itself."""
    operation, _, rest = path.partition("/")
    words = [re.sub(r"!(.)", r"\1", word) for word in _PART.findall(rest)]
    if operation == "version":
        return {"type": "version"}
    request: dict[str, Any] = {"type": operation, "mbean": words[0] if words else ""}
    if len(words) > 1:
        names = words[1].split(",")
        request["attribute"] = names if len(names) > 1 else names[0]
    return request


async def answer(link: Link, request: Any, user: User, now_s: int) -> Row:
    """One request, as an object."""
    shown = request if isinstance(request, dict) else {}
    try:
        value = await _value(link, shown, user)
    except RefusedError as error:
        return {
            "request": shown,
            "error_type": error.kind,
            "error": f"{error.kind} : {error}",
            "status": error.status,
            "timestamp": now_s,
        }
    except AmqError as error:
        status = 404 if error.code == "NOT_FOUND" else 403 if error.code == "NOT_PERMITTED" else 500
        return {
            "request": shown,
            "error_type": _NOT_FOUND if status == 404 else "java.lang.Exception",
            "error": str(error),
            "status": status,
            "timestamp": now_s,
        }
    return {"request": shown, "value": value, "status": 200, "timestamp": now_s}


async def _value(link: Link, request: Mapping[str, Any], user: User) -> Any:
    kind = request.get("type")
    if kind == "version":
        return {"agent": "amq", "protocol": "7.2", "info": {"product": "amq", "vendor": "amq"}}
    names = _names(request.get("mbean"))
    path = _path(names)
    if kind == "exec":
        if request.get("operation") not in ("purge", "purge()") or not path.startswith("/queues/"):
            raise RefusedError(400, _ILLEGAL, "only purge() of a queue can be called here")
        await link.ask("POST", f"{path}/purge", {}, user)
        return None
    if kind != "read":
        raise RefusedError(400, _ILLEGAL, f"type {str(kind)[:40]!r}: there are read, exec and version")
    row, table = await _row(link, path, names, user)
    return _attributes(row, table, request.get("attribute"))


def _names(mbean: object) -> dict[str, str]:
    """`org.apache.activemq:type=Broker,brokerName=a,…` → its keys."""
    domain, _, rest = str(mbean).partition(":")
    pairs = [part.partition("=") for part in re.split(r",(?=\w+=)", rest)]
    names = {key: value.strip('"') for key, _, value in pairs}
    if domain != "org.apache.activemq" or names.get("type") != "Broker" or "brokerName" not in names:
        raise RefusedError(404, _NOT_FOUND, str(mbean)[:200])
    return names


def _path(names: Mapping[str, str]) -> str:
    """The resource that such a name stands for."""
    kind, name = names.get("destinationType"), names.get("destinationName", "")
    if kind is None:
        return "/totals"
    if kind not in ("Queue", "Topic") or not name:
        raise RefusedError(404, _NOT_FOUND, f"destinationType={kind[:40]}")
    return f"/queues/{quote(name, safe='')}" if kind == "Queue" else f"/topics?name={quote(name, safe='')}"


async def _row(link: Link, path: str, names: Mapping[str, str], user: User) -> tuple[Row, Mapping[str, Any]]:
    status = await link.ask("GET", "/broker", None, user)
    if names["brokerName"] not in ("*", "localhost", status["name"]):
        raise RefusedError(404, _NOT_FOUND, f"brokerName={names['brokerName'][:100]}: this is {status['name']}")
    if path == "/totals" and status["role"] != "master":
        return status, {name: of for name, of in BROKER.items() if name in ("BrokerName", "BrokerVersion", "Slave")}
    found = await link.ask("GET", path, None, user)
    if path == "/totals":
        return {**status, **found}, BROKER
    if path.startswith("/topics"):
        rows = [row for row in found["items"] if row["name"] == names["destinationName"]]
        if not rows:
            raise RefusedError(404, _NOT_FOUND, f"destinationName={names['destinationName'][:200]}")
        return rows[0], TOPIC
    return found, QUEUE


def _attributes(row: Row, table: Mapping[str, Callable[[Row], Any]], wanted: object) -> Any:
    if wanted is None:
        return {name: of(row) for name, of in table.items()}
    names = [str(name) for name in (wanted if isinstance(wanted, list) else [wanted])]
    for name in names:
        if name not in table:
            raise RefusedError(404, _NO_ATTRIBUTE, f"No such attribute: {name[:100]}")
    values = {name: table[name](row) for name in names}
    return values if isinstance(wanted, list) else values[names[0]]
