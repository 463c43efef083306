"""Three members of a replicated store stop and start in every order: 6 × 6, and each of it twice.

    python -m tests.quorum.orders DIR [--seed N] [--least 1,2] [--skip 0] [--first 36] [--etcd]

Each turn stops the three members one after the other, each with kill -9 or SIGTERM as is drawn, and starts them in an
order. Clients, one at each member, send all the time. After each step is checked: those that are up and by the record
can prove that they have everything confirm; others confirm nothing, and a member that waits alone says why. Half of the
turns has `leastCopies=1`: there a master goes on alone, and then the other two may not start without its copy. At the
end all that was confirmed is there, once and in order. Prints a line for each turn, and then the figures, as JSON. The
coordinator is a small directory, or with `--etcd` three servers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations, product
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from amq.store.open import open_store
from amq.store.replica.group import GroupPolicy
from amq.store.replica.store import LinkedEpochs
from tests.brokers import Broker, Brokers
from tests.ensemble import EtcdEnsemble, ensemble, wait_until
from tests.quorum.partitions import (
    ENOUGH,
    LIMITS,
    NAMES,
    OPTIONS,
    Client,
    Violation,
    check_kept,
    check_turns,
)
from tests.traffic import deliveries

ALONE_S = 2.0  # how long those that cannot go on are watched
ORDERS = ["".join(each) for each in permutations(NAMES)]
WAITS = ("no answer of ", "the copies that count are those of ", "lacks what those of ")  # and then their ids


class Orders:
    """Three members, whose copies all count, and a client at each. `least` = their `leastCopies`."""

    def __init__(self, brokers: Sequence[Broker], least: int, random: Random) -> None:
        self.brokers = dict(zip(NAMES, brokers, strict=True))
        self.policy = GroupPolicy(len(NAMES), least)
        self.random = random
        self.clients = [Client(number, each.host, each.port) for number, each in enumerate(brokers)]
        self.alone = 0  # members that served without the others
        self.waited = 0  # steps in which those that were up could not prove that they have everything
        epochs = open_store(str(brokers[0].store)).epochs
        assert isinstance(epochs, LinkedEpochs)
        self.book = epochs._book

    def turn(self, stops: str, starts: str) -> dict[str, Any]:
        """Raises Violation."""
        up, how, told = set(NAMES), "", []
        for name in stops:
            how += self.random.choice("ks")
            heard = {each: len(self.brokers[each].log) for each in up}
            self._stop(name, how[-1])
            up.discard(name)
            told.append(self._look(up, heard))
        for name in starts:
            self.brokers[name].start()
            up.add(name)
            told.append(self._look(up))
        for broker in self.brokers.values():
            broker.wait_event("role")  # it has started
        wait_until(lambda: self._counting() == set(NAMES), "all copies count again")
        return {"stops": stops, "how": how, "starts": starts, "least": self.policy.least, "steps": " ".join(told)}

    def check(self) -> dict[str, int]:
        """Stop the clients; raises Violation where something is lost, stored twice or out of order."""
        for client in self.clients:
            client.stop()
        confirmed = sum(len(client.confirmed) for client in self.clients)
        bodies = deliveries([*self.brokers.values()], confirmed)
        return {
            "confirmed": check_kept(self.clients, bodies),
            "masterships that confirmed": check_turns(self.clients),
        }

    def master(self) -> str:
        epoch = self.book.read().epoch
        assert epoch is not None
        return epoch.owner.name

    def _stop(self, name: str, how: str) -> None:
        if how == "k":
            self.brokers[name].kill()
        elif self.brokers[name].stop():
            raise Violation(f"{name} does not stop cleanly:\n{self.brokers[name].log_text()}")

    def _look(self, up: set[str], heard: Mapping[str, int] | None = None) -> str:
        """Those that are up go on if they can, else confirm nothing: which of it, as a word. `heard` = how much of
        their logs is older."""
        since = time.monotonic()
        if not up:
            return "-"
        if self._can_go_on(up):
            wait_until(lambda: self._newly(since) >= ENOUGH, f"{sorted(up)} confirm")
            self.alone += len(up) == 1
            return "".join(sorted(up))
        if len(up) == 1:
            self._says_why(*up, heard or {})
        wait_until(lambda: time.monotonic() > since + ALONE_S, "it was watched for a while")
        if self._newly(since):
            raise Violation(f"{sorted(up)} confirm, and cannot know that they have everything")
        self.waited += 1
        return f"({''.join(sorted(up))})"

    def _can_go_on(self, up: Collection[str]) -> bool:
        """By the record of the group: a master whose writes enough copies have, or may have when it has taken others
        out; or members of which one may become master."""
        known = self.book.read()
        record = known.record
        here = {each for each in record.members if name_of(each) in up}
        allowed = self.policy.allows(record.regrouped(here)) if here else False
        if known.epoch is not None and known.epoch.owner.name in up and self._serves(known.epoch.owner.name):
            return record.holds(here) or allowed
        return record.fences(here) and (record.holds(here) or allowed)

    def _serves(self, name: str) -> bool:
        return bool(self.brokers[name].said("master: serving clients"))

    def _says_why(self, name: str, heard: Mapping[str, int]) -> None:
        """A slave that waits alone says which copies it needs. A master that is blocked says it in its alarm."""
        if self._serves(name):
            return
        whole = self.book.read().record.members
        found = self.brokers[name].wait_line(_tells_why, "why it waits", after=heard.get(name, 0))
        if not all(each in found["reason"] for each in whole if name_of(each) != name):
            raise Violation(f"{name} does not say that it waits for {sorted(whole)}: {found}")

    def _newly(self, after: float) -> int:
        return sum(each.sent_at > after for client in self.clients for each in client.confirmed[-2 * ENOUGH :])

    def _counting(self) -> set[str]:
        return {name_of(each) for each in self.book.read().record.members}


def _tells_why(line: dict[str, Any]) -> bool:
    return any(each in str(line.get("reason", "")) for each in WAITS)


def name_of(copy: str) -> str:
    """The id of a copy begins with the name of its member."""
    return copy.rpartition("-")[0]


@contextlib.contextmanager
def three_members(directory: Path, coordinator: str, least: int, random: Random) -> Iterator[Orders]:
    with Brokers(directory, **OPTIONS | {"lockKeepAlivePeriod": "60s"}) as brokers:
        found = []
        for name in NAMES:
            broker = brokers.add(name)
            own = f"group=least{least}&coordinator={coordinator}&leastCopies={least}"
            broker.store = f"replica://{directory / name}?{own}"
            found.append(broker.start())
        world = Orders(found, least, random)
        for client in world.clients:
            client.start()
        try:
            wait_until(lambda: world._counting() == set(NAMES), "all copies count")
            yield world
        except BaseException:
            for broker in found:
                sys.stderr.write(f"{broker.name}:\n{broker.log_text()}\n")
            raise


def run(
    directory: Path, coordinator: str, least: int, turns: Sequence[tuple[str, str]], random: Random
) -> dict[str, int]:
    with three_members(directory, coordinator, least, random) as world:
        for stops, starts in turns:
            sys.stdout.write(json.dumps(world.turn(stops, starts)) + "\n")
            sys.stdout.flush()
        figures = world.check()
    return {"turns": len(turns), **figures, "served alone": world.alone, "waited": world.waited}


@contextlib.contextmanager
def coordinator_of(directory: Path, etcd: bool) -> Iterator[str]:
    if etcd:
        with ensemble(EtcdEnsemble, directory / "servers") as servers:
            yield servers.url(LIMITS)
    else:
        (directory / "small").mkdir(parents=True)
        yield f"file://{directory}/small"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.quorum.orders", description=__doc__)
    parser.add_argument("directory", type=Path, help="a new one, for the copies and the coordinator")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--least", default="1,2", help="values of leastCopies, separated by commas")
    parser.add_argument("--skip", type=int, default=0, help="leave out this number of the 36 orders, as drawn")
    parser.add_argument("--first", type=int, default=len(ORDERS) ** 2, help="at most this number of the others")
    parser.add_argument("--etcd", action="store_true", help="etcd is the coordinator")
    options = parser.parse_args()
    with coordinator_of(options.directory.resolve(), options.etcd) as coordinator:
        for least in map(int, options.least.split(",")):
            random = Random(options.seed)
            drawn = random.sample([*product(ORDERS, ORDERS)], len(ORDERS) ** 2)
            turns = drawn[options.skip :][: options.first]
            own = options.directory.resolve() / f"least{least}"
            own.mkdir()
            figures = run(own, coordinator, least, turns, random)
            sys.stdout.write(json.dumps({"seed": options.seed, "least": least, **figures}) + "\n")


if __name__ == "__main__":
    main()
