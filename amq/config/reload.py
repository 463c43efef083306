"""Live reload: what of a changed configuration applies at once, and what waits for a restart.

Invariant: the configuration in force changes only as a whole, only to one that `load` accepted, and only in options
whose `reload` is True; a broken file changes nothing and is reported once.
`Reload` is pure; `Reloader` joins it to the events of the file.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amq.config.checks import contradictions
from amq.config.destination_options import TABLE
from amq.config.option import Option
from amq.config.schema import OPTIONS, BrokerConfig
from amq.config.watch import FileWatcher
from amq.core.errors import ConfigError

__all__ = ["Change", "Difference", "FileWatcher", "Reload", "Reloaded", "Reloader", "apply_live", "diff"]


@dataclass(frozen=True, slots=True)
class Change:
    """One option whose value differs, both values as a user would write them. `destination` = the pattern of those for
    which it does; there "" is the value of all others.
    """

    option: Option
    old: str
    new: str
    destination: str = ""

    @property
    def key(self) -> str:
        """The option, and for which destinations."""
        return f'{TABLE}."{self.destination}".{self.option.key}' if self.destination else self.option.key

    def __str__(self) -> str:
        return f"{self.key}: {self.old} → {self.new}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The options in which two configurations differ."""

    live: tuple[Change, ...]
    restart: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a reload.

    config   the configuration now in force
    live     changes that apply from now on
    restart  changes in the file that wait for a restart
    error    why the file was refused, or None; the configuration in force is then the old one
    """

    config: BrokerConfig
    live: tuple[Change, ...] = ()
    restart: tuple[Change, ...] = ()
    error: ConfigError | None = None


def diff(old: BrokerConfig, new: BrokerConfig) -> Difference:
    """The changes between `old` and `new`, separated by whether a running broker can apply them."""
    changes = [
        Change(option, option.format(old.get(option)), option.format(new.get(option)))
        for option in OPTIONS
        if old.get(option) != new.get(option)
    ]
    before, after = _own_values(old), _own_values(new)
    for pattern, option in {**before, **after}:
        values = before.get((pattern, option), ""), after.get((pattern, option), "")
        if values[0] != values[1]:
            changes.append(Change(option, *values, pattern))
    return Difference(
        tuple(change for change in changes if change.option.reload),
        tuple(change for change in changes if not change.option.reload),
    )


def _own_values(config: BrokerConfig) -> dict[tuple[str, Option], str]:
    """The options of single destinations."""
    return {(each.destination, each.option): each.value for each in config.explain() if each.destination}


def apply_live(old: BrokerConfig, new: BrokerConfig) -> BrokerConfig:
    """`old` with those values of `new` that can change while the broker runs."""
    names = [option.attribute for option in OPTIONS if option.reload]
    values: dict[str, Any] = {name: getattr(new, name) for name in names}
    sources = {name: where for name, where in old.sources.items() if name not in names}
    sources |= {name: where for name, where in new.sources.items() if name in names}
    return dataclasses.replace(
        old, **values, destinations=new.destinations, sources=sources, warnings=new.warnings, placed=new.placed
    )


def _allowed(config: BrokerConfig) -> BrokerConfig:
    """`config`, in which some of what changed waits for a restart. ConfigError where that does not go together."""
    problems = contradictions(config)
    if problems:
        cure = "part of the change waits for a restart, and the rest does not go without it: restart the broker"
        raise ConfigError("\n".join(f"{problem}; {cure}" for problem in problems))
    return config


class Reload:
    """The configuration in force and the rule by which it follows its sources."""

    def __init__(self, config: BrokerConfig, load: Callable[[], BrokerConfig]) -> None:
        """`load` reads all sources again and raises ConfigError where they cannot be used."""
        self.config = config
        self._load = load
        self._waiting: tuple[Change, ...] = ()
        self._error = ""

    def check(self, asked: bool = False) -> Reloaded | None:
        """Read the sources again. None where there is nothing new to tell; an error is always news to who `asked`."""
        return self.take(self.read(), asked)

    def read(self) -> BrokerConfig | ConfigError:
        """Read the sources. May hang in them; changes nothing, so its result may be thrown away."""
        try:
            return self._load()
        except ConfigError as error:
            return error

    def take(self, read: BrokerConfig | ConfigError, asked: bool = False) -> Reloaded | None:
        """Follow what was `read`. As `check`."""
        try:
            if isinstance(read, ConfigError):
                raise read
            following = _allowed(apply_live(self.config, read))
        except ConfigError as error:
            if error.description == self._error and not asked:
                return None
            self._error = error.description
            return Reloaded(self.config, restart=self._waiting, error=error)
        difference = diff(self.config, read)
        mended = bool(self._error)
        told = not difference.live and difference.restart == self._waiting and not mended
        told = told and read.placed == self.config.placed
        self._error, self._waiting = "", difference.restart
        self.config = following
        return None if told else Reloaded(self.config, difference.live, difference.restart)


class Reloader:
    """Follows the configuration file: `on_outcome(outcome)` for each reload that has something to tell.

    `on_outcome` runs in the watcher's thread, or in that of whoever calls `check` (SIGHUP, for example).
    """

    def __init__(
        self, path: str, config: BrokerConfig, load: Callable[[], BrokerConfig], on_outcome: Callable[[Reloaded], None]
    ) -> None:
        self._reload = Reload(config, load)
        self._on_outcome = on_outcome
        self._mutex = threading.Lock()  # two reloads at a time could report in the wrong order
        self._watcher = FileWatcher([path], lambda _path: self.check())

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self._reload.config

    def check(self) -> None:
        """Reload now."""
        with self._mutex:
            outcome = self._reload.check()
            if outcome is not None:
                self._on_outcome(outcome)

    def start(self) -> None:
        self._watcher.start()

    def stop(self) -> None:
        self._watcher.stop()

    def __enter__(self) -> Reloader:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
