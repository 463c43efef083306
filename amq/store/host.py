"""The identity of a broker (`Owner`) and the door to its machine (`Host`).

Invariant: `provably_gone` is True only where no instruction of the owner's process can ever run again. Every doubt is
False: another host, another boot, another pid namespace, a process table that cannot be read.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from amq.core.errors import ConfigError, CorruptError
from amq.store.document import field

PERIOD_S_MAX = 1e6  # more than any configuration allows: a longer one could not even be waited for
PID_MAX = (1 << 31) - 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Host(Protocol):
    """The machine, as the lock component sees it."""

    def name(self) -> str:
        """Host name, for people."""
        ...

    def boot_id(self) -> str:
        """Random id of this boot of this machine; "" = unknown."""
        ...

    def namespaces(self) -> str:
        """The pid and time namespaces in which process numbers and start times are counted; "" = unknown."""
        ...

    def pid(self) -> int: ...

    def pid_start(self) -> int:
        """When this process started, in clock ticks since boot."""
        ...

    def is_running(self, pid: int, pid_start: int) -> bool:
        """Whether that process may still run. False only where it surely does not."""
        ...


class SystemHost:
    """The machine this process runs on (Linux)."""

    name = staticmethod(socket.gethostname)
    pid = staticmethod(os.getpid)

    @staticmethod
    def boot_id() -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    @staticmethod
    def namespaces() -> str:
        try:
            return " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time"))
        except OSError:
            return ""

    def pid_start(self) -> int:
        return _process(os.getpid())[1]

    @staticmethod
    def is_running(pid: int, pid_start: int) -> bool:
        try:
            os.kill(pid, 0)  # /proc may hide other users' processes (hidepid), this does not
        except ProcessLookupError:
            return False
        except OSError:
            return True
        try:
            state, start = _process(pid)
            if start != pid_start:
                return False
            # A zombie that nobody has reaped runs no more, but its first thread may end before the others.
            return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
        except OSError:
            return True


def _process(pid: int) -> tuple[str, int]:
    """State letter and start time, in clock ticks since boot, of process `pid`."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], int(fields[19])


@dataclass(frozen=True, slots=True)
class Owner:
    """One broker, from its start to its end.

    uuid                        new at every start of a broker
    name                        broker name, unique on the store
    host                        host name
    boot_id, namespaces, pid, pid_start   the process, see `Host`
    transport_urls              where clients reach it while it is master
    lock_keep_alive_period_s    how long it may go on confirming after the start of its last successful check
    """

    uuid: str
    name: str
    host: str
    boot_id: str
    namespaces: str
    pid: int
    pid_start: int
    transport_urls: tuple[str, ...]
    lock_keep_alive_period_s: float

    @classmethod
    def make(
        cls, host: Host, *, name: str, uuid: str, transport_urls: tuple[str, ...], lock_keep_alive_period_s: float
    ) -> Owner:
        """This process as broker `name`. `uuid` must be new. Raises ConfigError."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"broker name {name!r} cannot be used: give 1 to 64 letters, digits, '.', '_' or '-', "
                f"the first one a letter or digit",
                code="BROKER_NAME_INVALID",
            )
        if not 0 < lock_keep_alive_period_s < math.inf:
            raise ConfigError(
                f"lockKeepAlivePeriod is {lock_keep_alive_period_s * 1000:g} ms: it must be more than 0 and finite. "
                f"Without the check a master never learns that it lost the lock, and two masters can exist. "
                f"The default is 2000",
                code="LOCK_KEEP_ALIVE_PERIOD_INVALID",
            )
        return cls(
            uuid,
            name,
            host.name(),
            host.boot_id(),
            host.namespaces(),
            host.pid(),
            host.pid_start(),
            tuple(transport_urls),
            float(lock_keep_alive_period_s),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any], path: str) -> Owner:
        """The owner that `to_json` wrote; `path` is named in the CorruptError that is raised where it is not one."""
        texts = [field(body, name, str, path) for name in ("uuid", "name", "host", "boot_id", "namespaces")]
        numbers = [field(body, name, int, path) for name in ("pid", "pid_start")]
        urls = tuple(str(url) for url in field(body, "transport_urls", (list, tuple), path))
        period_s = field(body, "lock_keep_alive_period_s", (int, float), path)
        if not 0 < period_s < PERIOD_S_MAX:
            raise CorruptError(path, 0, "lock_keep_alive_period_s must be positive")
        uuid, name, host, boot_id, namespaces = texts
        pid, pid_start = numbers
        if not 0 < pid <= PID_MAX:
            raise CorruptError(path, 0, "pid must be a positive integer")
        return cls(uuid, name, host, boot_id, namespaces, pid, pid_start, urls, float(period_s))

    def same_process(self, other: Owner) -> bool:
        """Whether both brokers live in one process."""
        return bool(self.boot_id and self.namespaces) and (
            (self.boot_id, self.namespaces, self.pid, self.pid_start)
            == (other.boot_id, other.namespaces, other.pid, other.pid_start)
        )

    def describe(self, seen_by: Owner | None = None) -> str:
        """For people: broker, host and pid, and whether that is the process of `seen_by`."""
        where = f"broker {self.name!r} on host {self.host}, pid {self.pid}"
        return f"{where}, which is this process" if seen_by is not None and self.same_process(seen_by) else where


class ProcessFacts(Protocol):
    """The process of an `Owner`, and of others who say which one is theirs."""

    @property
    def boot_id(self) -> str: ...
    @property
    def namespaces(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def pid_start(self) -> int: ...


def is_here(owner: ProcessFacts, host: Host) -> bool:
    """Whether `owner` ran in this very boot of this machine, in namespaces in which its process can be looked up."""
    here = bool(owner.boot_id) and owner.boot_id == host.boot_id()
    return here and bool(owner.namespaces) and owner.namespaces == host.namespaces()


def provably_gone(owner: ProcessFacts, host: Host) -> bool:
    """Whether `owner` ran here and its process is no longer there."""
    return is_here(owner, host) and not host.is_running(owner.pid, owner.pid_start)
