"""`amq doctor DIR --as-peer`: lends its hands to other hosts, one after the other."""

from __future__ import annotations

import socket
from collections.abc import Callable

from amq.doctor.examine import Outside, existing, introduce
from amq.doctor.remote import PATIENCE_S, Guest


def serve_peer(server: socket.socket, path: str, tell: Callable[[str], None], doors: Outside | None = None) -> None:
    """Serve whoever connects to the listening `server`, until interrupted. `tell(line)` hears of it. Raises OSError
    where the directory cannot be found."""
    doors = doors or Outside()
    directory = existing(path)
    introduce(directory, doors)
    while True:
        sock, address = server.accept()
        sock.settimeout(PATIENCE_S)  # a caller that went away must not keep the others waiting
        with sock:
            try:
                Guest(doors.vfs, doors.clock, doors.threads, directory, lambda: introduce(directory, doors)).serve(sock)
            except OSError as error:
                tell(f"{address[0]}: {error}")
            else:
                tell(f"{address[0]}: examined together")
