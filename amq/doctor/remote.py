"""The hands of another process, through a socket: a child process, or `amq doctor DIR --as-peer` on another host.

One JSON object a line, answered in order:

    {"hello": RUN, "nonce": N}        → {"result": {"host": …, "boot_id": …, "mount": {…}, "findings": […]}}
    {"do": OPERATION, "with": […]}    → {"result": …} or {"errno": n, "error": "…"} or {"refused": "…"}

Before the hello the caller writes the nonce to a file `amq-doctor-RUN-hello` in the directory, and the other side opens
it. So both know that they share the directory, and a caller that cannot write to it cannot make the other side act.

The socket tells *when* the other side did something. Files alone do not: a file that appears late cannot be told from a
file that was made late. The doctor compares the rates of two hosts' clocks, never their times.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from amq.core.errors import AmqError
from amq.doctor.hands import LocalHands
from amq.doors.clock import Clock, SystemClock
from amq.doors.threads import SystemThreads, Threads
from amq.store.files.vfs import SystemVfs, Vfs

VERSION = 1
LINE_BYTES_MAX = 64 << 10
PATIENCE_S = 60.0  # a lock request may wait for the grace period of a server that just started
HELLO_PATIENCE_S = 10.0
END_PATIENCE_S = 5.0
HELLO = "hello"


class PeerError(AmqError):
    """The other side cannot be reached, or speaks another protocol."""

    code = "PEER_UNREACHABLE"


class NotSharedError(AmqError):
    """The other side answers, but our file is not in its directory."""

    code = "PEER_ELSEWHERE"


class RemoteHands:
    """Hands at the other end of `sock`. A context manager; at its end the other side releases everything."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.settimeout(PATIENCE_S)
        self._stream = sock.makefile("rwb")
        self._due = 0  # answers that nobody has read yet

    def hello(self, run: str, nonce: str) -> dict[str, Any]:
        """Greet the other side. Returns what it reports about itself. Raises PeerError, NotSharedError."""
        try:
            answer = self._ask({"hello": run, "nonce": nonce, "version": VERSION})()
        except OSError as error:
            raise PeerError(f"it cannot read its directory: {error.strerror or error}") from error
        if not isinstance(answer, dict):
            raise PeerError("it did not answer the greeting: start `amq doctor DIR --as-peer` there")
        return answer

    def call(self, operation: str, *arguments: Any) -> Any:
        return self.start(operation, *arguments)()

    def start(self, operation: str, *arguments: Any) -> Callable[[], Any]:
        return self._ask({"do": operation, "with": arguments})

    def _ask(self, question: dict[str, Any]) -> Callable[[], Any]:
        while self._due:  # the caller did not wait for it, because something else had failed
            self._read()
        try:
            self._stream.write(json.dumps(question).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise PeerError(f"the connection broke: {error}") from error
        self._due += 1
        return self._answer

    def _read(self) -> dict[str, Any]:
        self._due -= 1
        try:
            line = self._stream.readline(LINE_BYTES_MAX)
            answer = json.loads(line) if line else None
        except (OSError, ValueError) as error:
            raise PeerError(f"its answer cannot be read: {error}") from error
        if answer is None:
            raise PeerError("it closed the connection")
        if not isinstance(answer, dict):
            raise PeerError("it speaks another protocol: start `amq doctor DIR --as-peer` there")
        return answer

    def _answer(self) -> Any:
        answer = self._read()
        if isinstance(answer.get("errno"), int):
            raise OSError(answer["errno"], str(answer.get("error", "")))
        if answer.get("refused") == NotSharedError.code:
            raise NotSharedError("it does not find our file in its directory")
        if "refused" in answer:
            raise PeerError(str(answer["refused"]))
        return answer.get("result")

    def close(self) -> None:
        with suppress(OSError):  # a question that could not be sent is still in its buffer
            self._stream.close()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ChildHands(RemoteHands):
    """The hands of a child process, which ends with the block."""

    def __init__(self, directory: str, run: str) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from amq.doctor.remote import serve_child; "
            f"serve_child({directory!r}, {run!r})"
        )
        with theirs:
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(  # Ctrl-C reaches the parent alone, which then ends the child
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )
        super().__init__(ours)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        super().close()  # then the child ends by itself, unless it hangs
        try:
            self._process.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()


class Guest:
    """Serves one connection of `RemoteHands`.

    introduce() describes this host; called after the caller has shown that it can write to our directory.
    """

    def __init__(
        self, vfs: Vfs, clock: Clock, threads: Threads, directory: str, introduce: Callable[[], dict[str, Any]]
    ) -> None:
        self._doors = (vfs, clock, threads, directory)
        self._introduce = introduce
        self._hands: LocalHands | None = None

    def trust(self, run: str) -> None:
        """Trust the caller: it started this process."""
        self._hands = LocalHands(*self._doors, run, "b")

    def serve(self, sock: socket.socket) -> None:
        """Answer until the caller hangs up. Raises OSError if the connection breaks."""
        try:
            with sock.makefile("rwb") as stream:
                while line := stream.readline(LINE_BYTES_MAX):
                    stream.write(json.dumps(self._reply(line)).encode() + b"\n")
                    stream.flush()
        finally:
            if self._hands is not None:
                self._hands.close()

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            question = json.loads(line)
            if not isinstance(question, dict):
                return {"refused": "not a question"}
            if "hello" in question:
                return self._greet(question)
            if self._hands is None:
                return {"refused": "say hello first"}
            return {"result": self._hands.call(question["do"], *question["with"])}
        except OSError as error:
            return {"errno": error.errno or 0, "error": error.strerror or str(error)}
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError) as error:
            return {"refused": f"cannot be done: {error}"}

    def _greet(self, question: dict[str, Any]) -> dict[str, Any]:
        if question.get("version") != VERSION:
            return {"refused": f"it speaks version {VERSION} of the examination: use the same amq on all hosts"}
        hands = LocalHands(*self._doors, str(question["hello"]), "b")
        seen = hands.call("look", HELLO, "open", HELLO_PATIENCE_S) is not None
        if not seen or hands.call("read", HELLO) != question.get("nonce"):
            return {"refused": NotSharedError.code}
        self._hands = hands
        return {"result": self._introduce()}


def connect(host: str, port: int) -> RemoteHands:
    """Connect to a peer. Raises PeerError."""
    try:
        return RemoteHands(socket.create_connection((host, port), HELLO_PATIENCE_S))
    except (OSError, UnicodeError) as error:  # UnicodeError: the host's name cannot be one
        raise PeerError(f"{error}: start `amq doctor DIR --as-peer` on {host} and open port {port}") from error


def serve_child(directory: str, run: str) -> None:
    """Main function of the process of `ChildHands`; its standard input is the socket."""
    guest = Guest(SystemVfs(), SystemClock(), SystemThreads(), directory, dict)
    guest.trust(run)
    with socket.socket(fileno=0) as sock:
        guest.serve(sock)
