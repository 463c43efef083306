"""The client's side of the modelled PostgreSQL: what `amq/store/postgres` uses of psycopg, and a broker's door.

The code under test is `Database` and `Sessions` as they are: `connecting` puts `SimSession` in place of a connection.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psycopg

from amq.store.open import store_in
from amq.store.port import Store
from amq.store.postgres.database import EPOCHS, Database
from amq.store.postgres.sessions import ServerConnection
from amq.store.postgres.url import SqlUrl
from tests.simulation.hosts import HostCache
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sql_server import Backend, Reply, Request, SqlServer, lost
from tests.simulation.sql_tables import Plan, plan

GONE_S = 11.0  # the keep-alives of either side end a connection whose other side is silent for so long
RETRY_S = 0.1
_plan = lru_cache(200)(plan)


class Cursor:
    """The rows of one statement; `description` is None where it returns none."""

    def __init__(self, rows: list[Any] | None) -> None:
        self.description = None if rows is None else ()
        self._rows = rows or []

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows


class GreenLock:
    """In place of `threading.Lock`, which would stop the whole world."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._taken = False

    def __enter__(self) -> None:
        while self._taken:
            self._scheduler.sleep(0.0002)
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False


class SimSession:
    """A connection of `process`. `latency_s` = of one message, at most."""

    warned = ""
    pid = 0
    began: Any = None
    note = ServerConnection.note

    def __init__(self, server: SqlServer, host: HostCache, process: Process, latency_s: float) -> None:
        self.closed = self.broken = False
        self.process = process
        self.host = host
        self.backend: Backend = server.connect(host, process)
        self.info = SimpleNamespace(backend_pid=self.backend.pid)
        self._server = server
        self._scheduler = process.scheduler
        self._latency_s = latency_s
        self._lock = GreenLock(self._scheduler)  # psycopg has one, too: threads may share a connection
        self._tell: Callable[[Any], None] = lambda _diag: None

    def add_notice_handler(self, handler: Callable[[Any], None]) -> None:
        self._tell = handler

    def execute(self, text: bytes | str, asked: Any = None, binary: bool = False) -> Cursor:  # noqa: ARG002
        return Cursor(self._ask(_plan(text.decode() if isinstance(text, bytes) else text), asked))

    @contextmanager
    def transaction(self, force_rollback: bool = False) -> Iterator[None]:
        self._nap()
        self.backend.open_block = True
        try:
            yield
        except BaseException:
            self._server.rollback(self.backend)
            raise
        if force_rollback:
            self._server.rollback(self.backend)
        else:
            self._ask(None, None)

    def close(self) -> None:
        """The kernel tells the server, as it does for a process that is dead."""
        if not self.closed:
            self.closed = True
            self.gone(self._scheduler.now)

    def gone(self, since: float) -> None:
        """The server notices that this side is gone: as soon as it can be told, or when its keep-alives fail."""
        if self.host.connected() or self._scheduler.now - since > GONE_S:
            self._scheduler.after(self._server.rng.random() * 0.01, lambda: self._server.end(self.backend))
        elif not self.backend.ended:
            self._scheduler.after(RETRY_S, lambda: self.gone(since))

    def _ask(self, asked_for: Plan | None, asked: Any) -> Any:
        self.process.check()
        with self._lock:
            return self._exchange(asked_for, asked)

    def _exchange(self, asked_for: Plan | None, asked: Any) -> Any:
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        scheduler = self._scheduler
        task = scheduler.current
        request = Request(self.backend, asked_for, asked, lambda reply: self._come(task, reply, scheduler.now))
        self._server.on_moment("sent", request)
        self._nap()
        since = scheduler.now
        while not self.host.connected() and scheduler.now - since < GONE_S:
            scheduler.sleep(RETRY_S)
        if self.host.connected():
            self._server.arrive(request)
            reply = scheduler.wait()
        else:
            reply = lost()
        if isinstance(reply.error, psycopg.OperationalError) and reply.error.sqlstate is None:
            self.broken = True
            self.close()
        if reply.warning:
            self._tell(SimpleNamespace(severity_nonlocalized="WARNING", message_primary=reply.warning))
        if reply.error is not None:
            raise reply.error
        return reply.rows

    def _come(self, task: Any, reply: Reply, since: float) -> None:
        """An answer on its way: it waits for the network as long as TCP does."""
        if not self.host.connected():
            if self._scheduler.now - since < GONE_S:
                self._scheduler.after(RETRY_S, lambda: self._come(task, reply, since))
                return
            reply = lost()
        delay_s = self._latency_s * (0.1 + self._server.rng.random())
        self._scheduler.after(delay_s, lambda: self._scheduler.resume(task, reply), self.process)

    def _nap(self) -> None:
        self._scheduler.sleep(self._latency_s * (0.1 + self._server.rng.random()))
        self.process.stall()


@contextmanager
def connecting(
    scheduler: Scheduler, host_of: Callable[[Process], HostCache], is_ready: Callable[[], bool], latency_s: float
) -> Iterator[None]:
    """While the block runs, connections lead to the modelled server."""

    def connect(_conninfo: str, **_: Any) -> SimSession:
        task = scheduler.current
        assert task is not None
        process = task.process
        process.check()
        host = host_of(process)
        scheduler.sleep(latency_s * (0.2 + process.rng.random()))
        since = scheduler.now
        while not host.connected() and scheduler.now - since < GONE_S:
            scheduler.sleep(RETRY_S)
        if not host.connected() or not is_ready():
            raise psycopg.OperationalError("connection refused")
        server = host.server
        assert isinstance(server, SqlServer)
        session = SimSession(server, host, process, latency_s)
        server.clients.setdefault(process, []).append(session)
        return session

    numbers = itertools.count(1 << 40)
    green = SimpleNamespace(Lock=lambda: GreenLock(scheduler))
    fresh = SimpleNamespace(randbits=lambda _bits: next(numbers))
    module = "amq.store.postgres.database"
    with (
        patch.object(ServerConnection, "connect", connect),
        patch(f"{module}.threading", green),
        patch(f"{module}.secrets", fresh),
    ):
        yield


# What a statement is for the faults and the log of a world, which know the calls of a file system.
_MOMENTS = (
    ("INSERT INTO {chunk} (file, start, data) SELECT f.id", "fdatasync"),
    ("SELECT %(extent)s FROM fence", "open"),
    ("UPDATE {name} SET name", "link"),
    ("DELETE FROM {name} n USING fence", "unlink"),
    ("SELECT name FROM {name}", "listdir"),
    ("pg_try_advisory_lock", "try_lock"),
    ("WITH claimed AS", "fsync"),
    ("SELECT start, substring", "pread"),
    ("SELECT n.file, c.data", "pread"),
    ("SELECT (SELECT string_agg", "pread"),
)


class SqlDoor(Database):
    """The database of one simulated process: the real one, at each of whose statements faults may strike."""

    def __init__(self, store: str, process: Process, server: SqlServer) -> None:
        super().__init__(SqlUrl(store, {"dbname": "amq"}, "", True, 0, ""))
        self.process = process
        self.on_call: Callable[[str, str, bool, str], None] = lambda _method, _path, _after, _detail: None
        self.short_chance = self.latency_s = 0.0  # nothing is written in part; the connections take their time
        self._server = server

    def store(self, _path: str) -> Store:
        return store_in(self)

    def died(self) -> None:
        """The process is dead: the kernel closes its connections."""
        for session in self._server.clients.pop(self.process, ()):
            session.close()

    def ask(
        self,
        text: str,
        asked: dict[str, Any],
        directory: str = "",
        name: str = "",
        session: ServerConnection | None = None,
    ) -> list[Any]:
        method = next((method for part, method in _MOMENTS if part in text), "stat")
        path = self.place(directory, name)
        data = asked.get("data", b"")
        self._moment(method, path, False, f"{len(data)} bytes, CRC {zlib.crc32(data):08x}" if data else "")
        rows = super().ask(text, asked, directory, name, session)
        if directory == EPOCHS and method == "open" and rows:
            method = "link"  # it has its name, and is there
        self._moment(method, path, True)
        return rows

    def _moment(self, method: str, path: str, after: bool, detail: str = "") -> None:
        self.process.check()
        self.on_call(method, path, after, detail)
        self.process.check()
        self.process.stall()
