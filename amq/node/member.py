"""Member: STARTING → SLAVE → MASTER → … → STOPPED. The one place that wires everything.

Threads: the event loop owns all state of a mastership. The lease thread makes every call of the lock component. The
replay thread reads the journal before clients are served (`amq.node.replay`). Both may hang in the store. The watchdog
thread never touches the store: when the lease stays expired it cuts the clients off, even if all other threads are
stuck. The journal thread is the master's (`amq.journal.writer`). They meet in the loop's `call_soon_threadsafe` and in
two events, nowhere else; what they hand over is `Won` (to the loop) and `End` (to the lease thread).

The lease thread looks, asks `amq.node.candidacy`, and does what that decides, as slave and as master.
"""

from __future__ import annotations

import asyncio
import errno
import math
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from enum import Enum
from random import Random, SystemRandom
from typing import Any

import structlog

from amq.broker.event_log import log_events
from amq.broker.events import Events, JournalRead, RoleChanged
from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, CorruptError, OwnershipLostError, StoreError, StoreFullError, TransportError
from amq.core.histogram import Histogram
from amq.doors.clock import Clock, SystemClock
from amq.doors.threads import Event, SystemThreads, Threads
from amq.journal.recovery import JOURNAL_DIRECTORY, Recovered, lock_segments, seal
from amq.journal.writer import JournalThread
from amq.node.candidacy import (
    Agree,
    Candidacy,
    Decision,
    HandOver,
    HoldBack,
    Input,
    Mark,
    Pause,
    Replace,
    Stop,
    TakeOver,
    Try,
    View,
    Wait,
)
from amq.node.catalogue import PROTOCOLS, ServedProtocol
from amq.node.entrance import Entrance
from amq.node.following import Following, Lag, Loading, Progress
from amq.node.group import MEET_S, Group, Probe
from amq.node.mastership import LISTEN_PATIENCE_S, MakeRunner, Mastership
from amq.node.replay import Replay
from amq.node.succession import Succession
from amq.security.credentials import Credentials
from amq.security.login import Authenticate
from amq.security.permissions import Permissions
from amq.store.epoch import Epoch
from amq.store.files.vfs import NotAFileError, Vfs, close_all
from amq.store.host import Host, Owner, SystemHost
from amq.store.lease import Lease, Verdict, Watchdog
from amq.store.locker import Locker, Term
from amq.store.open import open_board, open_election, open_vfs
from amq.store.presence import Presence
from amq.store.silence import Silence
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.probe import refusals

_CURES = {
    errno.EROFS: "mount it read-write",
    errno.EACCES: "give this broker's user read and write access to the store",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or raise the quota",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f; LimitFSIZE of systemd)",
}
HUNG_ON_SMB = "the master gives no sign of life, and SMB keeps the name of a lock file that is open: end its process"
TELL_AFTER_S = 1.0  # progress of a takeover is logged after so long, and then as often
SUBJECT_CHARS_MAX = 200  # of a certificate, as other brokers are told
FENCE_PATIENCE_S = 2.0  # how long the event loop may take to let go before the process is replaced
_log = structlog.get_logger("amq.service")


class Role(Enum):
    STARTING = "starting"
    SLAVE = "slave"
    MASTER = "master"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Won:
    """The lease thread hands this over to the event loop, which serves it: a mastership, and the journal as read.
    `began` = when the lease began.
    """

    term: Term
    state: State
    recovered: Recovered
    neighbours: tuple[str, ...]
    began: float


@dataclass(frozen=True, slots=True)
class End:
    """Any thread hands this over to the lease thread: the mastership is over. With `error` the broker stops, because no
    other broker could do better.
    """

    reason: str
    error: AmqError | None = None


class Member:
    """One broker on one store. Several may live in one process, on different stores: it never touches the process.

    Of the doors that it is given, these are the node's: `replace_process()` is called by its watchdog, when a thread
    hangs in the store; `loading()` surrounds the making of many objects that stay; `entrance` has the limits of
    strangers. `alone`: nothing else is served by its event loop, which may thus wait for a quick disk.

    `failure` is why it stopped by itself, None while all is well. `events` tells, on the event loop, what happens here,
    in all masterships.
    """

    def __init__(
        self,
        config: BrokerConfig,
        authenticate: Authenticate,
        *,
        vfs: Vfs | None = None,
        clock: Clock | None = None,
        host: Host | None = None,
        entropy: Random | None = None,
        threads: Threads | None = None,
        make_runner: MakeRunner | None = None,
        replace_process: Callable[[], None] | None = None,
        loading: Loading = nullcontext,
        entrance: Entrance | None = None,
        alone: bool = True,
        probe: Probe | None = refusals,
        protocols: Sequence[ServedProtocol] = PROTOCOLS,
        credentials: Credentials | None = None,
        permissions: Permissions | None = None,
    ) -> None:
        self.config = config
        self.role = Role.STARTING
        self.failure: AmqError | None = None
        self.master: Mastership | None = None
        self.lease: Lease | None = None  # of the latest mastership that was to serve; set by the event loop alone
        self.takeovers = Histogram()  # with the wait for the lease of the master before, until clients are served
        self.not_ready = "it has just started"  # why this slave could not take over now, "" = it could
        self.management = ""  # path of the socket where operators reach this process, set before `start`
        self.console: Callable[[], str] = lambda: ""  # URL of the console of this broker, "" = unknown
        self.events = Events()
        log_events(self.events)
        self._authenticate = authenticate
        self._vfs = vfs or open_vfs(config.store, config.locker)
        self._clock = clock or SystemClock()
        self._host = host or SystemHost()
        self._election = open_election(self._vfs, self._clock, self._host, config.store, (JOURNAL_DIRECTORY,))
        self._board = open_board(self._vfs, config.store)
        self._entropy = entropy or SystemRandom()
        self._threads = threads or SystemThreads()
        self._make_runner = make_runner or (lambda post: JournalThread(self._threads, post))
        self._replace_process = replace_process
        self._entrance = entrance or Entrance(self._clock, lambda: self.config)
        self._alone = alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = self._threads.event()
        self._wake = self._threads.event()  # the lease thread has something to look at: the lock file, a stop, an end
        self._ended: End | None = None  # why the present mastership is over
        self._slave = Following(self._vfs, self._clock, config, loading)
        self._held: list[int] = []  # descriptors that hold the locks of old segments
        self._presence: Presence | None = None
        self._probe = probe
        self._protocols = protocols
        self._credentials = credentials
        self.permissions = permissions
        self._candidacy = Candidacy(config.name or self._host.name(), config)  # of the lease thread
        self._group: Group | None = None
        self._succession: Succession | None = None
        self._role_changed = asyncio.Condition()

    # -- the outside, on the event loop -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to compete for the store. Returns at once; see `wait_for`."""
        self._loop = asyncio.get_running_loop()
        self._threads.start("amq-lease", self._compete)

    async def wait_for(self, *roles: Role) -> Role:
        """Wait until the broker has one of `roles` (or has stopped)."""
        async with self._role_changed:
            await self._role_changed.wait_for(lambda: self.role in roles or self.role is Role.STOPPED)
        return self.role

    async def stop(self) -> None:
        """Hand over cleanly: commit what came in, release the store so that a slave takes over at once."""
        self._stopping.set()
        self._wake.set()
        await self.wait_for(Role.STOPPED)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take over options that may change while the broker runs."""
        self.config = self._candidacy.config = config
        if self._group is not None:
            self._group.config = config
        if self.master is not None:
            self.master.reconfigure(config)

    def thread_failed(self, name: str) -> None:
        """A thread of this member has failed by a bug, so that nothing here is safe: confirm nothing more, cut the
        clients off, and stop. Called in any thread.
        """
        lease, master = self.lease, self.master
        self._end(f"the thread {name} failed", AmqError(f"the thread {name} failed", code="INTERNAL_ERROR"))
        if lease is not None:
            lease.revoke()
        if master is not None:
            master.cut()

    @property
    def lease_left_s(self) -> float | None:
        """For how long this master may still confirm without a new proof; None = it is not the master."""
        if self.master is None or self.lease is None:
            return None
        return max(0.0, self.lease.deadline - self._clock.monotonic())

    @property
    def door(self) -> Doorkeeper:
        """Where strangers are counted, of all masterships and of all members of the process."""
        return self._entrance.door

    @property
    def lag(self) -> Lag:
        """How far this broker has followed as a slave."""
        return self._slave.lag()

    def permit(self, permissions: Permissions | None) -> None:
        """Take over the rights of users, also of those who are served."""
        self.permissions = permissions
        if self.master is not None:
            self.master.permit(permissions)

    # -- the lease thread ---------------------------------------------------------------------------------------------

    def _compete(self) -> None:
        """Slave, master, slave again, until stopped. Everything here may hang in the store."""
        try:
            self._election.make()
            owner = self._owner()
            with self._election.watch(self._wake.set, self._threads, lambda: self.role is Role.SLAVE) as unwatched:
                if unwatched is not None:
                    _log.info("no file events here, polling alone", reason=str(unwatched))
                locker = self._election.locker(owner)
                group = self._group = Group(
                    self._board,
                    self._election,
                    self._clock,
                    self._host,
                    self._threads,
                    self.config,
                    owner.name,
                    self._probe,
                )
                succession = self._succession = Succession(
                    self._board, self._clock, self._entropy, owner, group, self._candidacy
                )
                succession.open()
                group.start()
                while not self._stopping.is_set():
                    try:
                        self._term(owner, locker, group, succession)
                    except (OSError, StoreFullError) as error:  # full: there may be room again
                        if self.role is Role.STARTING or isinstance(error, NotAFileError):
                            raise  # the store could never be used: a person must look
                        pause_s = self._failed()
                        _log.warning("store not usable now, trying again", reason=str(error), pause_s=pause_s)
                        self._stopping.wait(pause_s)
        except AmqError as error:
            self.failure = error
        except OSError as error:
            path = error.filename or self.config.store
            cure = _CURES.get(error.errno or 0, "the store cannot be used")
            self.failure = StoreError(f"{path}: {error.strerror or error}; {cure}")
        except BaseException as error:  # noqa: BLE001 (last resort of the thread: told, and the broker stops)
            _log.critical("the lease thread failed", exc_info=error)
            self.failure = AmqError(f"internal error: {error!r}", code="INTERNAL_ERROR")
        finally:
            if self._group is not None:
                self._group.stop()
            self._await(None, self._set_role(Role.STOPPED))

    def _view(self) -> View:
        return View(self._clock.monotonic(), stopping=self._stopping.is_set())

    def _failed(self) -> float:
        """Seconds to wait before the next try, after one that failed."""
        decision = self._candidacy.step(Input.FAILED, self._view())
        return decision.seconds if isinstance(decision, Pause) else 0.0

    def _owner(self) -> Owner:
        return Owner.make(
            self._host,
            name=self.config.name or self._host.name(),
            uuid=str(uuid.UUID(bytes=self._entropy.randbytes(16))),
            transport_urls=self.config.transports,
            lock_keep_alive_period_s=self.config.lock_keep_alive_period_s,
        )

    def _term(self, owner: Owner, locker: Locker, group: Group, succession: Succession) -> None:
        """Wait for the lock as a slave; if we get it, be the master until that ends."""
        presence = Presence.open(self._board, owner, facts=self._facts(group, succession))
        with closing(presence) as self._presence:
            if self.role is Role.STARTING:
                group.check_start(self._stopping.wait, LISTEN_PATIENCE_S)
            self._await(None, self._set_role(Role.SLAVE))
            try:
                if not self._wait_for_lock(locker, group, succession):
                    return
                _log.info("lock acquired, taking over", store=self.config.store)
                group.acquired()
                term = locker.take_over(
                    pause=self._stopping.wait, seal=lambda previous: self._seal(previous, locker.sign)
                )
                if term is not None:
                    self._serve(locker, term, group, succession)
                self._candidacy.step(Input.ENDED, self._view())
            except TransportError as error:
                decision = self._candidacy.step(Input.UNHEARD, view := self._view())
                assert isinstance(decision, HoldBack)
                group.failed(error, round(decision.until - view.now, 3))
            except OwnershipLostError as error:
                pause_s = self._failed()  # let a healthier broker have it
                _log.warning("mastership lost or refused: slave again", reason=error.description, pause_s=pause_s)
                self._stopping.wait(pause_s)
            finally:
                group.serving(False)
                held, self._held = self._held, []
                close_all(self._vfs, held)
                locker.abandon()

    def _wait_for_lock(self, locker: Locker, group: Group, succession: Succession) -> bool:
        """Look, decide, act: True with the lock; False when this broker shall stop."""
        waited = False
        silence = Silence(self._election.sign, self._clock, self.config.lock_keep_alive_period_s)
        while True:
            self._wake.clear()
            view = self._look(locker, group)
            decision = self._candidacy.step(Input.LOOK, view)
            if isinstance(decision, Try):
                decision = self._try(locker, silence, view)
            if isinstance(decision, Replace):
                decision = self._replace(locker, silence)
            succession.report()
            match decision:
                case TakeOver():
                    return True
                case Stop():
                    return False
                case Pause(seconds):
                    self._stopping.wait(seconds)
                    continue
                case HoldBack():
                    silence.reset()
            self._state_facts(group, succession)
            if not waited:
                waited = True
                if self.config.fail_if_locked:
                    raise AmqError(f"the store is locked by {locker.holder()}", code="STORE_LOCKED")
                _log.info("slave: waiting for the lock", store=self.config.store, holder=locker.holder())
            assert isinstance(decision, Wait | HoldBack)
            self._follow(decision.until, group, succession, silence)

    def _look(self, locker: Locker, group: Group) -> View:
        """Look at what decides whether this slave may try for the lock. Raises OSError."""
        if self._stopping.is_set():
            return self._view()
        listening, mark = group.listening(), Mark.of(locker.release_mark())
        return View(self._clock.monotonic(), mark=mark, listening=listening)

    def _try(self, locker: Locker, silence: Silence, view: View) -> Decision:
        """Ask for the lock; if another broker has it, look whether that one is silent. Raises StoreError, OSError."""
        if locker.try_acquire():
            view = replace(view, now=self._clock.monotonic(), mark=Mark.of(locker.release_mark()))
            decision = self._candidacy.step(Input.LOCKED, view)
            if isinstance(decision, HoldBack):
                locker.release()
            return decision
        timeout_s = self.config.hung_master_timeout_s
        silent = bool(timeout_s) and silence.look(timeout_s)
        return self._candidacy.step(Input.MISSED, replace(view, now=self._clock.monotonic(), silent=silent))

    def _replace(self, locker: Locker, silence: Silence) -> Decision:
        """Replace the lock file of a holder that is silent. Raises StoreError, OSError."""
        silent_s, replaced = silence.silent_s, False
        try:
            if locker.can_replace():
                _log.warning("the master gives no sign of life: replacing its lock file", silent_s=round(silent_s, 1))
                replaced = locker.replace(silent_s, silence.goes_on)
            else:
                _log.warning(HUNG_ON_SMB, silent_s=round(silent_s, 1), holder=locker.holder())
        finally:
            silence.reset()
        return self._candidacy.step(Input.LOCKED if replaced else Input.MISSED, self._view())

    def _state_facts(self, group: Group, succession: Succession) -> None:
        if self._presence is not None:
            self._presence.state(self._facts(group, succession))
            self._presence.keep(self._clock.monotonic())

    def _facts(self, group: Group, succession: Succession) -> dict[str, Any]:
        master = self.master
        common: dict[str, Any] = {
            "passive": self._candidacy.passive,
            "answer": succession.answer.to_json(),
            "management": self.management,
            "console": self.console(),
        }
        shown = self._credentials.shown if self._credentials is not None else None
        if shown is not None:
            common["certificate"] = {"subject": shown.subject[:SUBJECT_CHARS_MAX], "not_after_s": shown.not_after_s}
        if master is not None:
            return group.facts(urls=tuple(master.urls), store_full=master.full, **common)
        self.not_ready = self._not_ready(group)
        return group.facts(not_ready=self.not_ready, **common)

    def _not_ready(self, group: Group) -> str:
        """Why this slave could not take over soon and serve, "" = it could."""
        return group.why or self._slave.not_current()

    def _follow(self, until: float, group: Group, succession: Succession, silence: Silence) -> None:
        """Follow the journal, heed orders and watch the master until `until`, or until there is something to decide."""
        interval_s, timeout_s = self.config.slave_follow_interval_s, self.config.hung_master_timeout_s
        while (left_s := until - self._clock.monotonic()) > 0:
            more = bool(interval_s) and self._slave.follow()
            if interval_s and self._presence is not None:
                self._presence.tell(lambda: {"followed": asdict(self._slave.lag())}, self._clock.monotonic())
            decision = succession.heed(self._not_ready(group))
            if isinstance(decision, Stop):
                self._stopping.set()
                return
            if timeout_s and silence.sign is not None:
                if silence.look(timeout_s):
                    return
                left_s = min(left_s, silence.due_s(timeout_s))
            self._state_facts(group, succession)
            if isinstance(decision, Agree):
                return
            left_s = min(left_s, interval_s or left_s, self.config.lock_keep_alive_period_s / 3)
            if self._wake.wait(0 if more else left_s):
                self._candidacy.step(Input.WOKEN, self._view())
                return

    def _seal(self, previous: Epoch | None, sign: Callable[[], None]) -> dict[str, int]:
        """`sign()` gives a sign of life: others take a candidate that gives none for one that hangs."""
        tell = self._teller()

        def progress(done: int, total: int, messages: int) -> None:
            sign()
            tell(done, total, messages)

        number, known = (previous.number, previous.sealed) if previous is not None else (0, {})
        followed = self._slave.followed(previous, progress) if previous else None
        self._held = lock_segments(self._vfs, self.config.store, sign)
        if followed is not None:
            try:
                return seal(self._vfs, self.config.store, number, known, followed, sign)
            except CorruptError as error:  # the belief of a slave is not a reason to call a store damaged
                _log.warning("the journal as followed cannot be used: measuring all of it", reason=str(error))
        return seal(self._vfs, self.config.store, number, known, sign=sign)

    def _serve(self, locker: Locker, term: Term, group: Group, succession: Succession) -> None:
        """Replay, serve, keep the lease alive, until stopped, fenced or deposed. A broker that cannot open its
        transports hands over like one that was asked to stop, and raises TransportError.
        """
        lease, began = term.lease, self._clock.monotonic()
        self._ended = None
        unheard: TransportError | None = None
        to, failover = "", True
        succession.begins()
        watchdog_stop = self._threads.event()
        watchdog = self._threads.start("amq-watchdog", lambda: self._watch_lease(lease, watchdog_stop))
        try:
            state, recovered = self._replay(lease, term.epoch)
            lease.check()
            won = Won(term, state, recovered, group.neighbours(), began)
            try:
                self._await(lease, self._open_transports(won))
            except TransportError as error:
                unheard = error
            else:
                self._candidacy.step(Input.SERVED, self._view())
                group.serving(True)
                if self._presence is not None:
                    self._presence.update(Role.MASTER.value, self._facts(group, succession))
                self._await(lease, self._become_master(won))
                end = self._keep_lease(lease, group, succession)
                to = end.to if isinstance(end, HandOver) else ""
                failover = isinstance(end, HandOver) or self.config.failover_on_shutdown
            self._await(lease, self._hand_over())
        except BaseException:
            self._await(None, self._fence(lease))
            if (fatal := self._fatal()) is not None:
                raise fatal from None  # whatever else went wrong
            raise
        else:
            watchdog_stop.set()  # no client is served any more: that the lease ends now is not an alarm
            locker.release(to, failover)
            _log.info("store released", epoch=term.epoch.number, to=to, failover=failover)
            if unheard is not None:
                raise unheard
        finally:
            watchdog_stop.set()
            watchdog.join()

    def _replay(self, lease: Lease, epoch: Epoch) -> tuple[State, Recovered]:
        """Read the journal into a new state; the lease is kept alive meanwhile."""
        started = self._clock.monotonic()
        try:
            replay = Replay(self._threads, self._clock, self._slave)
            state, recovered = replay.read(self.config, epoch, lease, self._teller())
        except StoreError:
            lease.check()  # somebody who overtook us deletes segments: that is not damage but our loss
            raise
        _log.info(
            "journal read",
            records=recovered.records,
            read_bytes=recovered.tail_bytes,
            followed_bytes=recovered.read_bytes - recovered.tail_bytes,
            messages=state.stored,
            seconds=round(self._clock.monotonic() - started, 3),
        )
        return state, recovered

    def _teller(self) -> Progress:
        """For the lease thread to call now and then while the journal is read: reports how far the reading is."""
        started = self._clock.monotonic()
        next_line = started + TELL_AFTER_S

        def tell(done: int, total: int, messages: int) -> None:
            nonlocal next_line
            now = self._clock.monotonic()
            if not done or now < started + TELL_AFTER_S:
                return
            left_s = round((now - started) * (total - done) / done, 1)
            reading = {"read_bytes": done, "of_bytes": total, "messages": messages, "left_s": left_s}
            if now >= next_line:
                next_line = now + TELL_AFTER_S
                _log.info("reading the journal", **reading)
            if self._presence is not None and self._presence.tell(lambda: {"reading": reading}, now):
                self._post(self.events.tell, JournalRead(done, total, messages, left_s))

        return tell

    def _keep_lease(self, lease: Lease, group: Group, succession: Succession) -> Stop | HandOver:
        """Look, decide, act: check the lease three times a period until this broker shall stop, or hands over.
        OwnershipLostError when the mastership is over.
        """
        check_at = -math.inf
        met: tuple[str, ...] = ()
        while True:
            if self._stopping.is_set():
                decision = self._candidacy.step(Input.LOOK, self._view())
            else:
                if (now := self._clock.monotonic()) >= check_at or self._wake.is_set():
                    self._wake.clear()
                    check_at = now + self.config.lock_keep_alive_period_s / 3
                    self._check_lease(lease)
                decision = succession.decide()
                self._state_facts(group, succession)
                before, met = met, group.neighbours(MEET_S)
                if met != before:
                    self._post(self._meet, met)
            match decision:
                case HandOver():
                    return decision
                case Stop():
                    self._stopping.set()
                    return decision
                case Wait(until):
                    self._wake.wait(max(0.0, min(until, check_at) - self._clock.monotonic()))

    def _check_lease(self, lease: Lease) -> None:
        self._raise_if_ended()
        deadline = lease.deadline
        lease.check()
        self._raise_if_ended()
        if self._clock.monotonic() >= deadline:  # the event loop may have seen it expired
            _log.warning("lease had run out and was proved again: going on")
            self._post(self._lease_renewed)

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise self._ended.error or OwnershipLostError(self._ended.reason)

    def _await(self, lease: Lease | None, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` on the event loop and wait for it, while the lease is kept alive."""
        assert self._loop is not None
        loop, done = self._loop, self._threads.event()
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            tasks.append(loop.create_task(work))
            tasks[0].add_done_callback(lambda _task: done.set())

        loop.call_soon_threadsafe(begin)
        try:
            while not done.wait(self.config.lock_keep_alive_period_s / 3):
                if lease is not None:
                    self._check_lease(lease)
        except AmqError:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            done.wait()
            raise
        tasks[0].result()

    def _post(self, callback: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback, *args)

    def _fatal(self) -> AmqError | None:
        """An error for which this broker stops."""
        return self._ended.error if self._ended is not None else None

    def _end(self, reason: str, error: AmqError | None = None) -> None:
        """From any thread: this mastership is over, see `End`. The first error counts, else the first reason."""
        ended = self._ended
        if ended is None or (ended.error is None and error is not None):
            self._ended = End(reason, error)
        self._wake.set()

    # -- what the lease thread asks of the event loop -----------------------------------------------------------------

    async def _open_transports(self, won: Won) -> None:
        epoch, self.lease = won.term.epoch, won.term.lease
        self.master = Mastership(
            self.config,
            self._vfs,
            self._clock,
            epoch.owner.name,
            epoch.owner.host,
            epoch.number,
            won.state,
            won.recovered,
            self.lease.valid,
            self._authenticate,
            self._end,
            self._entropy,
            self._make_runner,
            self.events,
            self._entrance,
            self._alone,
            self._protocols,
            self._credentials,
            self.permissions,
        )
        await self.master.listen(won.neighbours)

    async def _become_master(self, won: Won) -> None:
        assert self.master is not None
        epoch, waited_s = won.term.epoch, won.term.waited_s
        self.takeovers.add(waited_s + self._clock.monotonic() - won.began)
        _log.info(
            "master: serving clients",
            epoch=epoch.number,
            reason=epoch.reason,
            waited_s=round(waited_s, 3),
            urls=self.master.urls,
        )
        await self._set_role(Role.MASTER)

    def _meet(self, neighbours: tuple[str, ...]) -> None:
        if self.master is not None:
            self.master.meet(neighbours)

    async def _hand_over(self) -> None:
        assert self.master is not None
        if not await self.master.stop():
            raise OwnershipLostError("the journal did not finish in time to hand over in good order")
        self.master = None

    async def _fence(self, lease: Lease) -> None:
        lease.revoke()  # before anything that could hang
        master, self.master = self.master, None
        if master is not None:
            master.fence()

    def _lease_renewed(self) -> None:
        if self.master is not None:
            self.master.lease_renewed()

    async def _set_role(self, role: Role) -> None:
        if role is self.role:
            return
        before, self.role = self.role, role
        _log.info("role", role=role.value, before=before.value)
        self.events.tell(RoleChanged(role.value))
        async with self._role_changed:
            self._role_changed.notify_all()

    # -- the watchdog thread ------------------------------------------------------------------------------------------

    def _watch_lease(self, lease: Lease, stop: Event) -> None:
        """Never touches the store."""
        period_s = self.config.lock_keep_alive_period_s
        tick_s = period_s / 10
        watchdog = Watchdog(lease, self._clock, tick_s)
        verdict = Verdict.OK
        while not stop.wait(tick_s):
            before, verdict = verdict, watchdog.tick()
            if verdict is Verdict.SUSPENDED and before is Verdict.OK:
                _log.warning("lease has run out: nothing is confirmed until ownership is proved again")
            if verdict is Verdict.FENCE:
                break
        else:
            return
        _log.error("fencing: ownership could not be proved again in time, clients are cut off")
        master = self.master
        if master is not None:
            master.cut()
        self._end("ownership could not be proved again in time")
        if not stop.wait(FENCE_PATIENCE_S + period_s) and self._replace_process is not None:
            self._replace_process()
