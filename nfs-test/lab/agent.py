"""Runs as the first process of a guest and does what the lab asks, over the control network. Standard library only.
With an address and a command it is the other end: it asks the agent there.

One request a connection, JSON lines both ways:
  {"run": words, "timeout_s": s}    → {"code": exit code or null after the time, "output": both streams}
  {"start": words, "env": {…}}      → {"pid": n}, then {"line": text} …, then {"exit": code}; the process outlives the
                                      connection
  {"signal": number, "pid": n}      → {"code": 0}, or 1 where there is no such process
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import subprocess
import sys
from typing import Any

PORT = 7000


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        if "run" in request:
            self._run(request["run"], request["timeout_s"])
        elif "start" in request:
            self._start(request["start"], request["env"])
        else:
            self._signal(request["pid"], request["signal"])

    def _tell(self, **facts: Any) -> None:
        self.wfile.write(json.dumps(facts).encode() + b"\n")

    def _run(self, words: list[str], timeout_s: float) -> None:
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as late:
                process.kill()  # it may hang in a file system for ever: `with` would wait, so tell first
                self._tell(code=None, output=str(late.output or ""))
                return
            self._tell(code=process.returncode, output=output)

    def _start(self, words: list[str], env: dict[str, str]) -> None:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | env,
            errors="replace",
        )
        self._tell(pid=process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(OSError):  # nobody listens any more: read on, so that the process never blocks
                self._tell(line=line.rstrip("\n"))
        with contextlib.suppress(OSError):
            self._tell(exit=process.wait())

    def _signal(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            self._tell(code=1)
        else:
            self._tell(code=0)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def ask(address: str, command: str) -> int:
    """From a person's shell: run `command` in the guest at `address`."""
    with socket.create_connection((address, PORT)) as sock, sock.makefile("rwb") as stream:
        stream.write(json.dumps({"run": ["/bin/sh", "-c", command], "timeout_s": 60}).encode() + b"\n")
        stream.flush()
        answer = json.loads(stream.readline())
    sys.stdout.write(answer["output"])
    return 1 if answer["code"] is None else int(answer["code"])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(ask(sys.argv[1], sys.argv[2]))
    os.environ.setdefault("HOME", "/root")
    with Server(("0.0.0.0", PORT), Handler) as server:
        server.serve_forever()
