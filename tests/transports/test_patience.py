"""A client of OpenWire may log in late if it shows that it is there; one that promises nothing has connectTimeout."""

from __future__ import annotations

import socket

from amq.protocols.openwire import table
from amq.protocols.openwire.frames import Frames
from amq.protocols.openwire.hello import MAGIC
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import frame, structure
from amq.protocols.openwire.wire import INT, optional_bytes
from tests.brokers import Brokers
from tests.patience import DEADLINE_S

VERSION = 12
FRAME_BYTES = 1 << 20


def stranger(port: int, inactivity_ms: int) -> socket.socket:
    """Connected, and not logged in."""
    sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    options = encode_map({"MaxInactivityDuration": inactivity_ms})
    words = bytes((table.WIRE_FORMAT_INFO,)) + MAGIC + INT.pack(VERSION) + optional_bytes(options)
    sock.sendall(INT.pack(len(words)) + words)
    return sock


def test_the_time_to_log_in(brokers: Brokers) -> None:
    broker = brokers.add("a", connectTimeout="300ms")
    broker.scheme = "openwire"
    broker.start().wait_serving()
    with stranger(broker.port, 30_000) as heard, stranger(broker.port, 0) as silent:
        said = b""
        while data := silent.recv(4096):
            said += data
        assert b"no login within 0.3 s" in said
        heard.sendall(frame(structure(table.KEEP_ALIVE_INFO, command_id=1, response_required=True), VERSION))
        frames, kinds = Frames(FRAME_BYTES), set()
        while table.KEEP_ALIVE_INFO not in kinds:
            data = heard.recv(4096)
            assert data, "it was cut, too"
            frames.push(data)
            while (found := frames.next_frame()) is not None:
                kinds.add(found[0])
