"""Says of a finished history whether the broker kept its promises. Pure: histories in, violations out.

The history must be complete: every producer got all its receipts, and consumers were left alone until nothing came any
more. Each rule below is sound: what it reports cannot be explained by slow clients, late reads or bytes that lay in a
socket while the master changed.

lost         a send was confirmed and the message was never delivered
invented     a message was delivered that nobody sent, or its body is not what was sent
undone       an acknowledgement was confirmed and the same message-id was delivered again: to the same consumer, or on a
             connection that was opened later
doubled      a message was stored twice: delivered under two message-ids, or twice on one connection
reordered    a queue's only consumer saw a producer's messages for the first time in another order than they were sent
two masters  two brokers served one epoch; or work was confirmed under an older epoch though it was asked for when a
             newer one had confirmed something already; or (brokers without epochs) one broker confirmed work on a
             connection before and after another broker took up and confirmed some
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.history import Log, Observation

EXAMPLES_MAX = 5


class Violation(NamedTuple):
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class ConfirmedRequest(NamedTuple):
    """One confirmed request: by which broker, in which epoch, on which connection, from when to when."""

    broker: str
    epoch: int
    connection: tuple[str, int]
    invoked_us: int
    confirmed_us: int


def check(logs: Sequence[Log]) -> list[Violation]:
    """Everything that must not be: a few examples of each kind, and the number of the others."""
    violations = []
    for rule in (lost, invented, undone, doubled, reordered, two_masters):
        found = [Violation(rule.__name__.replace("_", " "), text) for text in rule(logs)]
        violations += found[:EXAMPLES_MAX]
        if len(found) > EXAMPLES_MAX:
            violations.append(Violation(found[0].rule, f"… and {len(found) - EXAMPLES_MAX} more"))
    return violations


def _events(logs: Sequence[Log], kind: str) -> Iterator[tuple[Log, Observation]]:
    return ((log, event) for log in logs for event in log.events if event.kind == kind)


def lost(logs: Sequence[Log]) -> Iterator[str]:
    delivered = {(log.queue, event.message) for log, event in _events(logs, "recv")}
    for log, event in _events(logs, "sent"):
        if (log.queue, event.message) not in delivered:
            yield f"{event.message} on {log.queue} was confirmed at {event.time_us} and never delivered"


def invented(logs: Sequence[Log]) -> Iterator[str]:
    sent = {(log.queue, event.message) for log, event in _events(logs, "send")}
    for log, event in _events(logs, "recv"):
        if (log.queue, event.message) not in sent:
            yield f"{log.worker} got {event.message} from {log.queue} at {event.time_us}, which nobody had sent there"
    for log, event in _events(logs, "bad"):
        yield f"{log.worker} got {event.message} at {event.time_us} with another body: {event.detail}"


def undone(logs: Sequence[Log]) -> Iterator[str]:
    confirmed: dict[tuple[str, str, str], tuple[int, str]] = {}  # (queue, message, message-id) → when, to whom
    for log in logs:
        ids: dict[str, str] = {}
        for event in log.events:
            if event.kind == "recv":
                ids[event.message] = event.detail
            elif event.kind == "acked":
                key = (log.queue, event.message, ids[event.message])
                confirmed[key] = min(confirmed.get(key, (event.time_us, log.worker)), (event.time_us, log.worker))
    for log in logs:
        opened = {event.connection: event.time_us for event in log.events if event.kind == "open"}
        for event in log.events:
            key = (log.queue, event.message, event.detail)
            if event.kind != "recv" or key not in confirmed:
                continue
            acked_us, acker = confirmed[key]
            later = event.connection and opened[event.connection] > acked_us
            if event.time_us > acked_us and (acker == log.worker or later):
                yield (
                    f"{event.message} was delivered to {log.worker} at {event.time_us}, "
                    f"after its acknowledgement by {acker} was confirmed at {acked_us}"
                )


def doubled(logs: Sequence[Log], by_gateways: bool = False) -> Iterator[str]:
    """`by_gateways`: a connection outlives the master of a store, and what is not acknowledged there comes again."""
    ids: dict[tuple[str, str], str] = {}
    for log in logs:
        seen: set[tuple[int, str]] = set()
        settled: set[tuple[int, str]] = set()
        for event in log.events:
            came = (event.connection, event.message)
            if event.kind == "acked":
                settled.add(came)
            if event.kind != "recv":
                continue
            first = ids.setdefault((log.queue, event.message), event.detail)
            if first != event.detail:
                yield f"{event.message} was delivered as message-id {first} and as {event.detail}"
            if event.connection and came in (settled if by_gateways else seen):
                yield f"{event.message} was delivered twice to {log.worker} on connection {event.connection}"
            seen.add(came)


def reordered(logs: Sequence[Log]) -> Iterator[str]:
    consumers = defaultdict(list)
    for log in logs:
        if log.role == "consumer":
            consumers[log.queue].append(log)
    for queue, alone in consumers.items():
        if len(alone) > 1:
            continue
        newest: dict[str, tuple[int, str]] = {}
        seen = set()
        for event in alone[0].events:
            if event.kind != "recv" or event.message in seen:
                continue
            seen.add(event.message)
            producer, _, serial = event.message.rpartition("-")
            if producer in newest and int(serial) < newest[producer][0]:
                yield f"{queue}: {event.message} came at {event.time_us}, after {newest[producer][1]}"
            else:
                newest[producer] = (int(serial), event.message)


def _work(logs: Sequence[Log]) -> Iterator[ConfirmedRequest]:
    for log in logs:
        served: dict[int, tuple[str, int]] = {}
        invoked: dict[tuple[int, str], int] = {}
        for event in log.events:
            if event.kind == "open":
                port, _, epoch = event.detail.partition("/")
                served[event.connection] = (port, int(epoch or 0))
            elif event.kind in ("send", "ack"):
                invoked[event.connection, event.message] = event.time_us
            elif event.kind in ("sent", "acked"):
                start_us = invoked[event.connection, event.message]
                yield ConfirmedRequest(
                    *served[event.connection], (log.worker, event.connection), start_us, event.time_us
                )


def two_masters(logs: Sequence[Log]) -> Iterator[str]:
    work = [item for item in _work(logs) if item.connection[1]]
    yield from _stale_epochs([item for item in work if item.epoch])
    yield from _intruders(logs, [item for item in work if not item.epoch])


def _stale_epochs(work: Sequence[ConfirmedRequest]) -> Iterator[str]:
    owners: dict[int, str] = {}
    for item in work:
        if owners.setdefault(item.epoch, item.broker) != item.broker:
            yield f"epoch {item.epoch} was served by broker {owners[item.epoch]} and by {item.broker}"
            owners[item.epoch] = item.broker
    by_end = sorted(work, key=lambda item: item.confirmed_us)
    newest: ConfirmedRequest | None = None
    position = 0
    for item in sorted(work, key=lambda item: item.invoked_us):
        while position < len(by_end) and by_end[position].confirmed_us < item.invoked_us:
            if newest is None or by_end[position].epoch > newest.epoch:
                newest = by_end[position]
            position += 1
        if newest is not None and newest.epoch > item.epoch:
            yield (
                f"broker {item.broker} confirmed in epoch {item.epoch} what was asked at {item.invoked_us}; "
                f"broker {newest.broker} had confirmed something in epoch {newest.epoch} at {newest.confirmed_us}"
            )


def _intruders(logs: Sequence[Log], work: Sequence[ConfirmedRequest]) -> Iterator[str]:
    """A connection lasts no longer than the mastership of its broker, so nobody else may work in the midst of one.

    For each connection: is there work of another broker that began after the connection was opened, and was confirmed
    before something began that this connection then got confirmed?
    """
    opened = {(log.worker, event.connection): event.time_us for log, event in _events(logs, "open")}
    last: dict[tuple[str, int], ConfirmedRequest] = {}
    for item in work:
        if item.connection not in last or item.invoked_us > last[item.connection].invoked_us:
            last[item.connection] = item
    for broker in {item.broker for item in work}:
        others = sorted((item for item in work if item.broker != broker), key=lambda item: item.invoked_us)
        starts = [item.invoked_us for item in others]
        earliest = others[:]  # earliest[i] = of others[i:] the one that was confirmed first
        for index in range(len(others) - 2, -1, -1):
            if earliest[index + 1].confirmed_us < earliest[index].confirmed_us:
                earliest[index] = earliest[index + 1]
        for connection, mine in last.items():
            index = bisect.bisect_right(starts, opened[connection])
            if mine.broker == broker and index < len(others) and earliest[index].confirmed_us < mine.invoked_us:
                other = earliest[index]
                yield (
                    f"broker {broker} served connection {connection} from {opened[connection]} and confirmed what "
                    f"was asked at {mine.invoked_us}; broker {other.broker} confirmed at {other.confirmed_us} what "
                    f"was asked at {other.invoked_us}"
                )
