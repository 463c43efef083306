"""Replay: a new master reads the rest of the journal in a separate thread, while the lease thread keeps the lease.

So the lease depends neither on the size of a transaction nor on how long one piece of the journal takes to read. The
replay only reads the store, and only its own state changes. Spec: docs/master-slave.md, "From slave to master".

Invariant: two threads never use the slave at once. The lease thread waits for the end of the replay, whatever ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from amq.broker.state.state import State
from amq.config.store_options import StoreOptions
from amq.core.errors import OwnershipLostError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.journal.recovery import Recovered
from amq.node.following import Following, Progress
from amq.store.epoch import Epoch
from amq.store.lease import Lease

CHECK_S_MAX = 1.0  # between two checks, each of which also tells how far the replay is
# A call into the store that takes longer counts as hung. The checks can succeed meanwhile: they use other files.
CALL_S_MAX = 30.0


class _StoppedError(Exception):
    """The mastership is over: the replay ends at the next piece."""


class Replay:
    """One replay by `slave`. Used once."""

    def __init__(self, threads: Threads, clock: Clock, slave: Following) -> None:
        self._threads = threads
        self._clock = clock
        self._slave = slave
        self._over = threads.event()
        self._stopped = False
        self._progress = (0, 0, 0)
        self._found: tuple[State, Recovered] | None = None
        self._error: BaseException | None = None

    def read(self, config: StoreOptions, epoch: Epoch, lease: Lease, tell: Progress) -> tuple[State, Recovered]:
        """Read the journal that `epoch` has sealed; meanwhile check `lease` and `tell` how far it is, both in the
        calling thread. Raises OwnershipLostError, and what `Following.finish` raises.
        """
        thread = self._threads.start("amq-replay", lambda: self._run(config, epoch))
        try:
            self._keep(lease, tell)
        finally:
            self._stopped = True
            thread.join()  # where it hangs in the store the lease is over, and the watchdog replaces the process
        if self._error is not None:
            raise self._error
        assert self._found is not None
        tell(*self._progress)
        return self._found

    def _keep(self, lease: Lease, tell: Callable[[int, int, int], None]) -> None:
        """Check the lease until the replay is over."""
        calls, since = 0, self._clock.monotonic()
        while not self._over.wait(min(lease.period_s / 3, CHECK_S_MAX)):
            lease.check()
            tell(*self._progress)
            now = self._clock.monotonic()
            if calls != self._slave.calls or not calls % 2:
                calls, since = self._slave.calls, now
            elif now >= since + CALL_S_MAX:
                lease.revoke()
                raise OwnershipLostError(
                    f"reading the journal has hung in the store for {now - since:.0f} s: another broker may fare better"
                )

    def _run(self, config: StoreOptions, epoch: Epoch) -> None:
        try:
            self._found = self._slave.finish(config, epoch, self._note)
        except _StoppedError:
            pass  # `_keep` raises the reason
        except BaseException as error:  # noqa: BLE001 (raised again by `read`, in the lease thread)
            self._error = error
        finally:
            self._over.set()

    def _note(self, done: int, total: int, messages: int) -> None:
        self._progress = done, total, messages
        if self._stopped:
            raise _StoppedError
