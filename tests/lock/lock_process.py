"""A real process with the lock component on real doors, driven line by line: JSON request in, JSON answer out.

Run as `python lock_process.py STORE NAME PERIOD_S`. `Process` is the driver's side.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from amq.store.files.epochs import FileEpochs
from amq.store.locker import Locker
from amq.store.open import store_behind

ROOT = Path(__file__).parents[2]
ANSWER_S_MAX = 30.0


class Process:
    """One broker process. Use as a context manager: it is killed and reaped at the end."""

    def __init__(self, store: Path, name: str, period_s: float = 0.5) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, __file__, str(store), name, str(period_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.pid = self._popen.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            stream.close()

    def send(self, do: str, **arguments: Any) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps({"do": do, **arguments}) + "\n")

    def receive(self) -> Any:
        assert self._popen.stdout is not None
        ready, _, _ = select.select([self._popen.stdout], [], [], ANSWER_S_MAX)
        assert ready, "the process does not answer"
        answer = json.loads(self._popen.stdout.readline())
        assert "crash" not in answer, answer
        return answer

    def ask(self, do: str, **arguments: Any) -> Any:
        self.send(do, **arguments)
        return self.receive()

    def kill(self) -> None:
        """kill -9; the dead process is not reaped, as under a careless parent."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def main(store: str, name: str, period_s: float) -> None:
    from amq.core.errors import AmqError
    from amq.doors.clock import SystemClock
    from amq.store.epoch import Epoch
    from amq.store.files.board import FileBoard
    from amq.store.files.vfs import SystemVfs
    from amq.store.host import Owner, SystemHost
    from amq.store.presence import Presence

    vfs, clock, host = SystemVfs(), SystemClock(), SystemHost()
    owner = Owner.make(host, name=name, uuid=str(uuid.uuid4()), transport_urls=(), lock_keep_alive_period_s=period_s)
    locker = Locker(store_behind(vfs, store), clock, host, owner)
    mastership = None
    kept: list[Presence] = []
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match request["do"]:
                case "acquire":
                    answer["got"] = locker.try_acquire()
                case "take_over":
                    mastership = locker.take_over(threading.Event().wait, lambda _previous: {})
                    assert mastership is not None
                    for presence in kept:
                        presence.update("master")
                    answer = {"epoch": mastership.epoch.number, "waited_s": mastership.waited_s}
                    answer["reason"] = mastership.epoch.reason
                case "check":
                    assert mastership is not None
                    answer["valid_before"] = mastership.lease.valid()
                    mastership.lease.check()
                    answer["valid"] = mastership.lease.valid()
                case "holder":
                    answer["holder"] = locker.holder()
                case "release":
                    locker.release()
                case "abandon":
                    locker.abandon()
                case "presence":
                    kept.append(Presence.open(FileBoard(vfs, store), owner))
                case "link":
                    FileEpochs(vfs, store).make()
                    epoch = Epoch(request["number"], owner, {}, 0, "race")
                    answer["won"] = FileEpochs(vfs, store).link(epoch, f"{owner.uuid}-{request['number']}")
        except AmqError as error:
            answer = {"error": error.code, "description": error.description}
        except Exception as error:  # noqa: BLE001 - the driver reports it
            answer = {"crash": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
