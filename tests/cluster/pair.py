"""Two nodes of a cluster in place of a master and a slave, for suites of clients that know nothing of clusters."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from tests.cluster.nodes import Node, Nodes, served_by
from tests.processes import naming
from tests.relay import Relay


class OneWay(Relay):
    """Only the port `open_port` leads anywhere: a slave refuses connections, but a gateway never does."""

    open_port = 0

    def _port_of(self, listener: socket.socket) -> int:
        port = super()._port_of(listener)
        return port if port == self.open_port else 0


class NodePair:
    """Node `a` serves all stores, and all clients; node `b` is slave of each store. Clients connect to the ports of
    `relay`. What dies is the whole node: its gateway with the connections, and the masters of all stores."""

    def __init__(self, directory: Path, config: Path, stores: int = 2) -> None:
        self._config = str(config)
        self._group = Nodes(directory, stores, fixed_ports=True)
        self.master, self._other = self._group.nodes["a"], self._group.nodes["b"]
        for node in self._group.nodes.values():
            node.options = {"failbackDelay": "1h", "lockKeepAlivePeriod": "10s"}  # stores stay where they are
        try:
            self.master.start(self._config)
            self._group.until(served_by("a"))
            self._other.start(self._config)
            self._wait_ready(self._other)
        except BaseException:
            self._group.kill()
            raise
        self.relay = OneWay([self.master.port, self._other.port])
        self.relay.open_port = self.master.port

    def _wait_ready(self, node: Node) -> None:
        """Until its gateway listens, and it is ready to be the master of each store."""
        self._group.until(
            lambda found: bool(node.ports) and all(node.name in store["slaves_ready"] for store in found["stores"])
        )

    def _processes(self) -> list[int]:
        """Of the node that serves: the node, its gateway, its members."""
        return [pid for pid, words in naming(self._group.cluster) if self.master.name in words]

    def freeze(self) -> None:
        """Stop the node that serves as it stands."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """kill -9 of all processes of the node that serves; returns when the other one serves all stores. The killed
        one comes back as slave."""
        killed = self.master
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.bury()
        self.master, self._other = self._other, killed
        self.relay.open_port = self.master.port
        self._group.until(served_by(self.master.name))
        killed.start(self._config)
        self._wait_ready(killed)

    def close(self) -> None:
        self.relay.close()
        self._group.kill()
