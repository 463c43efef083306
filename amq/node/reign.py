"""Reign: one mastership beside its event loop. The lease thread keeps the lease, and the watchdog cuts the clients
off where that fails; the event loop serves them (`amq.node.mastership`).

These threads meet in `Loop` (the lease thread has the event loop do something), `Won` (the event loop serves that),
`Ending` (any thread says that the mastership is over), and the deadline of the lease. Nowhere else.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import structlog

from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, OwnershipLostError, TransportError
from amq.doors.threads import Event, Threads
from amq.journal.recovery import Recovered
from amq.node.candidacy import HandOver, Stop, Wait
from amq.node.mastership import Doors
from amq.store.lease import Lease, Verdict, Watchdog
from amq.store.locker import Term

FENCE_PATIENCE_S = 2.0  # how long the event loop may take to let go before the process is replaced
_GOING_ON = "lease had run out and was proved again: going on"
_log = structlog.get_logger("amq.service")


class Loop:
    """The event loop as other threads reach it, from `bind` on. They look three times a `period_s` how it is."""

    def __init__(self, threads: Threads, period_s: float) -> None:
        self._threads = threads
        self._look_s = period_s / 3
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """The loop that runs now is the one."""
        self._loop = asyncio.get_running_loop()

    def post(self, callback: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback, *args)

    def run(self, work: Coroutine[Any, Any, None], check: Callable[[], None] | None = None) -> None:
        """Run `work` on the loop and wait for it; `check()` meanwhile. Where that raises an AmqError, `work` ends."""
        assert self._loop is not None
        loop, done = self._loop, self._threads.event()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            tasks.append(loop.create_task(work))
            tasks[0].add_done_callback(lambda _task: done.set())

        loop.call_soon_threadsafe(begin)
        try:
            while not done.wait(self._look_s):
                if check is not None:
                    check()
        except AmqError:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            done.wait()
            raise
        tasks[0].result()


class Ending:
    """Why a mastership is over. Any thread tells it, which wakes the lease thread. The first error counts, else the
    first reason. With an error the broker stops, because no other one could do better.
    """

    def __init__(self, wake: Event) -> None:
        self._wake = wake
        self._reason: str | None = None
        self.error: AmqError | None = None

    def tell(self, reason: str, error: AmqError | None = None) -> None:
        if error is not None and self.error is None:
            self.error = error
        if self._reason is None:
            self._reason = reason
        self._wake.set()

    def check(self) -> None:
        """Raises the error, or OwnershipLostError, where the mastership is over."""
        if self.error is not None:
            raise self.error
        if self._reason is not None:
            raise OwnershipLostError(self._reason)


@dataclass(frozen=True, slots=True)
class Won:
    """The lease thread hands this over to the event loop, which serves it: a mastership, and the journal as read.
    `neighbours` = where clients find the others; `began` = when the lease began.
    """

    term: Term
    state: State
    recovered: Recovered
    neighbours: tuple[str, ...]
    began: float
    ending: Ending


class Role(Enum):
    STARTING = "starting"
    SLAVE = "slave"
    MASTER = "master"
    STOPPED = "stopped"


class Stage(Protocol):
    """A member on its event loop, as its other threads see it."""

    role: Role

    @property
    def config(self) -> BrokerConfig: ...

    def facts(self) -> dict[str, Any]:
        """Those of `amq.node.group.Facts` that the event loop knows."""
        ...

    def cut(self) -> None:
        """Shut every client's socket down. Called by the watchdog."""
        ...

    # The rest is called on the event loop.

    async def set_role(self, role: Role) -> None: ...
    def get_ready(self, state: State | None) -> None:
        """Make all that serves clients and depends on no term: the journal is being read into `state`. None = forget
        it."""
        ...

    async def open(self, won: Won) -> None:
        """Begin to serve, and open the transports. Raises StoreError, TransportError."""
        ...

    async def serve(self, won: Won) -> None: ...
    async def hand_over(self) -> None:
        """End in good order. Raises OwnershipLostError where that takes too long."""
        ...

    async def fence(self) -> None: ...
    def lease_renewed(self) -> None: ...
    def meet(self, neighbours: tuple[str, ...]) -> None:
        """Clients are to learn where the other brokers are."""
        ...

    def read_so_far(self, reading: dict[str, Any]) -> None:
        """The journal is being read."""
        ...


class Reign:
    """The mastership of `term`. `stopping` and `wake` are the member's; `hangs()` is called by the watchdog, where a
    thread hangs in the store.
    """

    def __init__(
        self,
        stage: Stage,
        loop: Loop,
        doors: Doors,
        term: Term,
        stopping: Event,
        wake: Event,
        hangs: Callable[[], None] | None,
    ) -> None:
        self.ending = Ending(wake)
        self._stage = stage
        self._loop = loop
        self._clock = doors.clock
        self._term = term
        self._lease = term.lease
        self._stopping = stopping
        self._wake = wake
        self._hangs = hangs
        self._period_s = stage.config.lock_keep_alive_period_s
        self._watched = doors.threads.event()  # the watchdog is not needed any more
        self._watchers = [doors.threads.start("amq-watchdog", self._watch)]
        if self._lease.has_voucher:
            self._watchers.append(doors.threads.start("amq-voucher", self._extend))

    def serve(
        self,
        read: Callable[[Lease], tuple[State, Recovered]],
        neighbours: Callable[[], tuple[str, ...]],
        served: Callable[[], None],
        decide: Callable[[], HandOver | Stop | Wait],
    ) -> HandOver | Stop | TransportError:
        """Read the journal, serve clients until `decide()` ends that, and let go of them. `served()` is called when the
        transports are open. Returns why it ended in good order, TransportError = the transports do not open. Raises the
        reason of any other end, after the clients were cut off.
        """
        began = self._clock.monotonic()
        end: HandOver | Stop | TransportError
        try:
            state, recovered = read(self._lease)
            if not (self._lease.has_voucher and self._lease.is_fresh):
                self._lease.check()
            won = Won(self._term, state, recovered, neighbours(), began, self.ending)
            try:
                self._run(self._stage.open(won))
            except TransportError as error:
                end = error
            else:
                served()
                self._run(self._stage.serve(won))
                end = self._keep(decide)
            self._run(self._stage.hand_over())
        except BaseException:
            self._lease.revoke()  # before anything that could hang
            self._loop.run(self._stage.fence())
            if self.ending.error is not None:
                raise self.ending.error from None  # whatever else went wrong
            raise
        self._watched.set()  # no client is served any more: that the lease ends now is not an alarm
        return end

    def fail(self, reason: str, error: AmqError) -> None:
        """Nothing is safe any more: confirm nothing, cut the clients off, end. Called in any thread."""
        self.ending.tell(reason, error)
        self._lease.revoke()
        self._stage.cut()

    def close(self) -> None:
        self._watched.set()
        for watcher in self._watchers:
            watcher.join()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` on the event loop, while the lease is kept alive."""
        self._loop.run(work, self._check)

    def _keep(self, decide: Callable[[], HandOver | Stop | Wait]) -> HandOver | Stop:
        """Check the lease three times a period, and look, decide, act, until this broker shall stop, or hands over."""
        check_at = -math.inf
        while True:
            now = self._clock.monotonic()
            if not self._stopping.is_set() and (now >= check_at or self._wake.is_set()):
                self._wake.clear()
                check_at = now + self._period_s / 3
                self._check()
            decision = decide()
            if not isinstance(decision, Wait):
                return decision
            self._wake.wait(max(0.0, min(decision.until, check_at) - self._clock.monotonic()))

    def _check(self) -> None:
        """Raises OwnershipLostError, or the error that ended the mastership."""
        self.ending.check()
        deadline = self._lease.deadline
        self._lease.check()
        self.ending.check()
        now = self._clock.monotonic()
        if now >= deadline:  # the event loop may have seen it expired
            if now >= self._lease.moved_from:
                _log.warning(_GOING_ON)
            self._loop.post(self._stage.lease_renewed)

    # -- the voucher thread -------------------------------------------------------------------------------------------

    def _extend(self) -> None:
        """Let the copies of the store prove the mastership where checks take long, or hang: what they read may be in a
        coordinator that is away."""
        while not self._watched.wait(self._period_s / 6):
            deadline = self._lease.deadline
            if self._clock.monotonic() < deadline - self._period_s / 2:
                continue
            try:
                extended = self._lease.extend()
            except OwnershipLostError as error:
                self.ending.tell(str(error))
                return
            if extended and self._clock.monotonic() >= deadline:
                _log.warning(_GOING_ON)
                self._loop.post(self._stage.lease_renewed)

    # -- the watchdog thread ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Never touches the store."""
        tick_s = self._period_s / 10
        watchdog = Watchdog(self._lease, self._clock, tick_s)
        verdict = Verdict.OK
        while not self._watched.wait(tick_s):
            before, verdict = verdict, watchdog.tick()
            if verdict is Verdict.SUSPENDED and before is Verdict.OK:
                _log.warning("lease has run out: nothing is confirmed until ownership is proved again")
            if verdict is Verdict.FENCE:
                break
        else:
            return
        _log.error("fencing: ownership could not be proved again in time, clients are cut off")
        self._stage.cut()
        self.ending.tell("ownership could not be proved again in time")
        if not self._watched.wait(FENCE_PATIENCE_S + self._period_s) and self._hangs is not None:
            self._hangs()
