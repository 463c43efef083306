"""Service: a process that serves clients, a node with its members or a gateway, from its start to its end.

It owns signals, the service manager, logins, certificates, the limits of strangers, and the files that are read again.

Invariant: the event loop reads no file; an end that was asked for is asked for once.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import BinaryIO, Final, NamedTuple

import structlog

from amq.config.reload import Reload
from amq.config.schema import BrokerConfig
from amq.config.watch import FileWatcher
from amq.core.errors import AmqError, ConfigError
from amq.doors.clock import SystemClock
from amq.node import certificate, logins, process
from amq.node.certificate import OwnCertificate
from amq.node.entrance import Entrance
from amq.node.live import Files, Live
from amq.node.logins import OwnLogins
from amq.security import LoginGate, Users
from amq.security.permissions import Permissions

_log = structlog.get_logger("amq.process")


class Source(NamedTuple):
    """How the configuration of one member is read again. `path` = the file that is watched for it, "" = none."""

    read: Callable[[], BrokerConfig]
    path: str = ""


class Readers(NamedTuple):
    """How files of the node are read. Both raise ConfigError; `permissions(path, generation)`."""

    users: Callable[[str], Users] = Users.read
    permissions: Callable[[str, int], Permissions] = Permissions.read


PLAIN: Final = Readers()


class _Watched(NamedTuple):
    """A configuration that is read again: by `live`, None = never; from the file `path`, "" = none."""

    live: Live | None
    path: str

    def ask(self, *what: str, by_hand: bool = False) -> None:
        if self.live is not None:
            self.live.ask(*what, by_hand=by_hand)


class Service(ABC):
    """Used on one event loop. `goodbye` = its status from when it is asked to stop."""

    goodbye = "handing over"

    def __init__(self, config: BrokerConfig, readers: Readers, configure_log: Callable[[BrokerConfig], None]) -> None:
        """Raises ConfigError."""
        self.config = config
        self._configure_log = configure_log
        self._gate = LoginGate(config.users_file, config.anonymous, readers.users)
        self._certificate = OwnCertificate(config, self._gate)
        self._logins = OwnLogins(config, self._gate)
        self._files = {
            "certificates": Files(certificate.KEYS, self._certificate.read, self._certificate.paths),
            "logins": Files(logins.KEYS, self._logins.read, self._logins.paths),
        }
        self._entrance = Entrance(SystemClock(), lambda: self.config)
        self._configurations: list[_Watched] = []
        self._watchers = ExitStack()
        self._watched: set[str] = set()
        self._stop: asyncio.Task[None] | None = None

    # -- from start to end --------------------------------------------------------------------------------------------

    async def until_stopped(self, leash: BinaryIO | None = None) -> AmqError | None:
        """Serve until a signal asks to stop (None), or until it has given up (why). The end of `leash`, a pipe, asks to
        stop as well."""
        self._loop = loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.read_files_again)
        if leash is not None:
            await loop.connect_read_pipe(lambda: _Leash(self._slip), leash)
        self._feed_watchdog(process.watchdog_interval_s())
        with self._watchers:
            self._watch()
            await self.start()
            return await self.ended()

    @abstractmethod
    async def start(self) -> None:
        """Begin to serve."""

    async def stop(self) -> None:
        """End in good order, as a signal asks for."""
        self._say_goodbye()
        await self.ended()

    @abstractmethod
    async def ended(self) -> AmqError | None:
        """Wait until it serves no more. Returns why it has given up, None = it was asked to stop."""

    @property
    def is_stopping(self) -> bool:
        return self._stop is not None

    @abstractmethod
    async def _begin_to_stop(self) -> None: ...

    def _on_stop(self, number: int) -> None:
        for other in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)  # works also where the event loop is stuck
        _log.info(f"told to stop: {self.goodbye}; a second signal ends the process", signal=signal.Signals(number).name)
        self._say_goodbye()

    def _slip(self) -> None:
        if self._stop is None:
            _log.info("the node stops or has ended: this process ends with it")
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        process.notify(f"STOPPING=1\nSTATUS={self.goodbye}")
        self._stop = self._loop.create_task(self._begin_to_stop())

    def _feed_watchdog(self, interval_s: float | None) -> None:
        """An event loop that pauses feeds nobody: the service manager then ends a master that serves no one."""
        if interval_s is not None:
            process.notify("WATCHDOG=1")
            asyncio.get_running_loop().call_later(interval_s, self._feed_watchdog, interval_s)

    def _warn(self, further: Iterable[str] = ()) -> None:
        """At its start: of files that can be used, and were probably not meant so."""
        for warning in (*self._gate.warnings, *self._certificate.warnings(self.config), *further):
            _log.warning(warning)
        self._certificate.watch_expiry(self._loop)

    # -- files that are read again ------------------------------------------------------------------------------------

    def _read_again(self, config: BrokerConfig, source: Source | None, apply: Callable[[BrokerConfig], None]) -> None:
        """`config` came from `source`: `apply` hears, in a thread, of each one that differs. The files that the service
        has once are read where its first configuration says."""
        live = None if source is None else Live(Reload(config, source.read), self._gate, apply, self._files)
        self._configurations.append(_Watched(live, source.path if source is not None else ""))

    def _take(self, config: BrokerConfig) -> None:
        """The first configuration is another one now."""
        self.config = config
        self._configure_log(config)
        self._watch()

    def _watch(self) -> None:
        """Watch the files that there are, also one that came with a reload, until the end."""
        named = (
            *(each.path for each in self._configurations),
            self.config.users_file,
            *(path for files in self._files.values() for path in files.paths(self.config)),
        )
        paths = [path for path in dict.fromkeys(named) if path and path not in self._watched]
        if not paths:
            return
        try:
            self._watchers.enter_context(FileWatcher(paths, self._changed))
            self._watched.update(paths)
        except (ConfigError, OSError) as error:
            _log.warning("changed files are not noticed here; SIGHUP makes the broker look", reason=str(error))

    def read_files_again(self) -> None:
        """As SIGHUP asks for."""
        _log.info("SIGHUP: reading the configuration and the files that it names again")
        for each in self._configurations[1:]:
            each.ask("configuration", by_hand=True)
        self._configurations[0].ask("configuration", "users", *self._files, by_hand=True)

    def _changed(self, path: str) -> None:
        """Take note of a changed file, in a thread of the watcher."""
        for each in self._configurations:
            if path == each.path:
                each.ask("configuration")
        wanted = [name for name, files in self._files.items() if path in files.paths(self.config)]
        if path == self.config.users_file:
            wanted.insert(0, "users")
        if wanted:
            self._configurations[0].ask(*wanted)


class _Leash(asyncio.Protocol):
    """The pipe from the process that watches over this one."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._ended()
