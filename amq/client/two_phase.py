"""Two-phase transactions of the client: the frames that finish prepared transactions, and the list of these.

Invariant: each request may be repeated, on the next master too, which confirms it if it took place. So the client sends
a request whose connection broke again, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from amq.client.requests import Request, RequestKind
from amq.core.errors import CommandError, ProtocolError
from amq.protocols.stomp.frame import encode

if TYPE_CHECKING:
    from amq.client.machine import Machine

PREPARED_QUEUE = "/queue/AMQ.Prepared"  # browsed, it shows what is prepared
_LINE_CHARACTERS = 8000  # of xids in one header
_HEADER_CHARACTERS = 32_000  # of xids in all headers: more of them go into the body


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that is prepared, and neither committed nor rolled back.

    owner, batch   the pipeline and its batch for which it was prepared; "" and 0 = none
    created_ms     wall clock of the broker
    timeout_ms     so long after that the broker rolls it back; 0 = never
    sends, acks    how many messages it sends to which queue, and acknowledges of which
    stores         of a cluster: those that have parts of it, of which this one decides; () = it has no other parts
    """

    xid: str
    owner: str
    batch: int
    created_ms: int
    timeout_ms: int
    sends: Mapping[str, int]
    acks: Mapping[str, int]
    stores: Sequence[str] = ()

    @classmethod
    def parse(cls, body: bytes) -> PreparedTransaction:
        """Read a message that the broker shows, which may be a newer one that says more. Raises ProtocolError."""
        try:
            said = json.loads(body)
            return cls(**{each.name: said[each.name] for each in fields(cls) if each.name in said})
        except (ValueError, TypeError) as error:
            raise ProtocolError(
                f"{PREPARED_QUEUE} shows a message that does not describe a prepared transaction: {error}"
            ) from error


def prepare_headers(xid: str, prepared_timeout: float | None, owner: str, batch: int) -> list[tuple[str, str]]:
    """The headers that make a COMMIT a prepare; `prepared_timeout` in seconds. Raises CommandError."""
    if not xid:
        raise CommandError("give the prepared transaction an xid, by which anybody can finish it")
    headers = [("phase", "prepare"), ("xid", xid)]
    if prepared_timeout is not None:
        headers.append(("timeout", str(round(prepared_timeout * 1000))))
    if owner:
        headers += [("owner", owner), ("batch", str(batch))]
    return headers


def finish(machine: Machine, command: str, xid: str) -> Request:
    """COMMIT or ABORT what is prepared."""
    return _ask(machine, command, [("xid", xid)], xid)


def commit_batch(
    machine: Machine, owner: str, batch: int, xids: Iterable[str], content: tuple[int, int] | None = None
) -> Request:
    """COMMIT a batch; the request's `outcome` says whether now or before."""
    lines, body = _listed(xids)
    headers = [("owner", owner), ("batch", str(batch)), *lines]
    if content is not None:
        headers += [("rows", str(content[0])), ("checksum", str(content[1]))]
    return _ask(machine, "COMMIT", headers, owner, body)


def abort_batch(machine: Machine, owner: str, batch: int | None, xids: Iterable[str] | None) -> Request:
    """ABORT what is prepared for an owner; the request's `outcome` says how many transactions that were."""
    if not owner:
        raise CommandError("give the owner whose prepared transactions are to be rolled back")
    if xids is not None and batch is None:
        raise CommandError("give the batch too: xids are rolled back together as parts of one batch")
    lines, body = ([], b"") if xids is None else _listed(xids)
    headers = [("owner", owner), *([] if batch is None else [("batch", str(batch))]), *lines]
    return _ask(machine, "ABORT", headers, owner, body)


def rolled_back(outcome: str) -> int:
    """How many transactions a broker has rolled back. Raises ProtocolError."""
    if not outcome.isdecimal():
        raise ProtocolError("this broker does not know how to roll back what an owner has prepared: roll back each xid")
    return int(outcome)


def _listed(xids: Iterable[str]) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body that name `xids`. Raises CommandError."""
    names = list(xids)
    for xid in names:
        if not xid or "," in xid:
            raise CommandError(f"xid {xid!r}: give the xids of prepared transactions, which have no comma")
    series = _series(names)
    if sum(map(len, series or names)) + len(series or names) > _HEADER_CHARACTERS:
        return [], json.dumps({"series": series} if series else {"xids": names}).encode()
    lines = [("xids", "")] if series else []
    key, items = ("series", series) if series else ("xids", names)
    line = ""
    for item in items:
        if line and len(line) + len(item) > _LINE_CHARACTERS:
            lines.append((f"{key}.{len(lines)}", line))
            line = ""
        line += f",{item}" if line else item
    return [*lines, (key, line)], b""


def _series(xids: list[str]) -> list[str]:
    """`NAME*COUNT` for NAME.0, NAME.1 …: thousands of those fit into one frame. Empty where not all are named so."""
    names: list[str] = []
    counts: list[int] = []
    for xid in xids:
        name, _, number = xid.rpartition(".")
        if name and number == "0":
            names.append(name)
            counts.append(1)
        elif names and (name, number) == (names[-1], str(counts[-1])):
            counts[-1] += 1
        else:
            return []
    return [f"{name}*{count}" for name, count in zip(names, counts, strict=True)]


def _ask(machine: Machine, command: str, headers: list[tuple[str, str]], subject: str, body: bytes = b"") -> Request:
    receipt = machine.next_receipt()
    lines = [*headers, ("receipt", receipt.decode()), *([("content-length", str(len(body)))] if body else [])]
    return machine.request(RequestKind.RESOLVE, receipt, encode(command, lines, body), subject)
