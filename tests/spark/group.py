"""Two brokers whose messages tasks read from the store, and whose master is killed again and again."""

from __future__ import annotations

from tests.brokers import Broker, Brokers

QUEUE = "/queue/a"
IN_FLIGHT = 400  # messages that a producer has in flight, at most, when the master is killed
OPTIONS = {
    "directReads": "*",
    "journalSegmentSize": "64KiB",
    "lockKeepAlivePeriod": "10s",
    # Ids that are remembered keep a segment, too: of small messages they are half of it. But all that a producer has in
    # flight when the master is killed must be known.
    "duplicateWindow": str(IN_FLIGHT + 100),
}


class Group:
    """A broker that is killed starts again as a slave."""

    def __init__(self, brokers: Brokers) -> None:
        self.master: Broker = brokers.master("a", **OPTIONS)
        self.slave: Broker = brokers.slave("b", **OPTIONS)
        ports = (self.master.port, self.slave.port)
        self.url = "failover:(" + ",".join(f"stomp://127.0.0.1:{port}" for port in ports) + ")?maxReconnectDelay=100"
        self.kills = 0

    def kill(self) -> None:
        """Kill the master."""
        self.master.kill()
        self.kills += 1
        self.slave.wait_serving()
        self.master, self.slave = self.slave, self.master
        self.slave.start()
        self.slave.wait_slave()
