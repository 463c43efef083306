"""Two-phase transactions of the client: the frames that finish what is prepared, and what is prepared as one sees it.

Invariant: each may be asked again, on the next master too, and is then confirmed if it took place: so a request whose
connection broke is sent again, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amq.client.requests import Kind, Request
from amq.errors import CommandError, ProtocolError
from amq.protocols.stomp.frame import encode

if TYPE_CHECKING:
    from amq.client.machine import Machine

PREPARED_QUEUE = "/queue/AMQ.Prepared"  # browsed, it shows what is prepared
_LINE_CHARACTERS = 8000  # of xids in one header


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that is prepared, and neither committed nor rolled back.

    owner, batch   the pipeline and its batch for which it was prepared; "" and 0 = none
    created_ms     wall clock of the broker
    timeout_ms     so long after that the broker rolls it back; 0 = never
    sends, acks    how many messages it sends to which queue, and acknowledges of which
    """

    xid: str
    owner: str
    batch: int
    created_ms: int
    timeout_ms: int
    sends: Mapping[str, int]
    acks: Mapping[str, int]

    @classmethod
    def parse(cls, body: bytes) -> PreparedTransaction:
        """Of a message that the broker shows. Raises ProtocolError."""
        try:
            return cls(**json.loads(body))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"{PREPARED_QUEUE} shows what is no prepared transaction: {error}") from error


def prepare_headers(
    xid: str, prepared_timeout: float | None, owner: str, batch: int
) -> list[tuple[str, str]]:  # fmt: skip
    """What makes the COMMIT of a transaction its prepare; `prepared_timeout` in seconds. Raises CommandError."""
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


def commit_batch(machine: Machine, owner: str, batch: int, xids: Iterable[str]) -> Request:
    """COMMIT a batch; the request's `outcome` says whether now or before."""
    names = list(xids)
    for xid in names:
        if not xid or "," in xid:
            raise CommandError(f"xid {xid!r}: give the xids of prepared transactions, which have no comma")
    series = _series(names)
    lines = [("xids", "")] if series else []
    key, items = ("series", series) if series else ("xids", names)
    line = ""
    for item in items:
        if line and len(line) + len(item) > _LINE_CHARACTERS:
            lines.append((f"{key}.{len(lines)}", line))
            line = ""
        line += f",{item}" if line else item
    return _ask(machine, "COMMIT", [("owner", owner), ("batch", str(batch)), *lines, (key, line)], owner)


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


def _ask(machine: Machine, command: str, headers: list[tuple[str, str]], subject: str) -> Request:
    receipt = machine.next_receipt()
    return machine.request(Kind.RESOLVE, receipt, encode(command, [*headers, ("receipt", receipt.decode())]), subject)
