"""Judges a history: pure, no I/O. Invariant: an empty answer means that every promise of docs/master-slave.md was kept
as far as the clients of this run could see; each finding names the promise and the facts that break it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from lab.history import AckBegun, Acked, Closed, Delivered, History, Opened, Sent, Served, StoreFacts

SHOWN_MAX = 5  # findings of one kind that are spelled out


def check(history: History) -> list[str]:
    """What is wrong; empty = nothing."""
    return [
        *_some(nothing_lost(history), "confirmed messages lost"),
        *_some(no_ack_undone(history), "confirmed acknowledgements undone"),
        *_some(one_master(history), "signs of two masters"),
        *check_store(history.store),
    ]


def check_store(store: StoreFacts) -> list[str]:
    """What is wrong in a store; empty = nothing."""
    code, said = store.journal_check
    journal = [f"amq journal check: exit code {code}: {said.strip()}"] if code else []
    return [*epochs_consistent(store), *journal]


def nothing_lost(history: History) -> Iterator[str]:
    """A confirmed persistent message was delivered, and its acknowledgement confirmed or at least asked for.

    "Delivered" alone proves nothing: a message that a consumer had and did not acknowledge must come again.
    """
    acked = {event.message for event in history.of(Acked)}
    asked = {event.message for event in history.of(AckBegun)}
    delivered = {event.message for event in history.of(Delivered)}
    for sent in history.of(Sent):
        if sent.persistent and sent.message not in acked and sent.message not in asked:
            fate = "delivered, never acknowledged, and gone" if sent.message in delivered else "never delivered"
            yield f"{sent.message}, confirmed by {sent.host} at {sent.at_s:.2f} s: {fate}"


def no_ack_undone(history: History) -> Iterator[str]:
    """After the confirmation of its acknowledgement a message is not delivered again."""
    acked: dict[str, Acked] = {}
    told: list[Acked | Delivered] = [*history.of(Acked), *history.of(Delivered)]
    for event in sorted(told, key=lambda event: event.at_s):
        if isinstance(event, Acked):
            acked.setdefault(event.message, event)
        elif event.message in acked:
            before = acked[event.message]
            yield (
                f"{event.message}, acknowledged at {before.at_s:.2f} s ({before.host}), delivered again by "
                f"{event.host or 'a broker'} at {event.at_s:.2f} s"
            )


def one_master(history: History) -> Iterator[str]:
    """One host for each epoch; and what was sent after a newer master was seen to serve is neither confirmed nor
    delivered by an older one.

    What was sent before may be confirmed late: it was durable in time, or else `nothing_lost` finds it.
    """
    owners: dict[int, set[str]] = defaultdict(set)
    first: dict[int, float] = {}
    masters: list[Served | Opened] = [*history.of(Served), *history.of(Opened)]
    for seen in masters:
        owners[seen.epoch].add(seen.host)
        first[seen.epoch] = min(seen.at_s, first.get(seen.epoch, seen.at_s))
    for epoch, hosts in sorted(owners.items()):
        if len(hosts) > 1:
            yield f"epoch {epoch} was served by {' and '.join(sorted(hosts))}"
    began = {sent.message: sent.began_s for sent in history.of(Sent)}
    told: list[Sent | Delivered] = [*history.of(Sent), *history.of(Delivered)]
    for event in told:
        sent_s = began.get(event.message)
        newer = [epoch for epoch in first if epoch > event.epoch > 0]
        if sent_s is None or not newer:
            continue
        served_s, epoch = min((first[epoch], epoch) for epoch in newer)
        if sent_s > served_s:
            what = "confirmed" if isinstance(event, Sent) else "delivered"
            yield (
                f"{event.message}, sent at {sent_s:.2f} s, {what} by {event.host} in epoch {event.epoch} at "
                f"{event.at_s:.2f} s; epoch {epoch} served since {served_s:.2f} s"
            )


def epochs_consistent(store: StoreFacts) -> Iterator[str]:
    """Numbers go up by one, and no epoch seals a length that an older epoch sealed otherwise."""
    numbers = [int(epoch["number"]) for epoch in store.epochs]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        yield f"epochs/ holds the numbers {numbers}: not one after the other"
    sealed: dict[str, tuple[int, int]] = {}
    for epoch in store.epochs:
        for name, length in epoch["sealed"].items():
            by, before = sealed.setdefault(name, (epoch["number"], length))
            if before != length:
                yield f"{name} was sealed at {before} by epoch {by} and at {length} by epoch {epoch['number']}"


def last_confirmed_s(history: History, epoch: int) -> float | None:
    """When the master of `epoch` last confirmed anything to a client that knew the epoch; None = never."""
    return max((sent.at_s for sent in history.of(Sent) if sent.epoch == epoch), default=None)


def confirmed_of_s(history: History, epoch: int, since_s: float) -> float | None:
    """When the master of `epoch` last confirmed a message that was sent after `since_s`; None = never."""
    sent = (sent for sent in history.of(Sent) if sent.epoch == epoch and sent.began_s > since_s)
    return max((each.at_s for each in sent), default=None)


def longest_pause_s(history: History, since_s: float) -> float:
    """The longest time after `since_s` in which no message of the producers was confirmed, up to the last one."""
    return _longest_s(since_s, (sent.at_s for sent in history.of(Sent) if sent.epoch == 0))


def pause_of_s(history: History, client: str, since_s: float) -> float | None:
    """The same of one producer alone; None = no message of it was ever confirmed."""
    times = [sent.at_s for sent in history.of(Sent) if sent.message.startswith(f"{client}-")]
    return _longest_s(since_s, times) if times else None


def _longest_s(since_s: float, times: Iterable[float]) -> float:
    later = sorted(at_s for at_s in times if at_s > since_s)
    return max((after - before for before, after in zip([since_s, *later], later, strict=False)), default=0.0)


def closed_s(history: History, epoch: int) -> float | None:
    """When the last probe connection to the master of `epoch` was closed by it; None = one is still open."""
    opened = sum(event.epoch == epoch for event in history.of(Opened))
    ends = [event.at_s for event in history.of(Closed) if event.epoch == epoch]
    return max(ends, default=None) if len(ends) == opened else None


def _some(findings: Iterator[str], what: str) -> Iterator[str]:
    found = list(findings)
    for finding in found[:SHOWN_MAX]:
        yield f"{what}: {finding}"
    if len(found) > SHOWN_MAX:
        yield f"{what}: {len(found) - SHOWN_MAX} more"
