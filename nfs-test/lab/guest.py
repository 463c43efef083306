"""One guest: a User-mode Linux kernel with two network cards, and the link to the agent in it.

Invariant: a guest's processes are in a process group of their own and in the lab's process namespace, so a power-off
takes all of them, and the end of the lab takes all guests.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import agent, kernel
from lab.errors import LabError
from lab.network import Network, control_address
from lab.packages import MODULES, Packages

HERE = Path(__file__).resolve().parent
BOOT_DEADLINE_S = 60.0
RUN_DEADLINE_S = 60.0
MEMORY = "256M"


@dataclass(frozen=True)
class Place:
    """Where a lab puts things: `work` in memory, gone with it; `logs` stay; `python` and `amq` run in guests. `preload`
    is what the guests' kernels need on this CPU, "" = nothing."""

    work: Path
    logs: Path
    python: str
    amq: Sequence[str]
    packages: Packages
    environment: Mapping[str, str]
    preload: str = ""


class Guest:
    """Guest `number`, booted by `start`. `disks` are ubd arguments such as {"ubd0": "/path"}. The host gives only those
    pages of `memory` that the guest has used."""

    def __init__(
        self, number: int, network: Network, place: Place, disks: Mapping[str, str] | None = None, memory: str = MEMORY
    ) -> None:
        self.number = number
        self.name = f"host{number}"
        self.address = control_address(number)
        self.python = place.python
        self._network = network
        self._place = place
        self._disks = dict(disks or {})
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None

    # -- power ---------------------------------------------------------------------------------------------------------

    def start(self) -> Guest:
        """Switch it on; see `wait_up`."""
        assert self._process is None, f"{self.name} runs"
        data, control = self._network.plug(self.number)
        place = self._place
        words = [
            *kernel.command(self.name, place.work, HERE / "guest.sh", self._memory),
            *(f"{key}={value}" for key, value in self._disks.items()),
            f"vec0:transport=tap,ifname={data},depth=128,gro=1,mac=02:98:00:00:00:{self.number:02x}",
            f"vec1:transport=tap,ifname={control},depth=128,gro=1,mac=02:99:00:00:00:{self.number:02x}",
            f"LAB_NUMBER={self.number}",
            "LAB_DATA=vec0",
            "LAB_CONTROL=vec1",
            f"LAB_PYTHON={place.python}",
            f"LAB_AGENT={HERE / 'agent.py'}",
            f"LAB_PACKAGES={place.packages.root}",
            f"LAB_MODULES={MODULES}",
            f"LAB_MULTIARCH={place.packages.multiarch}",
        ]
        with open(place.logs / f"{self.name}.console", "ab") as console:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                process_group=0,
                env=kernel.environment(place.work, place.preload),
            )
        return self

    def wait_up(self) -> Guest:
        """Until its agent answers."""
        deadline = time.monotonic() + BOOT_DEADLINE_S
        while True:
            try:
                self.run("true", timeout_s=5.0)
                return self
            except (OSError, LabError) as error:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"{self.name} does not boot ({error}); see {self.name}.console") from error
            time.sleep(0.05)

    @property
    def on(self) -> bool:
        return self._process is not None

    def power_off(self) -> None:
        """As if its plug was pulled."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self._network.unplug(self.number)

    def freeze(self) -> None:
        """Stop all its processors at once: no instruction of it runs, its memory stays."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # to its main process alone: a stop of the group kills its processes

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        """Take it off the data network. The control network goes on."""
        self._network.cut(self.number)

    def heal(self) -> None:
        self._network.heal(self.number)

    def silence(self) -> None:
        """Take it off the control network: clients, logs and orders do not reach it. The data network goes on."""
        self._network.silence(self.number)

    def unsilence(self) -> None:
        self._network.unsilence(self.number)

    # -- programs on it ------------------------------------------------------------------------------------------------

    def run(self, command: str | Sequence[str], timeout_s: float = RUN_DEADLINE_S) -> str:
        """Run a command (a text = by sh) and return its output. LabError when it fails or takes too long."""
        code, output = self.try_run(command, timeout_s)
        if code != 0:
            why = f"exit code {code}" if code is not None else f"no end within {timeout_s:g} s"
            raise LabError(f"{self.name}: {command}: {why}\n{output}")
        return output

    def try_run(self, command: str | Sequence[str], timeout_s: float = RUN_DEADLINE_S) -> tuple[int | None, str]:
        """(exit code, output); code None = did not end in time."""
        words = ["/bin/sh", "-ec", command] if isinstance(command, str) else list(command)
        with self._ask({"run": words, "timeout_s": timeout_s}, timeout_s + 10.0) as answers:
            answer = json.loads(answers.readline() or "{}")
        if "output" not in answer:
            raise LabError(f"{self.name} went away while it ran {shlex.join(words)}")
        return answer["code"], answer["output"]

    def spawn(self, words: Sequence[str], on_line: Callable[[str], None], on_exit: Callable[[int], None]) -> int:
        """Start a program and return its process id (in the guest). Both functions are called in a thread; a guest that
        loses its power never says `on_exit`."""
        answers = self._ask({"start": list(words), "env": dict(self._place.environment)}, None)
        pid = int(json.loads(answers.readline())["pid"])

        def read() -> None:
            try:
                with answers:
                    for raw in answers:
                        answer = json.loads(raw)
                        if "exit" in answer:
                            on_exit(answer["exit"])
                        else:
                            on_line(answer["line"])
            except (OSError, ValueError):
                return  # the power went off in the middle of a line

        threading.Thread(target=read, name=f"output of {self.name}", daemon=True).start()
        return pid

    def signal(self, pid: int, number: signal.Signals) -> None:
        with self._ask({"pid": pid, "signal": int(number)}, 20.0) as answers:
            answers.readline()

    def _ask(self, request: Mapping[str, Any], timeout_s: float | None) -> Any:
        sock = socket.create_connection((self.address, agent.PORT), 5.0)
        try:
            sock.settimeout(timeout_s)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.sendall(json.dumps(request).encode() + b"\n")
            return sock.makefile("rb")
        finally:
            sock.close()  # the file goes on until it is closed itself
