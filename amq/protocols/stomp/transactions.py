"""COMMIT and ABORT: one phase, the two phases of a prepared transaction, the batch of a pipeline, leases: by headers.

STOMP has no frames for more than one phase, so the headers say what is meant; docs/stomp.md lists them. A frame whose
headers contradict each other is rejected. The parts of a large batch do not fit into headers: they are in the body.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from amq.core.errors import ProtocolError
from amq.core.xid import Xids, parse
from amq.protocols.commands import Abort, AbortBatch, Command, Commit, CommitBatch, Finish, Prepare
from amq.protocols.stomp import leases

_MAX: Final = 2**63 - 1
_CHECKSUM_MAX: Final = 2**64 - 1
XIDS_MAX: Final = 100_000  # of one batch
# A body of this many bytes and items takes 5 ms to read.
BATCH_BODY_BYTES_MAX: Final = 1 << 20
BATCH_BODY_ITEMS_MAX: Final = 50_000
_KEY: Final = re.compile(rb'"\s*:')
_BODY_KEYS: Final = ("xids", "series")
_TWO_PHASE: Final = ("phase", "xid", "owner", "batch", "timeout", "rows", "checksum")


def takes_body(command: str, headers: dict[str, str]) -> bool:
    """May this frame have a body? It does where it names the parts of a batch."""
    return command in ("COMMIT", "ABORT") and "owner" in headers and "batch" in headers


def commit(headers: dict[str, str], receipt: object, body: bytes = b"") -> Command:
    """The command of a COMMIT frame. Raises ProtocolError."""
    if "cursor" in headers:
        return leases.settle("COMMIT", headers, receipt)
    xids = _xids(headers, body)
    given = {name for name in _TWO_PHASE if name in headers} | ({"xids"} if xids is not None else set())
    if not given:
        return Commit(transaction("COMMIT", headers), receipt, headers.get("amq-outcome-id", ""))
    if "phase" in given:
        if headers["phase"] != "prepare":
            raise _invalid("phase", headers["phase"], "prepare is the only one that is named")
        _only("COMMIT with phase:prepare", given, "phase", "xid", "owner", "batch", "timeout")
        if ("owner" in given) != ("batch" in given):
            raise ProtocolError("COMMIT has one of owner and batch: give both or none", code="HEADER_MISSING")
        return Prepare(
            transaction("COMMIT", headers),
            parse(_required("COMMIT", headers, "xid")),
            _number("timeout", headers["timeout"]) if "timeout" in given else None,
            headers.get("owner", ""),
            _number("batch", headers.get("batch", "0")),
            receipt,
        )
    if "transaction" in headers:
        raise ProtocolError("COMMIT has a transaction and an xid: what is prepared has no name but its xid")
    if "xid" in given:
        _only("COMMIT of an xid", given, "xid")
        return Finish(parse(_required("COMMIT", headers, "xid")), True, receipt)
    _only("COMMIT of a batch", given, "owner", "batch", "xids", "rows", "checksum")
    owner = _required("COMMIT", headers, "owner")
    batch = _number("batch", _required("COMMIT", headers, "batch"))
    return CommitBatch(owner, batch, xids or Xids(), receipt, _content(headers))


def abort(headers: dict[str, str], receipt: object, body: bytes = b"") -> Command:
    """The command of an ABORT frame. Raises ProtocolError."""
    if "cursor" in headers:
        return leases.settle("ABORT", headers, receipt)
    if "owner" in headers:
        return _abort_batch(headers, receipt, body)
    if "xid" not in headers:
        return Abort(transaction("ABORT", headers), receipt)
    if "transaction" in headers:
        raise ProtocolError("ABORT has a transaction and an xid: what is prepared has no name but its xid")
    return Finish(parse(_required("ABORT", headers, "xid")), False, receipt)


def transaction(command: str, headers: dict[str, str]) -> str:
    """The name of an open transaction. Raises ProtocolError."""
    return _required(command, headers, "transaction")


def _abort_batch(headers: dict[str, str], receipt: object, body: bytes) -> AbortBatch:
    """Raises ProtocolError."""
    xids = _xids(headers, body)
    given: set[str] = {name for name in (*_TWO_PHASE, "transaction") if name in headers}
    _only("ABORT of an owner", given, "owner", "batch")
    batch = _number("batch", headers["batch"]) if "batch" in headers else None
    if xids is not None and batch is None:
        raise ProtocolError("ABORT of an owner has xids and no batch: name the batch too", code="HEADER_MISSING")
    return AbortBatch(_required("ABORT", headers, "owner"), batch, xids, receipt)


def _content(headers: dict[str, str]) -> tuple[int, int] | None:
    """Rows and checksum of a batch. Raises ProtocolError."""
    if "rows" not in headers and "checksum" not in headers:
        return None
    rows, checksum = (_required("COMMIT", headers, name) for name in ("rows", "checksum"))
    return _number("rows", rows), _number("checksum", checksum, _CHECKSUM_MAX)


def _xids(headers: dict[str, str], body: bytes) -> Xids | None:
    """Those of all lines: `xids`, `xids.1`, `xids.2` …, since one line holds 10 KiB; then those of `series` likewise,
    of which each item `NAME*COUNT` stands for NAME.0, NAME.1 …; then those of the body. Raises ProtocolError."""
    xids, series = _items(headers, "xids"), _items(headers, "series")
    if body:
        more_xids, more_series = _of_body(body)
        xids, series = [*(xids or []), *more_xids], [*(series or []), *more_series]
    if xids is None and series is None:
        return None
    listed = xids or []
    if len(listed) > XIDS_MAX:
        raise ProtocolError(f"a batch has {len(listed)} xids: at most {XIDS_MAX} are allowed", code="HEADER_INVALID")
    counts: list[tuple[str, int]] = []
    left = XIDS_MAX - len(listed)
    for item in series or []:
        name, _, text = item.rpartition("*")
        count = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not name or not 0 < count <= left:
            raise _invalid("series", item, f"give NAME*COUNT, all together at most {XIDS_MAX}")
        counts.append((name, count))
        left -= count
    return Xids(listed, counts)


def _of_body(body: bytes) -> tuple[list[str], list[str]]:
    """Items of `xids` and `series`: the body is JSON, {"xids": [...], "series": [...]}. Raises ProtocolError."""
    if len(body) > BATCH_BODY_BYTES_MAX:
        why = f"the body of a COMMIT or ABORT has {len(body)} bytes: at most {BATCH_BODY_BYTES_MAX} are allowed"
        raise ProtocolError(why, code="BODY_TOO_BIG")
    if body.count(b",") > BATCH_BODY_ITEMS_MAX:
        why = f"the body of a COMMIT or ABORT has more than {BATCH_BODY_ITEMS_MAX} items: write xids as series"
        raise ProtocolError(why, code="BODY_TOO_BIG")
    found = None
    if len(_KEY.findall(body)) <= len(_BODY_KEYS):
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
    parts: list[Any] = [found.get(name, []) for name in _BODY_KEYS] if isinstance(found, dict) else [None]
    if not all(isinstance(part, list) and all(isinstance(item, str) for item in part) for part in parts):
        why = 'the body of a COMMIT or ABORT must be JSON: {"xids": ["x"], "series": ["NAME*3"]}'
        raise ProtocolError(why, code="BODY_INVALID")
    xids, series = parts
    return xids, series


def _items(headers: dict[str, str], key: str) -> list[str] | None:
    lines = [value for name, value in headers.items() if name == key or name.startswith(key + ".")]
    return [item for line in lines for item in line.split(",") if item] if lines else None


def _only(what: str, given: set[str], *allowed: str) -> None:
    if extra := sorted(given - set(allowed)):
        raise ProtocolError(f"{what} has no header {extra[0]}: see docs/stomp.md", code="HEADER_INVALID")


def _required(command: str, headers: dict[str, str], name: str) -> str:
    value = headers.get(name)
    if value is None:
        raise ProtocolError(f"{command} without the header {name}: add it", code="HEADER_MISSING")
    if not value:
        raise ProtocolError(f"the {name} header is empty", code="HEADER_INVALID")
    return value


def _number(name: str, text: str, maximum: int = _MAX) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= maximum:
        return int(text)
    raise _invalid(name, text, f"give a number from 0 to {maximum}")


def _invalid(name: str, text: str, cure: str) -> ProtocolError:
    return ProtocolError(f"{name} {text[:40]!r}: {cure}", code="HEADER_INVALID")
