"""`amq …` in processes that start sooner: each is forked from one that has imported the package. Tests start hundreds,
and each would spend 0.3 s of processor time on imports alone.

A process that is forked here is as real as one that a shell starts: a child of the test's process, with descriptors, a
directory, an environment, signals and a separate exit code. Only its command line in /proc is another one. Where a
fresh interpreter would be another one (other code, other variables of Python or the linker), a fresh one is started.

Invariant: a process dies with the test run, even when that is killed. The one to fork from has no threads.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.processes import LEASH, PR_SET_PDEATHSIG

ROOT = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
REQUEST_BYTES_MAX = 128 << 10
OF_THE_INTERPRETER = ("PYTHON", "LC_", "LD_", "COVERAGE_")  # variables that count when it starts, and these:
ALSO = ("LANG", "LANGUAGE", "TZ")
COMMANDS = ("amq.cli.main", "amq.cli.start", "amq.node.member")  # what they import is there already in each process

_libc = ctypes.CDLL(None, use_errno=True)


class AmqProcess(subprocess.Popen[bytes]):
    """`amq` with these words; keywords are those of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        self._words = list(words)
        super().__init__([sys.executable, "-SEc", LEASH, sys.executable, "-m", "amq", *words], **options)

    def __exit__(self, kind: type[BaseException] | None, *how: Any) -> None:
        """A test that fails within the block does not wait for the process."""
        if kind is not None:
            self.kill()
        super().__exit__(kind, *how)

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *rest: Any,
    ) -> None:
        """The one step of `subprocess.Popen` that makes the process; all before and after it is as in any other."""
        variables = dict(os.environ if env is None else env)
        if Path(cwd or ".").resolve() != ROOT or not PARENT.is_alike(variables):
            super()._execute_child(
                args,
                executable,
                preexec_fn,
                close_fds,
                pass_fds,
                cwd,
                env,
                startupinfo,
                creationflags,
                shell,
                p2cread,
                p2cwrite,
                c2pread,
                c2pwrite,
                errread,
                errwrite,
                *rest,
            )
            return
        assert preexec_fn is None
        assert not pass_fds
        files = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = PARENT.fork(self._words, files, variables, new_group=rest[-1] == 0)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


class Parent:
    """The process that has imported `amq`, started when it is first needed; it ends with this one."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._alike: dict[str, str] = {}
        self._channel: socket.socket | None = None

    def start(self) -> None:
        """Unless it runs already."""
        with self._one_at_a_time:
            if self._channel is None:
                self._start()

    def is_alike(self, variables: Mapping[str, str]) -> bool:
        """Whether an interpreter that starts with these variables would be the one that was preloaded."""
        self.start()
        return _of_the_interpreter(variables) == self._alike

    def fork(self, words: list[str], files: list[int], variables: Mapping[str, str], new_group: bool) -> int:
        """The process id of `amq` with these words, now our child. `files` are its standard descriptors."""
        request = {"words": words, "variables": dict(variables), "new_group": new_group, "parent": os.getpid()}
        with self._one_at_a_time:
            assert self._channel is not None
            _prctl(PR_SET_CHILD_SUBREAPER, 1)  # the orphan of its first parent becomes our child
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], files)
                answer = self._channel.recv(64)
            finally:
                _prctl(PR_SET_CHILD_SUBREAPER, 0)
        assert answer, "the preloaded process has died: see stderr"
        return int(answer)

    def _start(self) -> None:
        self._alike = _of_the_interpreter(os.environ)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(process.wait)
        atexit.register(self._channel.close)  # before that: it ends then


def _of_the_interpreter(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(OF_THE_INTERPRETER) or name in ALSO}


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


PARENT = Parent()


# -- in the preloaded process ------------------------------------------------------------------------------------------


def next_words(channel: socket.socket) -> list[str] | None:
    """Fork for each request. Returns its words in the new process, and None in this one when nobody asks any more."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        request = json.loads(message)
        waiting, gate = os.pipe()
        first = os.fork()
        if first == 0:
            if os.fork() != 0:
                os._exit(0)
            os.close(gate)
            os.read(waiting, 1)  # until our parent is gone, and the process that asked has become it
            os.close(waiting)
            _become(channel, files, request)
            return list(request["words"])
        os.close(waiting)
        os.waitpid(first, 0)
        os.close(gate)
        for fd in files:
            os.close(fd)


def _become(channel: socket.socket, files: Sequence[int], request: Mapping[str, Any]) -> None:
    """What the kernel and an interpreter give to a process that they start."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request["parent"]:
        os._exit(1)  # it has died
    if request["new_group"]:
        os.setpgid(0, 0)
    for number, fd in enumerate(files):
        os.dup2(fd, number)
    for fd in files:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv[1:] = request["words"]
    channel.send(str(os.getpid()).encode())
    channel.close()


if __name__ == "__main__":
    for name in COMMANDS:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    words = None
    with contextlib.suppress(KeyboardInterrupt):  # the test run ends, and so do we
        words = next_words(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        importlib.import_module("amq.cli.main").main(prog_name="amq")
