"""Takeover: what a broker does with the journal between the lock and its clients: it seals it, and reads what is left.

Sealing is part of the takeover of the lock, in the lease thread. The reading has a thread of its own, while the lease
thread keeps the lease: so the lease depends neither on the size of a transaction nor on how long one piece of the
journal takes to read. A replay only reads the store, and only its own state changes. Spec: docs/master-slave.md, "From
slave to master".

Invariant: two threads never use what was followed at once. The lease thread waits for the end of the replay, whatever
ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from amq.broker.state.state import State
from amq.config.store_options import StoreOptions
from amq.core.errors import CorruptError, OwnershipLostError, StoreError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.journal.recovery import Recovered, lock_segments, seal
from amq.node.following import Following, Progress
from amq.node.mastership import Doors
from amq.store.epoch import Epoch
from amq.store.lease import Lease
from amq.store.segment_log import Held

CHECK_S_MAX = 1.0  # between two checks, each of which also tells how far the replay is
# A call into the store that takes longer counts as hung. The checks can succeed meanwhile: they use other files.
CALL_S_MAX = 30.0
TELL_AFTER_S = 1.0  # progress is logged after so long, and then as often
Tell = Callable[[dict[str, Any]], None]
_log = structlog.get_logger("amq.service")


class Takeover:
    """One takeover. `tell(reading)` is called now and then, in the lease thread, with what
    others are told: bytes read, bytes to read, messages, seconds left.
    """

    def __init__(self, doors: Doors, following: Following, tell: Tell) -> None:
        self._doors = doors
        self._following = following
        self._tell = tell
        self._held: list[Held] = []  # old segments, to which nobody else shall write

    def seal(self, previous: Epoch | None, sign: Callable[[], None]) -> dict[str, int]:
        """`sign()` gives a sign of life: others take a candidate that gives none for one that hangs."""
        log, tell = self._doors.store.log, self._teller()

        def progress(done: int, total: int, messages: int) -> None:
            sign()
            tell(done, total, messages)

        number, known = (previous.number, previous.sealed) if previous is not None else (0, {})
        followed = self._following.followed(previous, progress) if previous else None
        self._held = lock_segments(log, sign)
        if followed is not None:
            try:
                return seal(log, number, known, followed, sign)
            except CorruptError as error:  # the belief of a slave is not a reason to call a store damaged
                _log.warning("the journal as followed cannot be used: measuring all of it", reason=str(error))
        return seal(log, number, known, sign=sign)

    def read(self, config: StoreOptions, lease: Lease, epoch: Epoch) -> tuple[State, Recovered]:
        """Read the journal of `epoch` into a new state; `lease` is kept alive meanwhile. Raises AmqError, OSError."""
        clock = self._doors.clock
        started = clock.monotonic()
        try:
            replay = Replay(self._doors.threads, clock, self._following)
            state, recovered = replay.read(config, epoch, lease, self._teller())
        except StoreError:
            lease.check()  # somebody who overtook us deletes segments: that is not damage but our loss
            raise
        _log.info(
            "journal read",
            records=recovered.records,
            read_bytes=recovered.tail_bytes,
            followed_bytes=recovered.read_bytes - recovered.tail_bytes,
            messages=state.stored,
            seconds=round(clock.monotonic() - started, 3),
        )
        return state, recovered

    def close(self) -> None:
        """Let go of old segments."""
        held, self._held = self._held, []
        for segment in held:
            segment.close()

    def _teller(self) -> Progress:
        """For the lease thread to call now and then: reports how far the reading is."""
        clock = self._doors.clock
        started = clock.monotonic()
        next_line = started + TELL_AFTER_S

        def tell(done: int, total: int, messages: int) -> None:
            nonlocal next_line
            now = clock.monotonic()
            if not done or now < started + TELL_AFTER_S:
                return
            left_s = round((now - started) * (total - done) / done, 1)
            reading = {"read_bytes": done, "of_bytes": total, "messages": messages, "left_s": left_s}
            if now >= next_line:
                next_line = now + TELL_AFTER_S
                _log.info("reading the journal", **reading)
            self._tell(reading)

        return tell


class _StoppedError(Exception):
    """The mastership is over: the replay ends at the next piece."""


class Replay:
    """One replay of what `following` has begun to read. Used once."""

    def __init__(self, threads: Threads, clock: Clock, following: Following) -> None:
        self._threads = threads
        self._clock = clock
        self._following = following
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
            if calls != self._following.calls or not calls % 2:
                calls, since = self._following.calls, now
            elif now >= since + CALL_S_MAX:
                lease.revoke()
                raise OwnershipLostError(
                    f"reading the journal has hung in the store for {now - since:.0f} s: another broker may fare better"
                )

    def _run(self, config: StoreOptions, epoch: Epoch) -> None:
        try:
            self._found = self._following.finish(config, epoch, self._note)
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
