"""Group: the facts that this broker publishes for the other brokers of its store, and its reactions to theirs.

Each broker publishes `Facts` in `brokers/NAME.json`. Those of the others have two effects. A slave whose
transports cannot be opened holds back from the lock while another broker can serve (docs/master-slave.md, "A broker
that cannot listen"): this module looks, `amq.node.candidacy` decides. A slave whose shared options differ from another
broker's warns.

Invariant: nothing here is needed for safety. The probe runs in a separate thread, because a name server may keep it
waiting; everything else belongs to the lease thread.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from amq.config import addresses
from amq.config import group as options
from amq.config.schema import BrokerConfig
from amq.config.transport_url import parse_transport_url
from amq.core.errors import AmqError, TransportError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.node.candidacy import Listening
from amq.node.linking import link_secret
from amq.store.board import Board
from amq.store.election import Election
from amq.store.host import Host, is_here
from amq.store.presence import MASTER, BrokerPresence, read_presence
from amq.transports.probe import Refusal

PROBE_S = 5.0  # between two probes of the transports while this broker is not a master
PROBE_PATIENCE_S = 3.0  # a start waits so long for the first answer: a name server may keep the probe
LOOK_S = 1.0  # between two readings of `brokers/` while this broker cannot serve
MEET_S = 5.0  # between two readings of `brokers/` by the master, for its clients
COMPARE_S = 30.0  # between two comparisons of options
WHY_CHARS_MAX = 500
Probe = Callable[[Sequence[str]], tuple[Refusal, ...]]
_log = structlog.get_logger("amq.group")


@dataclass(frozen=True, slots=True)
class Facts:
    """Statements of a broker about itself, as long as they are true.

    options        `amq.config.group.published`
    cannot_listen  why it could not serve clients as master, "" = it could
    urls           where it serves clients now, with the ports that the kernel chose; () = it does not
    store_full     it is master and rejects messages, because the store's disk is full
    priority       the broker with the highest one should be master
    not_ready      why it could not take over now as a slave, "" = it could
    passive        it is a slave that waits for an order, because the last master forbade a failover
    answer         to the last order that it got (`amq.store.orders.OrderAnswer`)
    addresses      where clients find it while it is master
    management     path of its management socket on its host, "" = it has none
    console        URL of its console, as that announced it lately; "" = unknown
    link           where gateways reach it while it is master, "" = nowhere
    certificate    of its TLS ports: `subject`, `not_after_s` (seconds since 1970); {} = it has none
    placement      the table of its cluster that it obeys as master (`amq.broker.homes`); {} = none
    merge          how far the store is merged into another one (`amq.broker.transfer.merging`); {} = it is not
    """

    options: Mapping[str, Any]
    cannot_listen: str = ""
    urls: tuple[str, ...] = ()
    store_full: bool = False
    priority: int = 0
    not_ready: str = ""
    passive: bool = False
    answer: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    management: str = ""
    console: str = ""
    link: str = ""
    certificate: Mapping[str, Any] = field(default_factory=dict)
    placement: Mapping[str, Any] = field(default_factory=dict)
    merge: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "options": dict(self.options),
            "cannot_listen": self.cannot_listen[:WHY_CHARS_MAX],
            "urls": list(self.urls),
            "store_full": self.store_full,
            "priority": self.priority,
            "not_ready": self.not_ready[:WHY_CHARS_MAX],
            "passive": self.passive,
            "answer": dict(self.answer),
            "addresses": list(self.addresses),
            **({"management": self.management} if self.management else {}),
            **({"console": self.console} if self.console else {}),
            **({"link": self.link} if self.link else {}),
            **({"certificate": dict(self.certificate)} if self.certificate else {}),
            **({"placement": dict(self.placement)} if self.placement else {}),
            **({"merge": dict(self.merge)} if self.merge else {}),
        }


class Group:
    """This broker among the others. `config` may be replaced while the broker runs."""

    def __init__(
        self,
        board: Board,
        election: Election,
        clock: Clock,
        host: Host,
        threads: Threads,
        config: BrokerConfig,
        name: str,
        probe: Probe | None,
    ) -> None:
        """`name` is this broker's; `probe` tells which transports cannot be opened, None = they always can."""
        self.config = config
        self._board = board
        self._election = election
        self._clock = clock
        self._host = host
        self._threads = threads
        self._name = name
        self._probe = probe
        self._stopping = threads.event()
        self._ask = threads.event()  # the probe thread has something to do
        self._answered = threads.event()
        self._serving = False
        self._refusals: tuple[Refusal, ...] = ()
        self._why = ""  # as last told
        self._others: list[BrokerPresence] = []
        self._trouble = ""  # in reading their files, as last reported
        self._looked = -math.inf
        self._is_read = True
        self._met: list[BrokerPresence] = []
        self._neighbours: tuple[str, ...] = ()
        self._compare_at = 0.0
        self._warned: dict[str, str] = {}  # by broker: in which options it differs, as last told
        self._published: tuple[BrokerConfig, dict[str, Any]] | None = None

    # -- what this broker says ----------------------------------------------------------------------------------------

    def facts(self, **more: Any) -> dict[str, Any]:
        """The facts for `brokers/NAME.json`. `more` = those of `Facts` that this class does not know."""
        found = addresses.of_broker(self.config, more.get("urls", ()), self._host.name())
        return Facts(self._options(), self._why, priority=self.config.priority, addresses=found, **more).to_json()

    @property
    def why(self) -> str:
        """Why this broker could not serve clients, as others are told; "" = it could."""
        return self._why

    def _options(self) -> dict[str, Any]:
        """The options that all brokers should share. A broker without transports, such as an import, has none."""
        config = self.config
        if not config.transports:
            return {}
        if self._published is None or self._published[0] is not config:
            self._published = config, options.published(config)
        return self._published[1]

    # -- what the others say of themselves, for clients ---------------------------------------------------------------

    def neighbours(self, age_s: float = 0.0) -> tuple[str, ...]:
        """Where clients find the other brokers, as read not longer than `age_s` ago. As long as their files cannot be
        read it is what they said last.
        """
        if not self.config.update_cluster_clients:
            return ()
        others = self.others(age_s)
        if others is not self._met and self._is_read:
            self._met = others
            self._neighbours = addresses_of(others, self._host)
        return self._neighbours

    # -- the probe ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to probe; returns when the first answer is there, or does not come soon."""
        if self._probe is not None:
            self._threads.start("amq-probe", self._keep_probing)
            self._answered.wait(PROBE_PATIENCE_S)

    def stop(self) -> None:
        self._stopping.set()
        self._ask.set()

    def serving(self, serving: bool) -> None:
        """A master is not probed: the port is its own."""
        self._serving = serving
        if serving:
            self._refusals = ()
            self._tell(())
        else:
            self._ask.set()

    def _keep_probing(self) -> None:
        while not self._stopping.is_set():
            self._ask.clear()
            if not self._serving:
                found = self._refused()
                if not self._serving:
                    self._refusals = found
            self._answered.set()
            self._ask.wait(PROBE_S)

    def _refused(self) -> tuple[Refusal, ...]:
        assert self._probe is not None
        config = self.config
        if not config.link_listen:
            return self._probe(config.transports)
        found = self._probe((*config.transports, config.link_listen))
        try:
            link_secret(config.link_secret_file)
        except TransportError as error:
            return (*found, Refusal(config.link_listen, 0, 0, error.description))
        return found

    # -- whether this broker could serve ------------------------------------------------------------------------------

    def check_start(self, pause: Callable[[float], bool], patience_s: float) -> None:
        """End a broker that cannot serve and is alone on the store: a person must look.

        A port may still be in use by a process that ends just now, so the probe has `patience_s`. `pause(seconds)` is
        True when the broker is told to stop. Raises TransportError.
        """
        until = self._clock.monotonic() + patience_s
        while self._refusals:
            self._look()
            if self._others or pause(0.0):
                return
            if self._clock.monotonic() >= until:
                raise TransportError(f"{_told(self._refusals)}; no other broker runs on this store")
            self._answered.clear()
            self._ask.set()
            self._answered.wait(PROBE_PATIENCE_S)
            pause(min(0.2, patience_s))

    def listening(self) -> Listening:
        """Look whether this broker could serve, and say so to the others."""
        now = self._clock.monotonic()
        if now >= self._compare_at:
            self._compare_at = now + COMPARE_S
            self._look()
            self._compare()
        refusals = self._refusals
        beside = not refusals
        if refusals:
            self.others(LOOK_S)
            refusals = tuple(each for each in refusals if not self._is_master_here(each))
        self._tell(refusals)
        if not refusals:
            return Listening(beside=beside)
        another = any(_can_listen(other) for other in self._others)
        return Listening(False, beside, another, free=another and not self._lock_held())

    def acquired(self) -> None:
        """The lock is this broker's."""
        if self._why:
            _log.error("no broker can serve clients: taking over all the same", reason=self._why)

    def failed(self, error: TransportError, again_s: float) -> None:
        """This broker became master and could not listen; it comes back `again_s` later."""
        if not self._refusals:
            self._refusals = (Refusal("", 0, 0, error.description),)
        _log.error("gave the mastership up: no transport", reason=error.description, again_s=again_s)

    def _tell(self, refusals: tuple[Refusal, ...]) -> None:
        why = _told(refusals)
        if why == self._why:
            return
        self._why = why
        if why:
            _log.warning("this broker could not serve clients as master: it leaves the lock to others", reason=why)
        else:
            _log.info("the transports can be opened again: this broker competes for the lock")

    def others(self, age_s: float) -> list[BrokerPresence]:
        """The brokers that run on this store beside this one, as read not longer than `age_s` ago."""
        if self._clock.monotonic() >= self._looked + age_s:
            self._look()
        return self._others

    def _look(self) -> None:
        """Read what the others say. Where that cannot be read this broker acts as if it were alone, and competes."""
        self._looked = self._clock.monotonic()
        found, self._is_read = [], False
        try:
            found = read_presence(self._board)
            self._is_read = True
        except (AmqError, OSError) as error:  # AmqError: written by a newer version
            if str(error) != self._trouble:
                _log.info("the files of other brokers cannot be read", reason=str(error))
            self._trouble = str(error)
        self._others = [other for other in found if other.name != self._name]

    def _is_master_here(self, refusal: Refusal) -> bool:
        """Whether the port is taken by the master itself, on this host: when it ends the port is free."""
        return refusal.number == errno.EADDRINUSE and any(
            other.role == MASTER
            and other.owner is not None
            and is_here(other.owner, self._host)
            and refusal.port in _ports(other)
            for other in self._others
        )

    def _lock_held(self) -> bool:
        """An answer that may be old on a network file system: nothing but patience depends on it. Without one the lock
        counts as free: the patience runs, and then the locker meets the same error.
        """
        with suppress(OSError):
            return self._election.is_held()
        return False

    # -- options that differ ------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Warn of each other broker whose shared options differ, once for each difference."""
        mine = self._options()
        if not mine:
            return
        for other in self._others:
            found = options.differences(mine, _published_by(other))
            told = options.describe(found, self._name, other.name)
            if told and told != self._warned.get(other.name):
                _log.warning("options differ in this group: after a takeover other rules hold", differences=told)
            self._warned[other.name] = told
        names = {other.name for other in self._others}
        self._warned = {name: told for name, told in self._warned.items() if name in names}


def _published_by(broker: BrokerPresence) -> Mapping[str, Any]:
    found = broker.facts.get("options")
    return found if isinstance(found, dict) else {}


def addresses_of(brokers: Sequence[BrokerPresence], host: Host) -> tuple[str, ...]:
    """Where clients find `brokers`, the one with the highest priority first, then by name. An address that only its own
    host can reach counts on that host alone. `host` is this one.
    """
    found: list[str] = []
    for broker in sorted(brokers, key=lambda each: (-each.priority, each.name)):
        owner = broker.owner
        if owner is None:  # it is just writing who it is
            continue
        urls = addresses.stated(broker.addresses, owner.host)  # none of version 0.1, which cannot take over
        near = is_here(owner, host)
        found += [url for url in urls if near or not parse_transport_url(url).loopback]
    return addresses.bounded(found)


def _can_listen(broker: BrokerPresence) -> bool:
    """True also where `broker` does not say: it may be of an older version."""
    return not broker.facts.get("cannot_listen")


def _ports(broker: BrokerPresence) -> set[int]:
    found = set()
    served = broker.facts.get("urls")
    for text in (*(broker.owner.transport_urls if broker.owner else ()), *(served if isinstance(served, list) else ())):
        try:
            found.add(parse_transport_url(str(text)).port)
        except ValueError:  # of another version
            continue
    return found


def _told(refusals: Sequence[Refusal]) -> str:
    return "; ".join(str(each) if each.url else each.reason for each in refusals)
