"""A master and a slave for the whole matrix, and the moments at which the master is killed.

A story (see `matrix_features`) says where it is by what it yields: `BEFORE`, then `During(call)`, the action itself,
then `AFTER`. `play` lets the stories of all clients reach one of these marks, kills the master there with signal 9, and
lets them go on with the next one. Invariant: when a story goes on after a kill, every link is back at the new master,
with all its subscriptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from brokers import Brokers
from matrix_clients import Link

from tests.pair import Pair
from tests.patience import DEADLINE_S
from tests.ports import unread
from tests.relay import Relay

CONFIG = """
[destinations."matrix.poison.>"]
maximumRedeliveries = 2

[destinations."matrix.late.>"]
expiredMessages = "dead-letter"

[destinations."matrix.values.>"]
lastValueKey = "share"

[destinations."matrix.ring.>"]
ringSize = 5

[destinations."matrix.diverted.>"]
divert = "matrix.audit"
"""


class Moment(Enum):
    """When the master dies."""

    BEFORE = "before it"
    UNREAD = "during it, asked and not read"
    UNTOLD = "during it, carried out and not told"
    AFTER = "after it"


BEFORE, AFTER = Moment.BEFORE, Moment.AFTER
IN_FLIGHT = (Moment.UNREAD, Moment.UNTOLD)


@dataclass(frozen=True)
class During:
    """The action: one call, which begins with a request to the broker. What it returns comes back to the story."""

    call: Callable[[], Any]


Story = Generator[Any, Any, None]


class Deadly(Protocol):
    """A group of brokers whose master is stopped and killed. Clients connect to the ports of `relay`."""

    relay: Relay

    def freeze(self) -> None: ...

    def wait_unread(self, connections: int) -> None: ...

    def kill(self) -> None: ...


class FreezablePair(Pair):
    """The brokers, and a way to stop the master as it stands."""

    def __init__(self, directory: Path) -> None:
        config = directory / "amq.toml"
        config.write_text(CONFIG)
        # A killed master is succeeded at once, whatever the period: a long one suits a machine that is busy.
        super().__init__(Brokers(directory, config=config, lockKeepAlivePeriod="5s"))

    def freeze(self) -> None:
        """Stop the master as it stands; returns when none of its threads runs any more."""
        self.master.freeze()

    def wait_unread(self, connections: int) -> None:
        wait_unread(self.master.port, connections)


def wait_unread(port: int, connections: int) -> None:
    """Until this many clients have written what the frozen process with this port does not read."""
    give_up_at = time.monotonic() + DEADLINE_S
    while (asked := unread(port)) < connections:
        assert time.monotonic() < give_up_at, f"only {asked} of {connections} clients have asked"
        time.sleep(0.002)


class Peer:
    """One kind of client in one cell.

    in_flight   the master dies during the action, whose first request is then not read, or not answered
    unread      it is not read: what it asked for has not happened, unless it is asked again
    kills       how often the master has died up to now
    """

    def __init__(self, name: str, cell: str, moment: Moment, open_link: Callable[[str], Link]) -> None:
        self.name = name
        self.moment = moment
        self.in_flight = moment in IN_FLIGHT
        self.unread = moment is Moment.UNREAD
        self.kills = 0
        self.links: list[Link] = []
        self._cell = cell
        self._open_link = open_link

    def connect(self, client_id: str = "") -> Link:
        link = self._open_link(client_id)
        self.links.append(link)
        return link

    def leave(self, link: Link) -> None:
        self.links.remove(link)
        link.close()

    def unique(self, prefix: str = "matrix") -> str:
        """A name that no other cell and client has."""
        return f"{prefix}.{self._cell}.{self.name}"

    def close(self) -> None:
        for link in self.links:
            link.close()


def play(pair: Deadly, peers: list[Peer], stories: list[Story], moment: Moment) -> None:
    """One cell, or several: these stories of the peers, through one death of the master."""
    assert [next(story) for story in stories] == [BEFORE] * len(stories)
    if moment is BEFORE:
        _kill(pair, peers, [])
    calls = [next(story).call for story in stories]
    results = _kill(pair, peers, calls, moment) if moment in IN_FLIGHT else [call() for call in calls]
    assert [story.send(result) for story, result in zip(stories, results, strict=True)] == [AFTER] * len(stories)
    if moment is AFTER:
        _kill(pair, peers, [])
    assert [next(story, None) for story in stories] == [None] * len(stories)


def _kill(pair: Deadly, peers: list[Peer], calls: list[Callable[[], Any]], moment: Moment = BEFORE) -> list[Any]:
    """The master dies while `calls` are under way. Returns their results, when all links are back."""
    links = [link for peer in peers for link in peer.links]
    for link in links:
        link.expect_loss()
    if moment is Moment.UNREAD:
        pair.freeze()
    if moment is Moment.UNTOLD:
        pair.relay.silence()
    with ThreadPoolExecutor(len(peers), "action") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            if moment is Moment.UNREAD:
                pair.wait_unread(len(calls))
            if moment is Moment.UNTOLD:
                pair.relay.wait_answered(len(calls))
        finally:
            pair.kill()
        results = [future.result(2 * DEADLINE_S) for future in futures]
    for link in links:
        link.wait_back()
    for peer in peers:
        peer.kills += 1
    return results
