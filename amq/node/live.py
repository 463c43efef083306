"""Live configuration of a running broker: reads the configuration, the users and other files when they changed.

A read may hang: a FIFO in the place of the file, a mount whose server is away. So reads run in a separate thread,
one after the other. A read that takes longer than `PATIENCE_S` is given up: its result is thrown away whenever it
comes, and the next request gets a new thread.

Invariant: the event loop, the end of the process and later reads never wait for a read that hangs, and at most
`HUNG_MAX` threads hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import structlog

from amq.config import BrokerConfig
from amq.config.reload import Reload, Reloaded
from amq.core.errors import ConfigError
from amq.security import LoginGate

PATIENCE_S = 10.0
HUNG_MAX = 4
_log = structlog.get_logger("amq.process")


class Files(NamedTuple):
    """Files that are read together. `keys` = the options that name them, or say how they are read; `read(config,
    current)` reads and uses them: it raises ConfigError where they cannot be used, and does nothing where `current()`
    is false after its reads. `paths(config)` = where they are."""

    keys: frozenset[str]
    read: Callable[[BrokerConfig, Callable[[], bool]], None]
    paths: Callable[[BrokerConfig], tuple[str, ...]] = lambda _: ()


class Live:
    """`ask` from any thread; `apply(config)` is called, in the reading thread, with each configuration that changes
    something. Nothing is read before `start`."""

    def __init__(
        self,
        reload: Reload,
        gate: LoginGate,
        apply: Callable[[BrokerConfig], None],
        files: Mapping[str, Files] = MappingProxyType({}),
    ) -> None:
        """`files` = those besides "configuration" and "users", by the name that `ask` knows."""
        self._files = files
        self._reload = reload
        self._gate = gate
        self._apply = apply
        self._mutex = threading.Lock()
        self._wanted: dict[str, bool] = {}  # "configuration", "users", … → somebody asked by hand
        self._reader: _Reader | None = None
        self.hung = 0

    def ask(self, *what: str, by_hand: bool = False) -> None:
        """Read "configuration", "users" or others, soon. `by_hand`: also an error that was told before is told."""
        with self._mutex:
            for name in what:
                self._wanted[name] = self._wanted.get(name, False) or by_hand
            if self._reader is None and self.hung < HUNG_MAX:
                self._reader = _Reader(self)
                self._reader.start()
            elif self._reader is None:
                _log.error("not read again: earlier reads still hang", hanging=self.hung)

    # -- the reading thread -------------------------------------------------------------------------------------------

    def next(self, reader: _Reader) -> tuple[str, bool] | None:
        """The next thing for `reader` to read; None = nothing, it ends."""
        with self._mutex:
            if self._reader is not reader:
                self.hung -= 1  # it was given up, and has come back
                return None
            for name in ("configuration", "users", *self._files):
                if name in self._wanted:
                    return name, self._wanted.pop(name)
            self._reader = None
            return None

    def failed(self, reader: _Reader) -> None:
        """`reader` ends by a bug: the next request gets a new one."""
        with self._mutex:
            if self._reader is reader:
                self._reader = None

    def current(self, reader: _Reader) -> bool:
        """Whether what `reader` read still counts."""
        return self._reader is reader

    def give_up(self, reader: _Reader, name: str) -> None:
        """`reader` takes too long: another one reads what else was asked for."""
        with self._mutex:
            if self._reader is not reader:
                return
            self._reader = None
            self.hung += 1
            left = dict(self._wanted)
        _log.error("a file does not answer and is not read: look at its file system", what=name, after_s=PATIENCE_S)
        if left:
            self.ask(*left)

    def read_configuration(self, reader: _Reader, by_hand: bool) -> None:
        read = self._reload.read()
        if not self.current(reader):
            return
        outcome = self._reload.take(read, by_hand)
        if outcome is None:
            if by_hand:
                _log.info("configuration read: nothing has changed")
        elif outcome.error is not None:
            for problem in outcome.error.description.split("\n"):
                _log.error("configuration not changed", reason=problem)
        else:
            self._take(outcome)

    def _take(self, outcome: Reloaded) -> None:
        for change in outcome.restart:
            _log.warning("this change waits for a restart", change=str(change))
        if outcome.live:
            _log.info("configuration changed", changes=[str(change) for change in outcome.live])
        if any(change.option.key in ("usersFile", "anonymous") for change in outcome.live):
            with self._mutex:
                self._wanted.setdefault("users", False)
        changed = {change.option.key for change in outcome.live}
        with self._mutex:
            for name, files in self._files.items():
                if changed & files.keys:
                    self._wanted.setdefault(name, False)
        self._apply(outcome.config)

    def read_files(self, reader: _Reader, name: str) -> None:
        try:
            self._files[name].read(self._reload.config, lambda: self.current(reader))
        except ConfigError as error:
            if self.current(reader):
                _log.error(f"{name} not changed", reason=error.description)

    def read_users(self, reader: _Reader) -> None:
        config = self._reload.config
        try:
            self._gate.reload(config.users_file, config.anonymous, lambda: self.current(reader))
        except ConfigError as error:
            if self.current(reader):
                _log.error("users not changed", reason=error.description)
            return
        if not self.current(reader):
            return
        if config.users_file:
            _log.info("users read", users_file=config.users_file)
        for warning in self._gate.warnings:
            _log.warning(warning)


class _Reader(threading.Thread):
    """Reads until nothing is wanted. A daemon: the process does not wait for it."""

    def __init__(self, live: Live) -> None:
        super().__init__(name="amq-config", daemon=True)
        self._live = live

    def run(self) -> None:
        try:
            self._read_all()
        except BaseException:
            self._live.failed(self)
            raise

    def _read_all(self) -> None:
        while (wanted := self._live.next(self)) is not None:
            name, by_hand = wanted
            timer = threading.Timer(PATIENCE_S, self._live.give_up, (self, name))
            timer.daemon = True
            timer.start()
            try:
                if name == "users":
                    self._live.read_users(self)
                elif name != "configuration":
                    self._live.read_files(self, name)
                else:
                    self._live.read_configuration(self, by_hand)
            finally:
                timer.cancel()
