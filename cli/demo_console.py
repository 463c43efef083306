"""The console of a demo: `amq console` as a process that ends with the demo, on a free loopback port."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress

from amq.cli.demo_brokers import STOP_S, free_port, leashed
from amq.core.errors import AmqError

_LAST_BYTES = 300  # of its log, shown where it fails
_CONNECT_S = 1.0


class DemoConsole:
    """A console for the brokers of `store`, which must be there when it starts. All from the main thread."""

    def __init__(self, store: str, log_path: str) -> None:
        self._port = free_port()
        self._store = store
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    @property
    def is_open(self) -> bool:
        """Does it take connections?"""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), _CONNECT_S):
            return True
        return False

    def start(self) -> None:
        """Returns at once: `is_open` says when it listens."""
        listen = f"127.0.0.1:{self._port}"
        words = [sys.executable, "-P", "-m", "amq", "console", "--store", self._store, "--listen", listen]
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                leashed(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, process_group=0
            )

    def check(self) -> None:
        """Raises AmqError if it has ended by itself."""
        if self._process is None or self._process.poll() is None:
            return
        with open(self._log_path, "rb") as log:
            said = log.read()[-_LAST_BYTES:].decode(errors="replace").strip()
        raise AmqError(f"the console ended with exit code {self._process.returncode}: {said}", code="DEMO_FAILED")

    def end(self) -> None:
        """Be gone, whatever the state."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
