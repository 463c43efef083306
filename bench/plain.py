"""A relay before a broker whose clients get no frames of many messages: they do as all did before there were such.

Invariant: it removes one header of CONNECT, and passes everything else on as it came. In a separate process, started
as `python -m bench.plain PORT`; it tells its port on stdout.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

PIECE_BYTES = 1 << 18
ASKS = b"amq-runs:1\n"


def pass_on(source: socket.socket, target: socket.socket, removed: bytes = b"") -> None:
    """Bytes of `source` to `target`, until either ends; without `removed` in the first ones."""
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            if removed:
                assert data.count(removed) == 1, "the client does not ask for runs"
                data, removed = data.replace(removed, b""), b""
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def serve(port: int) -> None:
    """For ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        client = listener.accept()[0]
        broker = socket.create_connection(("127.0.0.1", port))
        for given in ((client, broker, ASKS), (broker, client, b"")):
            threading.Thread(target=pass_on, args=given, daemon=True).start()


@contextlib.contextmanager
def before(port: int) -> Iterator[int]:
    """The port of such a relay before the broker at `port`."""
    with subprocess.Popen([sys.executable, "-m", "bench.plain", str(port)], stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        try:
            yield int(relay.stdout.readline())
        finally:
            relay.kill()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
