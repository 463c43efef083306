"""The other members of a group: the network between them, and the roster at the coordinator that says who is there."""

from __future__ import annotations

from random import SystemRandom

from amq.core.errors import ConfigError
from amq.doors.threads import Threads
from amq.store.coordinator import Coordinator
from amq.store.port import EventLoop
from amq.store.replica.peer_network import PeerNetwork, PeerSettings, PeerState, parse_address
from amq.store.replica.peer_secret import secret_at, secret_in
from amq.store.replica.peer_tls import PeerTls
from amq.store.replica.port import Receive
from amq.store.replica.roster import Roster
from amq.store.replica.url import ReplicaUrl

_EVERYWHERE = ("0.0.0.0", "::")


class OpenPeers:
    """See `amq.store.replica.port.Peers`."""

    def __init__(self, network: PeerNetwork, roster: Roster) -> None:
        self._network = network
        self._roster = roster
        self.address = network.address
        self.send = network.send

    def members(self) -> frozenset[str]:
        return self._network.members()

    def gone(self) -> frozenset[str]:
        return self._network.gone()

    def hear_on(self, loop: EventLoop | None) -> None:
        self._network.hear_on(loop)

    def hear(self) -> None:
        self._network.hear()

    def states(self) -> list[PeerState]:
        """How the connection to each member is."""
        return self._network.states()

    def close(self) -> None:
        self._roster.close()
        self._network.close()


def open_peers(me: str, coordinator: Coordinator, options: ReplicaUrl, receive: Receive, threads: Threads) -> OpenPeers:
    """Listen for the other members of the group, and look for them at `coordinator`, which is that of the group alone.
    `me` = the id of this copy. Raises ConfigError, StoreError, OSError."""
    entropy = SystemRandom()
    tls = PeerTls(options.ca_file, options.certificate_file, options.key_file) if options.ca_file else None
    host, port = _listened(options.listen)
    if host in _EVERYWHERE and not options.announced:
        raise ConfigError(
            f"listen={options.listen} names no address that other members could dial: set announced=HOST:PORT",
            code="STORE_URL_INVALID",
        )
    secret = b""
    if options.secret_file:
        secret = secret_in(options.secret_file)
    elif tls is None:
        secret = secret_at(coordinator, entropy)
    settings = PeerSettings(me, options.group, (host, port), options.announced, secret, tls)
    network = PeerNetwork(settings, receive, threads, entropy)
    network.start()
    roster = Roster(coordinator, me, network.address, entropy.randbytes(8).hex(), network.meet, threads)
    try:
        roster.start()
    except BaseException:
        roster.close()
        network.close()
        raise
    return OpenPeers(network, roster)


def _listened(text: str) -> tuple[str, int]:
    """HOST:PORT, where port 0 = any."""
    host, port = parse_address(text.removesuffix(":0") + ":1" if text.endswith(":0") else text)
    return host, 0 if text.endswith(":0") else port
