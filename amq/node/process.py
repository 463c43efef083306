"""Process-wide settings of a broker: file limit, garbage collector, thread switching, service manager, replacing the
process. The broker's own code changes none of them, because several brokers may share a process.
"""

from __future__ import annotations

import functools
import gc
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from amq.doors.threads import SystemThreads
from amq.transports.places import files_limit

# Measured: with the default 5 ms the journal thread waits that long for the GIL after each sync: 30 % less throughput.
SWITCH_INTERVAL_S = 0.0002
GC_THRESHOLDS = (100_000, 50, 100)  # queues hold many long-lived objects: look at them seldom
REPLACEMENT = "_AMQ_REPLACEMENT"  # in the environment of a process that another one of this broker has become
AGAIN_S = 2.0  # until such a process becomes another one, where the store cannot be used yet
INTERNAL = 70  # exit code, as `amq.cli.exits` has it
VITAL_THREADS = frozenset(("amq-journal", "amq-lease", "amq-lookout", "amq-watchdog"))
_log = structlog.get_logger("amq.process")


def tune() -> None:
    """Settle this process for serving."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    threading.excepthook = _thread_failed


@contextmanager
def no_collection() -> Iterator[None]:
    """Reading a journal makes objects that stay: to look among them for garbage meanwhile costs a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def keep_loaded_objects() -> None:
    """Exempt all present objects from garbage collection. Called after a replay: they stay."""
    gc.freeze()


def drop_loaded_objects() -> None:
    """The mastership is over: its objects can be collected."""
    gc.unfreeze()
    gc.collect()


class GuardedThreads(SystemThreads):
    """The threads of a member that shares its process: one that fails by a bug ends that member, and not the process.
    `failed(name)` is called, in that thread.
    """

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed

    def start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 (last resort of the thread)
                _log.critical("a thread failed", thread=name, exc_info=error)
                if name in VITAL_THREADS:
                    self._failed(name)

        return super().start(name, guarded)


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit and return it. Every client connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return files_limit()


def replace_process() -> None:
    """Become a new process with the same command line and process id; never returns.

    A broker whose thread hangs in the store escapes this way: it closes every descriptor and so every lock.
    """
    os.environ[REPLACEMENT] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def is_replacement() -> bool:
    """Has this process replaced itself? Its broker has used the store before: where the store cannot be used now, that
    may pass, and nobody needs to start the broker again."""
    return REPLACEMENT in os.environ


def notify(state: str) -> None:
    """Notify the service manager (systemd: sd_notify), if there is one. `state` is `READY=1`, `STATUS=…` or both."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        door().sendto(state.encode(), address)
    except OSError as error:
        _log.warning("cannot notify the service manager", address=path, state=state, reason=str(error))


@functools.cache
def door() -> socket.socket:
    """The socket to the service manager. It stays open: if clients use up all files, the watchdog must still be fed."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    opened.setblocking(False)
    return opened


def watchdog_interval_s() -> float | None:
    """Seconds between keep-alive notifications that systemd wants (WatchdogSec, halved); None = it wants none."""
    microseconds, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not microseconds.isdecimal() or int(microseconds) == 0 or pid != str(os.getpid()):
        return None
    return int(microseconds) / 2e6


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    """A bug ended a thread. If it was one of the broker's own threads, nothing is safe: end as kill -9 would."""
    name = args.thread.name if args.thread is not None else "?"
    info = (args.exc_type, args.exc_value, args.exc_traceback)
    _log.critical("a thread failed", thread=name, exc_info=info)
    if name in VITAL_THREADS:
        os._exit(INTERNAL)
