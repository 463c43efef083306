"""The state of a store, as seen without being a broker on it. Invariant: reads only, takes no lock, wakes nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from amq.core.errors import CorruptError
from amq.doors.clock import Clock
from amq.store.copies import CopiesNow
from amq.store.document import field
from amq.store.election import HEARTBEAT, RELEASE, Election
from amq.store.epoch import Epoch
from amq.store.port import Store, StoreCopies
from amq.store.presence import MASTER, READS_MAX, BrokerPresence, read_gone, read_presence

WATCH_S_MAX = 5.0  # how long `silence` watches for a heartbeat at most
WATCH_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store as seen now.

    lock               "held", "free" or "missing"
    epoch              the newest one: its owner is or was the last master; None = never used
    released           the owner of `epoch` handed over cleanly: nobody need wait for its lease
    heartbeat_wall_ms  the last heartbeat, by the clock of the host that wrote it; None = none
    brokers            all that run now, master and slaves
    heartbeat          which one that was: uuid of its writer and its count; None = none
    gone               brokers that have run on the store and do not run now
    copies             of a replicated store; None = the store is not made of copies
    """

    lock: str
    epoch: Epoch | None
    released: bool
    heartbeat_wall_ms: int | None
    brokers: list[BrokerPresence]
    heartbeat: tuple[str, int] | None = None
    gone: Sequence[BrokerPresence] = ()
    copies: StoreCopies | None = None

    @property
    def last_sign_wall_ms(self) -> int | None:
        """When the owner of the newest epoch was last known to work, by its own clock: its last heartbeat, or the
        beginning of its epoch. None = there is no epoch."""
        if self.epoch is None:
            return None
        own = self.heartbeat is not None and self.heartbeat[0] == self.epoch.owner.uuid
        began = self.epoch.started_wall_ms
        return max(began, self.heartbeat_wall_ms) if own and self.heartbeat_wall_ms is not None else began

    @property
    def master(self) -> BrokerPresence | None:
        """The running broker that owns the newest epoch and says that it serves, if the lock is held and it did not
        release the store."""
        broker = self._owner_of_epoch()
        return broker if broker is not None and broker.role == MASTER else None

    @property
    def copies_seen(self) -> CopiesNow | None:
        """How the master sees the copies of a replicated store, a few seconds ago; None = it does not say."""
        return CopiesNow.from_json(self.master.details.get("copies")) if self.master is not None else None

    @property
    def successor(self) -> BrokerPresence | None:
        """The broker that is taking over, as far as is known: it owns the newest epoch, or reads the journal."""
        if self.lock != "held" or self.master is not None:
            return None
        reading = (broker for broker in self.brokers if "reading" in broker.details)
        return self._owner_of_epoch() or next(reading, None)

    @property
    def slaves(self) -> list[BrokerPresence]:
        others = (self.master, self.successor)
        return [broker for broker in self.brokers if broker not in others]

    def last_seen_wall_ms(self, broker: BrokerPresence) -> int | None:
        """When a broker that is `gone` was last known to run, by its own clock; None = it never said."""
        followed = broker.details.get("followed")
        seen = [followed.get("caught_up_wall_ms")] if isinstance(followed, dict) else []
        if broker.owner is not None and self.heartbeat is not None and self.heartbeat[0] == broker.owner.uuid:
            seen.append(self.heartbeat_wall_ms)
        if broker.owner is not None and self.epoch is not None and self.epoch.owner.uuid == broker.owner.uuid:
            seen.append(self.epoch.started_wall_ms)
        return max((each for each in seen if isinstance(each, int) and each), default=None)

    def too_old(self, broker: BrokerPresence) -> bool:
        """Whether `broker` cannot read what the last master wrote, so that it never takes over."""
        return self.epoch is not None and broker.store_version < self.epoch.format

    def _owner_of_epoch(self) -> BrokerPresence | None:
        if self.lock != "held" or self.epoch is None or self.released:
            return None
        uuid = self.epoch.owner.uuid
        return next((broker for broker in self.brokers if broker.owner is not None and broker.owner.uuid == uuid), None)


def store_status(store: Store) -> StoreStatus:
    """Read the status of `store`. Raises CorruptError, NewerFormatError, OSError."""
    epoch, election = store.epochs.newest(), store.election
    try:
        lock = "held" if election.is_held() else "free"
    except FileNotFoundError:
        return StoreStatus("missing", epoch, False, None, read_presence(store.board), gone=read_gone(store.board))
    mark, beat = _record(election, RELEASE), _record(election, HEARTBEAT)
    released = (
        mark is not None
        and epoch is not None
        and (mark.get("epoch"), mark.get("uuid")) == (epoch.number, epoch.owner.uuid)
    )
    wall_ms = field(beat, "wall_ms", int, HEARTBEAT) if beat is not None else None
    running, gone = read_presence(store.board), read_gone(store.board)
    return StoreStatus(lock, epoch, released, wall_ms, running, _beat(beat), gone, store.copies())


def _record(election: Election, kind: str) -> Mapping[str, Any] | None:
    """The last record that was written through the lock. It may be being written just now: then again."""
    for _ in range(READS_MAX - 1):
        with suppress(CorruptError):
            return election.read(kind)
    return election.read(kind)


def _beat(body: Mapping[str, Any] | None) -> tuple[str, int] | None:
    if body is None:
        return None
    owner = field(body, "owner", dict, HEARTBEAT)
    return field(owner, "uuid", str, HEARTBEAT), field(body, "count", int, HEARTBEAT)


def silence(election: Election, clock: Clock, seen: StoreStatus, wait: Callable[[float], object]) -> float | None:
    """For how many seconds the owner of the newest epoch has given no sign; None where it works, or no broker does.

    It writes a heartbeat three times a `lockKeepAlivePeriod`, so an age of less than a period is no silence. The age is
    the difference of two wall clocks, this host's and the owner's, which may differ. So where the age is greater, or
    negative, this function watches: one period, at most `WATCH_S_MAX`. A new heartbeat in that time proves that the
    owner works, whatever the clocks say. `wait(seconds)` sleeps. Raises CorruptError, NewerFormatError, OSError.
    """
    last_ms = seen.last_sign_wall_ms
    if seen.lock != "held" or seen.released or seen.epoch is None or last_ms is None:
        return None
    period_s = seen.epoch.owner.lock_keep_alive_period_s
    age_s = (clock.wall_ms() - last_ms) / 1000
    if 0 <= age_s <= period_s:
        return None
    began = clock.monotonic()
    while (watched_s := clock.monotonic() - began) < min(period_s, WATCH_S_MAX):
        wait(min(WATCH_STEP_S, period_s / 10))
        try:
            if _beat(election.read(HEARTBEAT)) != seen.heartbeat:
                return None
        except (CorruptError, FileNotFoundError):  # being written just now, or made anew: somebody works
            return None
    return max(age_s + watched_s, watched_s)
