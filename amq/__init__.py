"""amq: a message broker for two or three machines that share a file system.

Identical brokers race for an exclusive lock on a shared store; the winner (master) replays the journal and opens its
transports, the others (slaves) wait; clients find the master through a failover URL.

`amq.connect(url)` and `await amq.aio.connect(url)` are the client (docs/client.md), loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amq.client import aio as aio
    from amq.client import connect as connect

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "connect":
        from amq.client import connect

        return connect
    if name == "aio":
        import amq.client.aio

        return amq.client.aio
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
