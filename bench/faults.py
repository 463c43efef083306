"""What is done to a group of brokers while it works: each fault is one function that hurts it and leaves it to recover.

A fault may return while brokers are down, but leaves a `Wound` that says how to mend it and when; `Surgeon.mend` does.
All randomness comes from the generator that is handed in. Only processes of the group are touched, by their ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.brokers import BrokerGroup, BrokerProcess, BrokerProcessError

LOCK_OFFSET = 1 << 40  # the byte of `lock` that brokers lock
RESTART_S_MAX = 1.5
PAUSE_PERIODS = (0.2, 2.5)  # a pause lasts between these multiples of the keep-alive period
WEIGHTS = {  # fault → how often, among the others
    "kill_master": 10,
    "pause_master": 5,
    "pause_master_and_delete_lock": 4,
    "kill_slave": 2,
    "kill_all": 2,
    "stop_master": 2,
    "delete_lock": 2,
    "replace_lock": 2,
    "hold_lock": 2,
}


class Wound(NamedTuple):
    """Something to be mended at monotonic time `at_s`."""

    at_s: float
    mend: Callable[[], None]


class Surgeon:
    """Hurts `group` and mends it again. `counts` says how often what was done."""

    def __init__(self, group: BrokerGroup, seed: int) -> None:
        self.group = group
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wounds: list[Wound] = []
        self.log: list[str] = []
        self.faults: dict[Callable[[], None], int] = {getattr(self, name): n for name, n in WEIGHTS.items()}

    def hurt(self, allowed: set[str] | None = None) -> str:
        """Do one fault at random, of those `allowed`; its name."""
        faults = {fault: weight for fault, weight in self.faults.items() if not allowed or fault.__name__ in allowed}
        fault = self.random.choices(list(faults), list(faults.values()))[0]
        fault()
        self.counts[fault.__name__] += 1
        return fault.__name__

    def mend(self, everything: bool = False) -> None:
        """Mend what is due by now, or everything."""
        due = [wound for wound in self.wounds if everything or wound.at_s <= time.monotonic()]
        self.wounds = [wound for wound in self.wounds if wound not in due]
        for wound in due:
            wound.mend()

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic_ns() // 1000} {text}")

    def _later(self, delay_s: float, mend: Callable[[], None]) -> None:
        self.wounds.append(Wound(time.monotonic() + delay_s, mend))

    def _restart_later(self, broker: BrokerProcess) -> None:
        def restart() -> None:
            if not broker.alive:
                self.note(f"{broker.name} starts")
                broker.start()

        self._later(self.random.uniform(0, RESTART_S_MAX), restart)

    def _kill(self, broker: BrokerProcess) -> None:
        if broker.alive:
            self.note(f"{broker.name} is killed")
            broker.kill()
            self._restart_later(broker)

    def _victim(self, master: bool) -> BrokerProcess | None:
        """The master, or a random living broker that is not it. The master is whoever answers first."""
        found = self.group.master()
        if master:
            return found
        others = [broker for broker in self.group.brokers if broker.alive and broker is not found]
        return self.random.choice(others) if others else None

    def kill_master(self) -> None:
        master = self._victim(master=True)
        if master:
            self._kill(master)

    def kill_slave(self) -> None:
        slave = self._victim(master=False)
        if slave:
            self._kill(slave)

    def kill_all(self) -> None:
        for broker in self.random.sample(self.group.brokers, len(self.group.brokers)):
            self._kill(broker)

    def stop_master(self) -> None:
        """SIGTERM: hands over cleanly. Who does not end within ten seconds is killed, and that is an error."""
        master = self._victim(master=True)
        if master and master.process:
            self.note(f"{master.name} is asked to stop")
            master.stop()
            if master.process.returncode == -signal.SIGKILL:
                raise BrokerProcessError(f"{master.name} did not end after SIGTERM:\n{master.log_text()[-2000:]}")
            self._restart_later(master)

    def pause_master(self) -> None:
        master = self._victim(master=True)
        if not master:
            return
        pause_s = self.random.uniform(*PAUSE_PERIODS) * master.keep_alive_ms / 1000
        self.note(f"{master.name} is paused for {pause_s:.2f} s")
        master.signal(signal.SIGSTOP)
        process = master.process

        def resume() -> None:
            if master.alive and master.process is process:
                self.note(f"{master.name} resumes")
                master.signal(signal.SIGCONT)

        self._later(pause_s, resume)

    def pause_master_and_delete_lock(self) -> None:
        """The paused master keeps its lock on a file that has no name any more, and another one becomes master."""
        self.pause_master()
        self.delete_lock()

    def delete_lock(self) -> None:
        self.note("lock file deleted")
        with contextlib.suppress(FileNotFoundError):
            self._lock_path().unlink()

    def replace_lock(self) -> None:
        self.note("lock file replaced")
        other = self._lock_path().with_name("lock.other")
        other.write_bytes(b"")
        other.rename(self._lock_path())

    def hold_lock(self) -> None:
        """Somebody else holds the lock for a while; meanwhile nobody may serve."""
        self.kill_all()
        with contextlib.suppress(FileNotFoundError):
            holder = os.open(self._lock_path(), os.O_RDWR)
            # struct flock of 64-bit Linux: type, whence, start, length, pid
            request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCK_OFFSET, 1, 0)
            try:
                fcntl.fcntl(holder, fcntl.F_OFD_SETLK, request)
            except BlockingIOError:  # a broker that starts again was quicker
                os.close(holder)
                return
            self.note("lock held by a stranger")

            def release() -> None:
                master = self.group.master()
                if not self._lock_path().exists() or not self._lock_path().samefile(f"/proc/self/fd/{holder}"):
                    master = None  # the file was deleted or replaced meanwhile: our lock is worth nothing
                os.close(holder)
                self.note("stranger lets go of the lock")
                if master:
                    raise BrokerProcessError(f"{master.name} serves although a stranger holds the lock")

            self._later(self.random.uniform(0.5, 2 * RESTART_S_MAX), release)

    def _lock_path(self) -> Path:
        return self.group.store / "lock"
