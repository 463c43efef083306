"""Moves and scale-downs of a queue under traffic, while what takes part is killed: nothing is lost, doubled, reordered.

    python -m tests.cluster.move_kills [--turns 200] [--seed 1] [--first 20] [--seconds 600] [--last-step]

Two nodes serve two stores. Each turn gives a queue another home, or adds a store, moves the queue there and removes the
store again, and kills a process in the middle: the master of the old home, that of the new one, a gateway, or a node.
A producer sends all the time, and sends again what was not confirmed, under the same id. Its longest wait is noted by
what was killed; `--last-step` kills masters when the step that moves has begun, for which producers wait, and says how
long it took until the next master was there, and from then on until the step was over. After each
ten turns, and at the end, the queue is read and judged, so that it does not grow until a move takes minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amq.cluster.directory import Cluster
from amq.store.open import open_store
from amq.store.status import store_status
from tests.cli.amq_process import amq
from tests.cluster.nodes import Nodes, all_served, each_as_it_should_be
from tests.patience import DEADLINE_S
from tests.traffic import QUEUE, Producer, connect_any, drain

NAME = QUEUE.rpartition("/")[2]
MASTERS = ("the old home", "the new home")
KILLS = (*MASTERS, "a gateway", "a node", "nothing")
MORE = 20  # messages that are confirmed after each turn
JUDGED_EVERY = 10  # turns
PAUSE_S = 0.002  # of the producer after each message


@dataclass
class Figures:
    """What a run has seen. Each of `wrong` is a promise that was broken."""

    moves: int = 0
    removals: int = 0
    judged: int = 0  # of these, by what was read then
    kills: Counter[str] = field(default_factory=Counter)
    confirmed: int = 0
    longest_s: float = 0.0  # of a move, with its kill
    blocked_s: dict[str, list[float]] = field(default_factory=dict)  # by kill: the producer's longest wait in each turn
    takeovers_s: dict[str, list[float]] = field(default_factory=dict)  # by kill: until another master was there
    steps_s: dict[str, list[float]] = field(default_factory=dict)  # by kill: from then on until the step was over
    wrong: list[str] = field(default_factory=list)

    @property
    def turns(self) -> int:
        return self.moves + self.removals


class MovesAndKills:
    """A run on two nodes below `directory`."""

    def __init__(self, directory: Path, seed: int, in_last_step: bool = False) -> None:
        self.figures = Figures()
        self._in_last_step = in_last_step
        self._killed = ""
        self._random = random.Random(seed)
        self._nodes = Nodes(directory, stores=2)
        self._home = "s1"
        self._stores = 2  # ever
        self._sent = 0  # the number of the next message that nobody has sent

    def run(self, turns: int, first: int = MORE, seconds: float = math.inf) -> Figures:
        """`first` = messages that wait at the first turn, and after each judgement; where more than 1,000 do, they are
        copied before a step. No turn begins after `seconds`."""
        nodes = self._nodes
        try:
            for node in nodes.nodes.values():
                node.start()
            nodes.until(each_as_it_should_be)
            nodes.place(NAME, self._home).check_returncode()
            until_s, figures = time.monotonic() + seconds, self.figures
            while figures.judged < turns and time.monotonic() < until_s and not figures.wrong:
                producer = self._produce(first)
                while figures.turns < min(turns, figures.judged + JUDGED_EVERY) and time.monotonic() < until_s:
                    producer.longest_s = 0.0
                    if self._in_last_step or self._random.randrange(4):
                        self._move({"s1": "s2", "s2": "s1"}[self._home])
                    else:
                        self._scale_down()
                    producer.wait_confirmed(MORE)
                    figures.blocked_s.setdefault(self._killed, []).append(producer.longest_s)
                self._judge(producer.stop())
        finally:
            nodes.kill()
        return self.figures

    def _produce(self, first: int) -> Producer:
        """A producer whose first messages are confirmed."""
        brokers: Any = [*self._nodes.nodes.values()]
        producer = Producer(brokers, first=self._sent, pause_s=PAUSE_S)
        producer.start()
        producer.wait_confirmed(first)
        return producer

    def _amq(self, command: str, *words: str) -> None:
        amq("cluster", command, "--cluster", self._nodes.cluster, *words).check_returncode()

    def _move(self, store: str) -> None:
        began = time.monotonic()
        self._nodes.begin("move", NAME, store)
        self._hurt(self._home, store)
        self._settle()
        self._home = store
        self.figures.moves += 1
        self.figures.longest_s = max(self.figures.longest_s, time.monotonic() - began)

    def _scale_down(self) -> None:
        """A store comes, gets the queue, and goes again."""
        self._stores += 1
        name, home = f"s{self._stores}", self._home
        self._amq("add-store", name)
        self._nodes.until(all_served)
        self._move(name)
        began = time.monotonic()
        self._nodes.begin("remove-store", name, "--to", home)
        self._hurt(name, home)
        self._settle()
        self._home = home
        self.figures.removals += 1
        self.figures.longest_s = max(self.figures.longest_s, time.monotonic() - began)

    def _hurt(self, old: str, new: str) -> None:
        if self._in_last_step:
            self._await_last_step()
        else:
            threading.Event().wait(self._random.random() / 2)  # any moment of the move
        what, nodes = self._random.choice(MASTERS if self._in_last_step else KILLS), self._nodes
        self._killed = what
        self.figures.kills[what] += 1
        name = self._random.choice("ab")
        if what == "a node":
            nodes.nodes[name].kill()
            nodes.nodes[name].start()
        elif what != "nothing":
            masters = {store["store"]: store["master"] for store in nodes.status()["stores"]}
            store = old if what == "the old home" else new
            node = nodes.nodes[masters.get(store) or name]
            epoch = self._epoch(store) if self._in_last_step else 0
            for pid in node.gateways if what == "a gateway" else node.members_of(store):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if epoch:
                self._time_rest(what, store, epoch)

    def _await_last_step(self) -> None:
        """Until the step that moves has begun, which producers wait for; or the move is over."""
        cluster = Cluster(self._nodes.cluster)
        self._until(lambda: (step := cluster.table().placement.step) is None or bool(step.moving))

    def _time_rest(self, what: str, store: str, epoch: int) -> None:
        """Note how long the rest of the step takes. `epoch` = that of the master that was killed."""
        cluster, began_s = Cluster(self._nodes.cluster), time.monotonic()
        self._until(lambda: self._epoch(store) > epoch)
        taken_s = time.monotonic()
        self._until(lambda: (step := cluster.table().placement.step) is None or not step.moving)
        self.figures.takeovers_s.setdefault(what, []).append(taken_s - began_s)
        self.figures.steps_s.setdefault(what, []).append(time.monotonic() - taken_s)

    def _until(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < until_s, self._nodes.logs()
            time.sleep(0.001)

    def _epoch(self, store: str) -> int:
        """That of the master, which serves gateways; 0 = there is none."""
        cluster = Cluster(self._nodes.cluster)
        status = store_status(open_store(cluster.location(store)))
        serves = status.epoch is not None and status.master is not None and "link" in status.master.facts
        return status.epoch.number if serves and status.epoch is not None else 0

    def _settle(self) -> None:
        known, until = None, 0.0
        while (found := self._nodes.moves())["moving"]:
            far = [found.get(fact) for fact in ("table", "copied_messages", "sent_messages")]
            if far != known:
                known, until = far, time.monotonic() + DEADLINE_S
            assert time.monotonic() < until, f"{found}\n{self._nodes.logs()}"
            time.sleep(0.1)
        self._nodes.until(all_served)

    def _judge(self, confirmed: list[int]) -> None:
        figures = self.figures
        figures.confirmed += len(confirmed)
        self._sent = max(confirmed) + 1
        with connect_any([*self._nodes.nodes.values()]) as connection:  # type: ignore[list-item]
            there = [int(body.split()[1]) for body in drain(connection, len(confirmed))]
        figures.wrong += broken(confirmed, there)
        figures.judged = figures.turns
        print(f"{figures.judged} turns, {figures.confirmed} messages", figures.wrong or "", flush=True)


def broken(confirmed: list[int], there: list[int]) -> list[str]:
    """The promises that were broken: `confirmed` = the numbers of messages that were; `there` = those that came."""
    found = []
    if lost := set(confirmed) - set(there):
        found.append(f"{len(lost)} confirmed messages are lost: {sorted(lost)[:10]}")
    if doubled := [number for number, count in Counter(there).items() if count > 1]:
        found.append(f"{len(doubled)} messages came twice: {doubled[:10]}")
    if there != sorted(there):
        found.append("messages came in another order")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Moves and scale-downs under traffic and kills.")
    parser.add_argument("--turns", type=int, default=200, help="moves and removals of stores (default: 200)")
    parser.add_argument("--first", type=int, default=MORE, help="messages that wait at the first turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so long no turn begins")
    parser.add_argument("--last-step", action="store_true", help="kill masters, when the step that moves has begun")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amq-moves-") as directory:
        found = MovesAndKills(Path(directory), given.seed, given.last_step).run(given.turns, given.first, given.seconds)
    kills = ", ".join(f"{count} of {what}" for what, count in sorted(found.kills.items()))
    print(f"seed {given.seed}: {found.moves} moves, {found.removals} removals of stores; kills: {kills}")
    print(f"{found.confirmed} messages confirmed; the longest turn took {found.longest_s:.1f} s")
    for kill, waits in sorted(found.blocked_s.items()):
        middle, longest = statistics.median(waits), max(waits)
        print(f"{kill}: the producer's longest wait in a turn: {middle:.1f} s, at most {longest:.1f} s")
    for kill, times in sorted(found.takeovers_s.items()):
        parts = [f"{statistics.median(each):.1f} s, at most {max(each):.1f} s" for each in (times, found.steps_s[kill])]
        print(f"{kill}: until another master was there: {parts[0]}; from then on until the step was over: {parts[1]}")
    print("\n".join(found.wrong) or "0 lost, 0 doubled, in order")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
