"""What can be said of a store without being a broker on it. Invariant: reads only, takes no lock, wakes nobody."""

from __future__ import annotations

import os
from dataclasses import dataclass

from amq.lock.document import field
from amq.lock.epoch import Epoch, read_newest_epoch
from amq.lock.presence import MASTER, BrokerPresence, read_presence
from amq.lock.shared_file import HEARTBEAT_OFFSET, LOCK_FILE, RELEASE_OFFSET, read_record
from amq.vfs import Vfs


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store as seen now.

    lock               "held", "free" or "missing"
    epoch              the newest one: its owner is or was the last master; None = never used
    released           the owner of `epoch` handed over cleanly: nobody need wait for its lease
    heartbeat_wall_ms  the last heartbeat, by the clock of the host that wrote it; None = none
    brokers            all that run now, master and slaves
    """

    lock: str
    epoch: Epoch | None
    released: bool
    heartbeat_wall_ms: int | None
    brokers: list[BrokerPresence]

    @property
    def master(self) -> BrokerPresence | None:
        """The running broker that owns the newest epoch and says that it serves, if the lock is held and it did not
        release the store."""
        broker = self._owner_of_epoch()
        return broker if broker is not None and broker.role == MASTER else None

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

    def _owner_of_epoch(self) -> BrokerPresence | None:
        if self.lock != "held" or self.epoch is None or self.released:
            return None
        uuid = self.epoch.owner.uuid
        return next((broker for broker in self.brokers if broker.owner is not None and broker.owner.uuid == uuid), None)


def store_status(vfs: Vfs, store: str) -> StoreStatus:
    """Read the status of `store`. Raises CorruptError, NewerFormatError, OSError."""
    epoch = read_newest_epoch(vfs, store)
    path = os.path.join(store, LOCK_FILE)
    try:
        fd = vfs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return StoreStatus("missing", epoch, False, None, read_presence(vfs, store))
    try:
        lock = "held" if vfs.lock_held(fd) else "free"
    finally:
        vfs.close(fd)
    mark = read_record(vfs, path, "release", RELEASE_OFFSET)
    beat = read_record(vfs, path, "heartbeat", HEARTBEAT_OFFSET)
    released = (
        mark is not None
        and epoch is not None
        and (mark.get("epoch"), mark.get("uuid")) == (epoch.number, epoch.owner.uuid)
    )
    wall_ms = field(beat, "wall_ms", int, path) if beat is not None else None
    return StoreStatus(lock, epoch, released, wall_ms, read_presence(vfs, store))
