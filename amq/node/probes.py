"""The probes of this process: `probeListen`, answered by the broker itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from amq.config.transport_url import host_and_port
from amq.core.errors import ConfigError
from amq.management.probes import Health, ProbeServer
from amq.node.member import Member, Role

_ORDER = (Role.STOPPED, Role.STARTING, Role.SLAVE, Role.MASTER)
_log = structlog.get_logger("amq.management")


class OwnProbes:
    """`listen` = HOST:PORT, "" = nowhere; `condition()` = that of the process now. One whose port cannot be had goes on
    without: clients come first."""

    def __init__(self, listen: str, condition: Callable[[], Health]) -> None:
        self._listen = listen
        self._condition = condition
        self._server: ProbeServer | None = None

    async def start(self) -> None:
        if not self._listen:
            return
        host, port = host_and_port(self._listen)
        server = ProbeServer(host, port, self._condition)
        try:
            _log.info("probes", listen=await server.start())
        except ConfigError as error:
            _log.error("no probes: load balancers and kubelets cannot ask", reason=error.description)
            return
        self._server = server

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()


def worst(members: Sequence[Member]) -> Health:
    """The condition of the member that is worst off: a starting one, a slave that could not take over, a slave, a
    master."""
    found = min(members, key=lambda each: (_ORDER.index(each.role), not each.not_ready))
    return Health(found.role.value, found.not_ready)
