"""Member: STARTING → SLAVE → MASTER → … → STOPPED. One broker of one store, from its start to its end.

Threads: the event loop owns all state of a mastership, and this class lives on it. The lease thread makes every call of
the lock component (`amq.node.contender`). The replay thread reads the journal before clients are served
(`amq.node.takeover`). Both may hang in the store. The watchdog thread never touches the store: when the lease stays
expired it cuts the clients off, even if all other threads are stuck. The journal thread is the master's.
`amq.node.reign` says where they meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any

import structlog

from amq.broker.event_log import log_events
from amq.broker.events import Events, JournalRead, RoleChanged
from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, OwnershipLostError
from amq.core.histogram import Histogram
from amq.doors.clock import Clock, SystemClock
from amq.doors.threads import JobThread, SystemThreads, Threads
from amq.node.catalogue import PROTOCOLS, ServedProtocol
from amq.node.contender import Contender
from amq.node.entrance import Entrance
from amq.node.following import Lag, Loading
from amq.node.group import Probe
from amq.node.mastership import ClosedPeers, Doors, MakeRunner, Mastership
from amq.node.reception import Shared
from amq.node.reign import Loop, Role, Won
from amq.security.credentials import Credentials
from amq.security.login import Authenticate
from amq.security.permissions import Permissions
from amq.store.host import Host, SystemHost
from amq.store.lease import Lease
from amq.store.open import open_store
from amq.store.port import Store
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.probe import refusals

__all__ = ["Hosting", "Member", "Role"]
SUBJECT_CHARS_MAX = 200  # of a certificate, as other brokers are told
_log = structlog.get_logger("amq.service")


@dataclass(frozen=True, slots=True)
class Hosting:
    """The things that the process gives to each of its members. By default it has one member, and nothing to give.

    replace_process  called by the watchdog of the member, when a thread hangs in the store
    loading          surrounds the making of many objects that stay
    entrance         the limits of strangers, None = those of the member alone
    alone            nothing else is served by its event loop, which may thus wait for a quick disk
    credentials      of TLS, None = no transport has any
    permissions      those in force when the member starts
    """

    replace_process: Callable[[], None] | None = None
    loading: Loading = nullcontext
    entrance: Entrance | None = None
    alone: bool = True
    credentials: Credentials | None = None
    permissions: Permissions | None = None


class Member:
    """One broker on one store. Several may live in one process, on different stores: it never touches the process,
    which gives it what is in `hosting`. Tests replace the doors.

    `failure` is why it stopped by itself, None while all is well. `events` tells, on the event loop, what happens here,
    in all masterships.
    """

    def __init__(
        self,
        config: BrokerConfig,
        authenticate: Authenticate,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        host: Host | None = None,
        entropy: Random | None = None,
        threads: Threads | None = None,
        make_runner: MakeRunner | None = None,
        probe: Probe | None = refusals,
        protocols: Sequence[ServedProtocol] = PROTOCOLS,
        peers: Callable[..., ClosedPeers] | None = None,
        merges: Callable[..., ClosedPeers] | None = None,
        hosting: Hosting = Hosting(),
    ) -> None:
        self.config = config
        self.role = Role.STARTING
        self.failure: AmqError | None = None
        self.master: Mastership | None = None
        self.lease: Lease | None = None  # of the latest mastership that was to serve
        self.takeovers = Histogram()  # with the wait for the lease of the master before, until clients are served
        self.management = ""  # path of the socket where operators reach this process, set before `start`
        self.manager: Callable[[], asyncio.Protocol] | None = None  # of those who manage it through its link port
        self.console: Callable[[], str] = lambda: ""  # URL of the console of this broker, "" = unknown
        self.permissions = hosting.permissions
        self.events = Events()
        log_events(self.events)
        clock, threads = clock or SystemClock(), threads or SystemThreads()
        self._doors = Doors(
            store or open_store(config.store, config.locker),
            clock,
            host or SystemHost(),
            threads,
            entropy or SystemRandom(),
            make_runner or (lambda post: JobThread(threads, post)),
            peers,
            merges,
        )
        entrance = hosting.entrance or Entrance(clock, lambda: self.config)
        self._shared = Shared(
            self.events,
            entrance,
            authenticate,
            hosting.credentials,
            protocols,
            hosting.alone,
            lambda: self.manager,
        )
        self._loop = Loop(threads, config.lock_keep_alive_period_s)
        self._contender = Contender(self, self._loop, self._doors, probe, hosting.loading, hosting.replace_process)
        self._next: Mastership | None = None  # made ahead of time
        self._role_changed = asyncio.Condition()

    # -- the outside, on the event loop -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to compete for the store. Returns at once; see `wait_for`."""
        self._loop.bind()
        self._doors.threads.start("amq-lease", self._compete)

    def _compete(self) -> None:
        """The lease thread."""
        self.failure = self._contender.run()
        self._loop.run(self.set_role(Role.STOPPED))

    async def wait_for(self, *roles: Role) -> Role:
        """Wait until the broker has one of `roles` (or has stopped)."""
        async with self._role_changed:
            await self._role_changed.wait_for(lambda: self.role in roles or self.role is Role.STOPPED)
        return self.role

    async def stop(self) -> None:
        """Hand over cleanly: commit what came in, release the store so that a slave takes over at once."""
        self._contender.stop()
        await self.wait_for(Role.STOPPED)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take over options that may change while the broker runs."""
        self.config = config
        self._contender.reconfigure(config)
        if self.master is not None:
            self.master.reconfigure(config)
        elif self._next is not None:
            self.get_ready(self._next.broker.state)

    def thread_failed(self, name: str) -> None:
        """A thread of this member has failed by a bug: it confirms nothing more, and stops. Called in any thread."""
        self._contender.thread_failed(name)

    @property
    def lease_left_s(self) -> float | None:
        """For how long this master may still confirm without a new proof; None = it is not the master."""
        if self.master is None or self.lease is None:
            return None
        return max(0.0, self.lease.deadline - self._doors.clock.monotonic())

    @property
    def door(self) -> Doorkeeper:
        """Where strangers are counted, of all masterships and of all members of the process."""
        return self._shared.entrance.door

    @property
    def lag(self) -> Lag:
        """How far this broker has followed as a slave."""
        return self._contender.following.lag()

    @property
    def not_ready(self) -> str:
        """Why this slave could not take over now, "" = it could."""
        return self._contender.not_ready

    def permit(self, permissions: Permissions | None) -> None:
        """Take over the rights of users, also of those who are served."""
        self.permissions = permissions
        if self.master is not None:
            self.master.permit(permissions)
        elif self._next is not None:
            self.get_ready(self._next.broker.state)

    # -- the stage, for the other threads -----------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {"management": self.management, "console": self.console()}
        credentials, master = self._shared.credentials, self.master
        shown = credentials.shown if credentials is not None else None
        if shown is not None:
            found["certificate"] = {"subject": shown.subject[:SUBJECT_CHARS_MAX], "not_after_s": shown.not_after_s}
        if master is not None:
            found |= {"urls": tuple(master.urls), "store_full": master.full, "link": master.link}
            if (homes := master.broker.homes) is not None:
                late = {"outbox": master.broker.outbox.facts, "doubt": master.broker.spanning.facts}
                found[homes.fact] = {**homes.facts, **{name: what for name, what in late.items() if what}}
        return found

    def cut(self) -> None:
        master = self.master
        if master is not None:
            master.cut()

    async def set_role(self, role: Role) -> None:
        if role is self.role:
            return
        if role is Role.STOPPED:
            self.get_ready(None)
        before, self.role = self.role, role
        _log.info("role", role=role.value, before=before.value)
        self.events.tell(RoleChanged(role.value))
        async with self._role_changed:
            self._role_changed.notify_all()

    def get_ready(self, state: State | None) -> None:
        if self._next is not None:
            self._next.fence()
        self._next = self._made_for(state) if state is not None else None

    def _made_for(self, state: State) -> Mastership:
        name = self.config.name or self._doors.host.name()
        return Mastership(self.config, self._doors, self._shared, state, self.permissions, name)

    async def open(self, won: Won) -> None:
        self.lease = won.term.lease
        ready, self._next = self._next, None
        if ready is not None and ready.broker.state is not won.state:  # the journal was read anew
            ready.fence()
            ready = None
        self.master = ready = ready or self._made_for(won.state)
        ready.begin(won.term.epoch, won.recovered, self.lease.valid, won.ending.tell)
        await ready.listen(won.neighbours)

    async def serve(self, won: Won) -> None:
        assert self.master is not None
        epoch, waited_s = won.term.epoch, won.term.waited_s
        self.takeovers.add(waited_s + self._doors.clock.monotonic() - won.began)
        _log.info(
            "master: serving clients",
            epoch=epoch.number,
            reason=epoch.reason,
            waited_s=round(waited_s, 3),
            urls=self.master.urls,
        )
        await self.set_role(Role.MASTER)

    async def hand_over(self) -> None:
        assert self.master is not None
        if not await self.master.stop():
            raise OwnershipLostError("the journal did not finish in time to hand over in good order")
        self.master = None

    async def fence(self) -> None:
        master, self.master = self.master, None
        if master is not None:
            master.fence()

    def lease_renewed(self) -> None:
        if self.master is not None:
            self.master.lease_renewed()

    def meet(self, neighbours: tuple[str, ...]) -> None:
        if self.master is not None:
            self.master.meet(neighbours)

    def read_so_far(self, reading: dict[str, Any]) -> None:
        self.events.tell(
            JournalRead(reading["read_bytes"], reading["of_bytes"], reading["messages"], reading["left_s"])
        )
