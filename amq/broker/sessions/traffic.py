"""Traffic: how many messages clients sent, were given, and acknowledged. It lasts as long as a mastership."""

from __future__ import annotations


class Traffic:
    """Counts that connections of one protocol share. So they only grow, also when some of these connections go.

    received      messages from clients that were not refused; one to several destinations counts once
    delivered     messages to clients, each time, also to those that browse
    acknowledged  deliveries that consumers acknowledged, in a transaction at once, and messages of settled leases
    """

    __slots__ = ("acknowledged", "delivered", "received")

    def __init__(self) -> None:
        self.received = 0
        self.delivered = 0
        self.acknowledged = 0
