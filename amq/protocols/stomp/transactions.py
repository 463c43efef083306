"""COMMIT and ABORT: one phase, the two phases of a prepared transaction, the batch of a pipeline, leases: by headers.

STOMP has no frames for more than one phase, so the headers say what is meant; docs/stomp.md lists them. A frame whose
headers contradict each other is refused, never guessed at.
"""

from __future__ import annotations

from amq.errors import ProtocolError
from amq.protocols.commands import Abort, Command, Commit, CommitBatch, Finish, Prepare
from amq.protocols.stomp import leases

_MAX = 2**63 - 1
_SERIES_MAX = 100_000
_TWO_PHASE = ("phase", "xid", "owner", "batch", "timeout")


def commit(headers: dict[str, str], receipt: str) -> Command:
    """What a COMMIT asks for. Raises ProtocolError."""
    if "cursor" in headers:
        return leases.settle("COMMIT", headers, receipt)
    xids = _xids(headers)
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
            transaction("COMMIT", headers), _required("COMMIT", headers, "xid"),
            _number("timeout", headers["timeout"]) if "timeout" in given else None, headers.get("owner", ""),
            _number("batch", headers.get("batch", "0")), receipt,
        )  # fmt: skip
    if "transaction" in headers:
        raise ProtocolError("COMMIT has a transaction and an xid: what is prepared has no name but its xid")
    if "xid" in given:
        _only("COMMIT of an xid", given, "xid")
        return Finish(_required("COMMIT", headers, "xid"), True, receipt)
    _only("COMMIT of a batch", given, "owner", "batch", "xids")
    owner = _required("COMMIT", headers, "owner")
    return CommitBatch(owner, _number("batch", _required("COMMIT", headers, "batch")), xids or [], receipt)


def abort(headers: dict[str, str], receipt: str) -> Command:
    """What an ABORT asks for. Raises ProtocolError."""
    if "cursor" in headers:
        return leases.settle("ABORT", headers, receipt)
    if "xid" not in headers:
        return Abort(transaction("ABORT", headers), receipt)
    if "transaction" in headers:
        raise ProtocolError("ABORT has a transaction and an xid: what is prepared has no name but its xid")
    return Finish(_required("ABORT", headers, "xid"), False, receipt)


def transaction(command: str, headers: dict[str, str]) -> str:
    """The name of an open transaction. Raises ProtocolError."""
    return _required(command, headers, "transaction")


def _xids(headers: dict[str, str]) -> list[str] | None:
    """Those of all lines: `xids`, `xids.1`, `xids.2` …, as one line holds but 10 KiB; then those of `series` likewise,
    of which each item `NAME*COUNT` stands for NAME.0, NAME.1 … Raises ProtocolError."""
    xids, series = _items(headers, "xids"), _items(headers, "series")
    if xids is None and series is None:
        return None
    found = xids or []
    for item in series or []:
        name, _, text = item.rpartition("*")
        count = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not name or not 0 < count <= _SERIES_MAX - len(found):
            raise _invalid("series", item, f"give NAME*COUNT, all together at most {_SERIES_MAX}")
        found += [f"{name}.{number}" for number in range(count)]
    return found


def _items(headers: dict[str, str], key: str) -> list[str] | None:
    lines = [value for name, value in headers.items() if name == key or name.startswith(key + ".")]
    return [item for line in lines for item in line.split(",") if item] if lines else None


def _only(what: str, given: set[str], *allowed: str) -> None:
    if extra := sorted(given - set(allowed)):
        raise ProtocolError(f"{what} has no header {extra[0]}: see docs/stomp.md", code="HEADER_INVALID")


def _required(command: str, headers: dict[str, str], name: str) -> str:
    value = headers.get(name)
    if value is None:
        raise ProtocolError(f"{command} needs a {name} header", code="HEADER_MISSING")
    if not value:
        raise ProtocolError(f"the {name} header is empty", code="HEADER_INVALID")
    return value


def _number(name: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= _MAX:
        return int(text)
    raise _invalid(name, text, f"give a number from 0 to {_MAX}")


def _invalid(name: str, text: str, cure: str) -> ProtocolError:
    return ProtocolError(f"{name} {text[:40]!r}: {cure}", code="HEADER_INVALID")
