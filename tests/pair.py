"""A pair of real brokers with a relay before them, for clients of any protocol."""

from __future__ import annotations

from tests.brokers import SERVING, Broker, Brokers
from tests.relay import Relay


class Pair:
    """One broker is master; the other is slave, or about to be. Clients connect to the ports of `relay`."""

    def __init__(self, group: Brokers) -> None:
        self._group = group
        self.brokers = [group.master("a"), group.slave("b")]
        self.relay = Relay([broker.port for broker in self.brokers])

    @property
    def master(self) -> Broker:
        return next(broker for broker in self.brokers if broker.alive and broker.said(SERVING))

    def kill(self) -> None:
        """kill -9 of the master; returns when the other one serves. The killed one comes back, sooner or later."""
        master = self.master
        (other,) = (broker for broker in self.brokers if broker is not master)
        other.wait_slave()
        master.kill()
        try:
            other.wait_serving()
        finally:
            master.start()

    def close(self) -> None:
        self.relay.close()
        self._group.__exit__()
