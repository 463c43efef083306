"""A PostgreSQL server with one standby, as far as a store needs it. It knows transactions, row locks, advisory locks,
commits that take time, connections that end, failover.

Invariants: what a statement does nobody else sees before its commit; its locks are held until then. A commit that was
answered is in the write-ahead log, in order; the standby has a beginning of that log, and where it is synchronous every
commit that was answered or can be seen. A statement takes the locks of all its rows at once, so none waits for another
in a circle; the statements of `amq/store/postgres` lock the row of the store first and do not, either.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from psycopg import errors

from amq.store.postgres.database import IDS
from tests.simulation.scheduler import Scheduler
from tests.simulation.sql_tables import Call, Effect, Key, Plan, Rows, SqlTables
from tests.simulation.storage import Inode, Server, fail


class Reply:
    """Of one statement: `rows` (None = it returns none), or `error`; `warning` = what the server warned of."""

    def __init__(self, rows: Rows | None = None, error: psycopg.Error | None = None, warning: str = "") -> None:
        self.rows = rows
        self.error = error
        self.warning = warning


def lost() -> Reply:
    """The connection is gone: whether anything took place the client cannot know."""
    return Reply(error=psycopg.OperationalError("the connection is lost"))


@dataclass(eq=False)
class Backend:
    """The server's side of a connection. `open_block`: between BEGIN and COMMIT."""

    pid: int
    began: float
    host: Any
    process: Any
    lock_timeout_s: float = 0.0
    ended: bool = False
    request: Request | None = None
    open_block: bool = False
    locks: list[tuple[Key, bool]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


@dataclass(eq=False)
class Request:
    """A statement on its way through the server, and who learns how it ended."""

    backend: Backend
    plan: Plan | None  # None = COMMIT
    asked: Any
    answer: Callable[[Reply], None]
    seen: SqlTables | None = None
    rows: Rows | None = None
    logged: int = 0  # its place in the log, once it is committed on the primary
    over: bool = False


class SqlServer(Server):
    """The primary. To checkers it shows its files as a file server does (`find`)."""

    def __init__(self, rng: Random, sync_names: bool, capacity_bytes: int) -> None:
        super().__init__(rng, sync_names, capacity_bytes)
        self.rng = rng
        self.scheduler: Scheduler
        self.tables = SqlTables()
        self.timeline = 1
        self.backends: list[Backend] = []
        self.advisory: dict[int, Backend] = {}
        self.synchronous = False  # commits wait for the standby
        self.lag_s = 0.0
        self.hung_until = 0.0  # the standby pauses
        self.commit_s = 0.001
        self.slow_s = 0.0  # how much longer the next commit takes
        self.lost_commits = 0
        self.failed_over = False
        self.blocked_by_idle = 0  # lock_timeouts because of a client that paused inside a transaction
        self.clients: dict[Any, list[Any]] = {}  # process → its connections
        self.on_moment: Callable[[str, Request], None] = lambda _phase, _request: None
        self.store = ""
        self._held: dict[Key, list[tuple[Backend, bool]]] = {}
        self._waiting: list[Request] = []
        self._unseen: list[tuple[Request, list[Effect]]] = []  # committed, and waiting for the standby
        self._log: list[tuple[float, list[Effect]]] = []
        self._shipped = 0
        self._standby = SqlTables()
        self._ids = 0
        self._pids = 4000

    # -- connections --------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return f"7000/{self.timeline:08X}"

    def connect(self, host: Any, process: Any) -> Backend:
        self._pids += 1
        self.backends.append(backend := Backend(self._pids, self.scheduler.now, host, process))
        return backend

    def end(self, backend: Backend) -> None:
        """As `pg_terminate_backend` does, or as the server does when the client is gone: rolled back, but for what
        waits for the standby, which is stored. Its locks are free."""
        if backend.ended:
            return
        backend.ended = True
        self.backends.remove(backend)
        self.advisory = {key: holder for key, holder in self.advisory.items() if holder is not backend}
        request = backend.request
        for unseen in [unseen for unseen in self._unseen if unseen[0] is request]:
            self._unseen.remove(unseen)
            self._take_place(unseen[1])
        if request is not None:
            self._answer(request, lost())
        self._release(backend)

    def lose(self, host: Any) -> None:
        """All connections of `host` end."""
        for backend in [backend for backend in self.backends if backend.host is host]:
            self.end(backend)

    # -- statements ---------------------------------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        backend = request.backend
        if backend.ended:
            request.answer(lost())
            return
        assert backend.request is None, "one statement of a connection at a time"
        backend.request = request
        if request.plan is None and backend.effects:
            self._commit_soon(request, backend.effects)
        elif request.plan is None:
            self._release(backend)
            self._answer(request, Reply())
        elif not self._is_blocked(request):
            self._begin(request)
        else:
            request.seen = self.tables.copy()
            self._waiting.append(request)
            if backend.lock_timeout_s:
                self.scheduler.after(backend.lock_timeout_s, lambda: self._give_up(request))

    def _is_blocked(self, request: Request) -> bool:
        assert request.plan is not None
        return any(
            other is not request.backend and (exclusive or theirs)
            for key, exclusive in request.plan.keys(request.asked)
            for other, theirs in self._held.get(key, ())
        )

    def _begin(self, request: Request) -> None:
        """Lock its rows, and run it."""
        backend, plan = request.backend, request.plan
        assert plan is not None
        wanted = plan.keys(request.asked)
        for key, exclusive in wanted:
            self._held.setdefault(key, []).append((backend, exclusive))
        backend.locks += wanted
        call = Call(self, backend, request.seen or self.tables, self.tables, request.asked, plan.records)
        if plan.fence in ("share", "key share", "unlocked"):
            claim = request.asked["claim"]
            call.passed = call.seen.fence == claim
            call.passed = call.passed and (plan.fence != "share" or call.now.fence == claim)
        try:
            request.rows = plan.statement.run(call)
        except psycopg.Error as error:
            self._release(backend)
            self._answer(request, Reply(error=error))
            return
        if backend.open_block:
            backend.effects += call.effects
            self.on_moment("locked", request)
            self._answer(request, Reply(request.rows))
        elif call.effects:
            self._commit_soon(request, call.effects)
        else:
            self._release(backend)
            self._answer(request, Reply(request.rows))

    def _give_up(self, request: Request) -> None:
        if request not in self._waiting:
            return
        self._waiting.remove(request)
        assert request.plan is not None
        holders = [other for key, _ in request.plan.keys(request.asked) for other, _ in self._held.get(key, ())]
        self.blocked_by_idle += any(other.open_block and other.request is None for other in holders)
        self._release(request.backend)
        error = errors.LockNotAvailable("canceling statement due to lock timeout")
        self._answer(request, Reply(error=error))

    def _release(self, backend: Backend) -> None:
        """Its transaction is over."""
        for key, _ in backend.locks:
            left = [held for held in self._held.pop(key, ()) if held[0] is not backend]
            if left:
                self._held[key] = left
        had, backend.locks, backend.effects, backend.open_block = bool(backend.locks), [], [], False
        self._waiting = [request for request in self._waiting if not request.backend.ended]
        if had and self._waiting:
            self.scheduler.at(self.scheduler.now, self._wake)

    def _wake(self) -> None:
        """Locks are free: those who wait for them go on, in their order."""
        for request in list(self._waiting):
            if request in self._waiting and not self._is_blocked(request):
                self._waiting.remove(request)
                self._begin(request)

    def _answer(self, request: Request, reply: Reply) -> None:
        if not request.over:
            request.over = True
            request.backend.request = None
            request.answer(reply)

    def rollback(self, backend: Backend) -> None:
        if not backend.ended:
            self._release(backend)

    def need_room(self, size_bytes: int) -> None:
        if self.tables.used_bytes() + size_bytes > self.capacity_bytes:
            raise errors.DiskFull("could not extend file: No space left on device")

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    # -- commits ------------------------------------------------------------------------------------------------------

    def _commit_soon(self, request: Request, effects: list[Effect]) -> None:
        self.on_moment("locked", request)
        seconds, self.slow_s = self.commit_s * (0.2 + self.rng.random()) + self.slow_s, 0.0
        self.scheduler.after(seconds, lambda: self._commit(request, effects))

    def _commit(self, request: Request, effects: list[Effect]) -> None:
        if request.over:
            return
        self._log.append((self.scheduler.now, effects))
        request.logged = len(self._log)
        if self.synchronous:
            self._unseen.append((request, effects))
            self._ship()
        else:
            self._seen(request, effects)
            self.scheduler.after(self.lag_s, self._ship)

    def _ship(self) -> None:
        """Send the standby what is old enough; with a synchronous one, commits are over when it has them."""
        now = self.scheduler.now
        if now < self.hung_until:
            self.scheduler.at(self.hung_until, self._ship)
            return
        while self._shipped < len(self._log):
            at, effects = self._log[self._shipped]
            if now < at + self.lag_s:
                self.scheduler.at(at + self.lag_s, self._ship)
                break
            for effect in effects:
                effect(self._standby)
            self._shipped += 1
        for unseen in [unseen for unseen in self._unseen if unseen[0].logged <= self._shipped]:
            self._unseen.remove(unseen)
            self._seen(*unseen)

    def _seen(self, request: Request, effects: list[Effect], warning: str = "") -> None:
        self._take_place(effects)
        self._release(request.backend)
        self.on_moment("committed", request)
        self._answer(request, Reply(request.rows, warning=warning))

    def _take_place(self, effects: list[Effect]) -> None:
        for effect in effects:
            effect(self.tables)

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def cancel_waits(self) -> None:
        """A person cancels what waits for the standby: those commits "succeed", with a warning."""
        unseen, self._unseen = self._unseen, []
        for request, effects in unseen:
            self._seen(request, effects, "canceling wait for synchronous replication due to user request")

    def crash(self) -> None:
        """The server, or its host, stops at once and starts again: what is in its log is there."""
        self.crashes += 1
        for backend in list(self.backends):
            self.end(backend)

    def fail_over(self) -> None:
        """The primary is lost, and the standby becomes the primary as it is; it gets a new standby."""
        for request, _ in self._unseen:
            self._answer(request, lost())
        seen = len(self._log) - len(self._unseen)
        self._unseen = []
        self.crash()
        self.lost_commits += max(0, seen - self._shipped)
        self.failed_over = True
        self.tables = self._standby.copy()
        self.timeline += 1
        self._log, self._shipped = [], 0

    # -- for checkers, and for people with rights on the tables -------------------------------------------------------

    def find(self, path: str) -> Inode:
        place = self._place(path)
        if place == ("", ""):
            return self._directory("")
        if place not in self.tables.names:
            raise fail(errno.ENOENT, path)
        file = self.tables.names[place]
        if file is None:
            return self._directory("/".join(filter(None, place)))
        inode = Inode(file, False)
        inode.data = inode.durable = self.tables.data(file)
        inode.links = 1
        inode.holder = self.advisory.get(file & IDS)
        return inode

    def _directory(self, place: str) -> Inode:
        inode = Inode(1, True)
        assert inode.names is not None
        for directory, name in self.tables.names:
            if directory == place:
                inode.names[name] = inode
        return inode

    def unlink(self, path: str) -> None:
        file = self.find(path).number
        self.by_hand(lambda tables: _removed(tables, self._place(path), file))

    def create(self, path: str, directory: bool = False) -> Inode:
        if not self.store:
            return super().create(path, directory)
        number = self.next_id()

        def take_place(tables: SqlTables) -> None:
            tables.names[self._place(path)], tables.files[number] = number, 0

        self.by_hand(take_place)
        return self.find(path)

    def by_hand(self, effect: Effect) -> None:
        """A person with rights on the tables changes something."""
        self._log.append((self.scheduler.now, [effect]))
        effect(self.tables)

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.tables.used_bytes())

    def _place(self, path: str) -> tuple[str, str]:
        if not path.startswith(self.store) or not self.tables.version:
            raise fail(errno.ENOENT, path)
        directory, _, name = path.removeprefix(self.store).strip("/").rpartition("/")
        return directory, name


def _removed(tables: SqlTables, place: tuple[str, str], file: int) -> None:
    tables.names.pop(place, None)
    tables.files.pop(file, None)
    tables.chunks.pop(file, None)
