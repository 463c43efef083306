"""Fence agent, run by dlm_controld in a guest: asks the lab's power switch to end a node. Standard library only.

Invariant: exit code 0 only when the node is off.
"""

from __future__ import annotations

import socket
import sys

if __name__ == "__main__":
    node = next(line.partition("=")[2].strip() for line in sys.stdin if line.startswith("node="))
    with socket.create_connection(("10.99.0.254", 7001), 10.0) as sock, sock.makefile("rwb") as stream:
        stream.write(f"{node}\n".encode())
        stream.flush()
        sys.exit(0 if stream.readline() == b"off\n" else 1)
