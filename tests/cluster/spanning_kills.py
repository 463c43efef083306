"""Transactions over three stores while what takes part is killed: each is in all stores or in none, and once.

    python -m tests.cluster.spanning_kills [--turns 60] [--seed 1] [--seconds 600] [--spark]

Two nodes serve three stores. Three applications send to a queue of each store, through the gateways, all the time: one
commits in one phase, one in two (XA; some it rolls back), and one writes batches, as the Spark sink does: two tasks
prepare, and the driver commits both. Each turn kills a gateway, the master of the store that decides, that of another
one, or a node. After each ten turns, and at the end, the queues are read and compared with what the applications heard.
With `--spark` a real query writes in their place, and the kills come at the steps of its micro-batches: `spark_writes`.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import amq
from amq.client import CommitOutcomeUnknownError, Connection, Session, TransactionRolledBackError
from amq.core.errors import AmqError
from tests.cluster.nodes import Nodes, all_served, each_as_it_should_be
from tests.patience import DEADLINE_S

STORES: Final = ("s1", "s2", "s3")  # the first one decides
QUEUES: Final = ("/queue/one", "/queue/two", "/queue/three")
KILLS: Final = ("a gateway", "the decider", "a participant", "a node")
EACH: Final = 5  # transactions of each application between two kills
JUDGED_EVERY: Final = 10  # turns
PAUSE_S: Final = 0.01  # of an application between two transactions
TASKS: Final = 2  # of a batch
XA_ROLLED_BACK_EVERY: Final = 4


class Application(threading.Thread):
    """One kind of transactions, one after the other. `committed`, `rolled_back` = numbers of which it heard so; where
    it heard neither, both may be. `ended_s` = when the last one was."""

    kind = ""
    copies = 1  # of a number in each queue

    def __init__(self, url: str, first: int) -> None:
        super().__init__(name=self.kind, daemon=True)
        self.committed: set[int] = set()
        self.rolled_back: set[int] = set()
        self.count = 0
        self.ended_s = time.monotonic()
        self.failure: BaseException | None = None
        self.number = first
        self.url = url
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            with amq.connect(self.url) as connection:
                sessions = [connection.session(transacted=True) for _ in range(TASKS)]
                producers = [[session.producer(queue) for queue in QUEUES] for session in sessions]
                sends = [[producer.send for producer in each] for each in producers]
                while not self.stopped.wait(PAUSE_S):
                    self.number += 1
                    ended = self.transact(connection, sessions, sends)
                    if ended is not None:
                        (self.committed if ended else self.rolled_back).add(self.number)
                    if ended:
                        self.ended_s = time.monotonic()
                        self.count += 1
        except BaseException as error:  # noqa: BLE001 - the run shows it
            self.failure = error

    def transact(
        self, connection: Connection, sessions: Sequence[Session], sends: Sequence[Sequence[Callable[[str], object]]]
    ) -> bool | None:
        """Is it committed? None = it did not hear that."""
        raise NotImplementedError

    def text(self, part: int = 0) -> str:
        return f"{self.kind} {self.number} {part}"


class OnePhase(Application):
    kind = "commit"

    def transact(
        self,
        connection: Connection,  # noqa: ARG002
        sessions: Sequence[Session],
        sends: Sequence[Sequence[Callable[[str], object]]],
    ) -> bool | None:
        try:
            with sessions[0].transaction():
                for send in sends[0]:
                    send(self.text())
        except TransactionRolledBackError:
            return False
        except CommitOutcomeUnknownError:
            return None
        return True


class TwoPhases(Application):
    kind = "XA"

    def transact(
        self, connection: Connection, sessions: Sequence[Session], sends: Sequence[Sequence[Callable[[str], object]]]
    ) -> bool | None:
        xid = f"xa-{self.number}"
        try:
            for send in sends[0]:
                send(self.text())
            sessions[0].prepare(xid)
        except TransactionRolledBackError:
            return False
        if self.number % XA_ROLLED_BACK_EVERY == 0:
            connection.rollback_prepared(xid)
            return False
        connection.commit_prepared(xid)
        return True


class Batches(Application):
    """A task whose part was rolled back runs again, and a batch of which one is lost runs again as a whole."""

    kind = "batch"
    copies = TASKS

    def transact(
        self, connection: Connection, sessions: Sequence[Session], sends: Sequence[Sequence[Callable[[str], object]]]
    ) -> bool | None:
        tries = 0
        while True:
            xids = []
            for task, session in enumerate(sessions):
                while True:
                    tries += 1
                    xid = f"batch/{self.number}/{task}/{tries}"
                    try:
                        for send in sends[task]:
                            send(self.text(task))
                        session.prepare(xid, owner="pipeline", batch=self.number)
                    except TransactionRolledBackError:
                        continue
                    xids.append(xid)
                    break
            try:
                connection.commit_batch("pipeline", self.number, xids)
            except TransactionRolledBackError:
                continue
            return True


KINDS: Final = (OnePhase, TwoPhases, Batches)


@dataclass
class SpanningFigures:
    """What a run has seen. `longest_s` = by kind of kill and of transaction: until the next one was committed."""

    turns: int = 0
    judged: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    committed: Counter[str] = field(default_factory=Counter)
    rolled_back: Counter[str] = field(default_factory=Counter)
    longest_s: dict[tuple[str, str], float] = field(default_factory=dict)
    resolved_s: float = 0.0  # the longest until no part was prepared any more, when no application ran
    wrong: list[str] = field(default_factory=list)


class SpanningKills:
    """A run on two nodes below `directory`. `each` = transactions of each application between two kills."""

    kills: Sequence[str] = KILLS
    each = EACH

    def __init__(self, directory: Path, seed: int) -> None:
        self.figures = SpanningFigures()
        self._random = random.Random(seed)
        self._nodes = Nodes(directory, stores=len(STORES), fixed_ports=True)
        self._first = 0

    def run(self, turns: int, seconds: float = math.inf, kills: Sequence[str] = ()) -> SpanningFigures:
        """No turn begins after `seconds`. `kills` = the first ones; the others are drawn."""
        nodes, figures, coming = self._nodes, self.figures, [*kills]
        until_s = time.monotonic() + seconds
        try:
            for node in nodes.nodes.values():
                node.start()
            nodes.until(lambda found: each_as_it_should_be(found) and all(each.ports for each in nodes.nodes.values()))
            for queue, store in zip(QUEUES, STORES, strict=True):
                nodes.place(queue.rpartition("/")[2], store).check_returncode()
            while figures.turns < turns and time.monotonic() < until_s and not figures.wrong:
                applications = self._begin()
                last = min(turns, figures.turns + JUDGED_EVERY)
                while figures.turns < last and time.monotonic() < until_s:
                    self._turn(applications, coming.pop(0) if coming else self._draw())
                self._judge(applications)
        finally:
            nodes.kill()
        return figures

    @property
    def _url(self) -> str:
        return f"failover:({','.join(f'stomp://127.0.0.1:{node.port}' for node in self._nodes.nodes.values())})"

    def _applications(self) -> list[Application]:
        return [kind(self._url, self._first) for kind in KINDS]

    def _draw(self) -> str:
        """What the next turn kills."""
        return self._random.choice(self.kills)

    def _begin(self) -> list[Application]:
        applications = self._applications()
        for each in applications:
            each.start()
        self._go_on(applications)
        return applications

    def _turn(self, applications: Sequence[Application], what: str) -> None:
        self._nodes.until(all_served)
        threading.Event().wait(self._random.random() / 10)  # any moment of a transaction
        began_s = self._kill(what)
        self.figures.kills[what] += 1
        self._until(applications, lambda: all(each.ended_s > began_s for each in applications))
        for each in applications:
            key = what, each.kind
            self.figures.longest_s[key] = max(self.figures.longest_s.get(key, 0.0), each.ended_s - began_s)
        self._go_on(applications)
        self.figures.turns += 1

    def _kill(self, what: str) -> float:
        """Returns when, monotonic."""
        nodes, name = self._nodes, self._random.choice("ab")
        if what == "a node":
            began_s = time.monotonic()
            nodes.nodes[name].kill()
            nodes.nodes[name].start()
            return began_s
        store = STORES[0] if what == "the decider" else self._random.choice(STORES[1:])
        victims: list[int] = []
        while not victims:  # one that ended a moment ago is about to start again
            masters = {each["store"]: each["master"] for each in nodes.until(all_served)["stores"]}
            node = nodes.nodes[masters[store]]
            victims = nodes.nodes[name].gateways if what == "a gateway" else node.members_of(store)
        began_s = time.monotonic()
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return began_s

    def _go_on(self, applications: Sequence[Application]) -> None:
        wanted = [each.count + self.each for each in applications]
        self._until(
            applications, lambda: all(each.count >= count for each, count in zip(applications, wanted, strict=True))
        )

    def _until(self, applications: Sequence[Application], is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not is_so():
            for each in applications:
                assert each.failure is None, f"{each.kind}: {each.failure!r} {each.failure}\n{self._nodes.logs()}"
            assert time.monotonic() < until_s, self._nodes.logs()
            time.sleep(0.002)

    def _stop(self, applications: Sequence[Application]) -> None:
        for each in applications:
            each.stopped.set()
        self._until(applications, lambda: not any(each.is_alive() for each in applications))

    def _judge(self, applications: Sequence[Application]) -> None:
        figures = self.figures
        self._stop(applications)
        began_s = time.monotonic()
        with amq.connect(self._url) as connection:
            self._until((), lambda: not _prepared(connection))
            figures.resolved_s = max(figures.resolved_s, time.monotonic() - began_s)
            there = [received(connection, queue) for queue in QUEUES]
        for each in applications:
            figures.wrong += broken(each, there)
            figures.committed[each.kind] += len(each.committed)
            figures.rolled_back[each.kind] += len(each.rolled_back)
        self._first = max(each.number for each in applications)
        figures.judged = figures.turns
        print(f"{figures.judged} turns, {sum(figures.committed.values())} transactions", figures.wrong, flush=True)


def _prepared(connection: Connection) -> bool:
    try:
        return bool(connection.recover())
    except AmqError:  # a gateway that was killed a moment ago
        return True


def received(connection: Connection, queue: str) -> Counter[str]:
    """The texts of all that the queue holds, which is empty then."""
    with connection.session() as session:
        session.producer(queue).send("the end")
        found: Counter[str] = Counter()
        consumer = session.consumer(queue)
        while (message := consumer.receive(timeout=DEADLINE_S)) is not None:
            message.ack()
            if message.text == "the end":
                return found
            found[str(message.text)] += 1
    raise AssertionError(f"the end of {queue} does not come")


def broken(application: Application, there: Sequence[Counter[str]]) -> list[str]:
    """The promises that were broken. `there` = the texts of each queue, and how often each came."""
    kind = application.kind
    mine = [Counter({text: count for text, count in each.items() if text.startswith(f"{kind} ")}) for each in there]
    found = []
    if any(each != mine[0] for each in mine):
        parts = sorted(set().union(*mine) - {text for text in mine[0] if all(each[text] for each in mine)})
        found.append(f"{kind}: carried out in part: {parts[:10]}")
    if doubled := sorted(text for each in mine for text, count in each.items() if count > 1):
        found.append(f"{kind}: carried out twice: {doubled[:10]}")
    numbers = Counter(int(text.split()[1]) for text in mine[0])
    torn = sorted(number for number, count in numbers.items() if count != application.copies)
    if torn := [number for number in torn if number not in application.committed]:
        found.append(f"{kind}: carried out without some rows: {torn[:10]}")
    if lost := sorted(number for number in application.committed if numbers[number] != application.copies):
        found.append(f"{kind}: committed, and not there: {lost[:10]}")
    if false := sorted(application.rolled_back & set(numbers)):
        found.append(f"{kind}: rolled back, and there: {false[:10]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Transactions over three stores under kills.")
    parser.add_argument("--turns", type=int, default=60, help="kills (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so long no turn begins")
    parser.add_argument("--spark", action="store_true", help="a query of Spark writes, and nothing else")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="amq-spanning-") as directory:
        if given.spark:
            return _with_spark(Path(directory), given.turns, given.seed, given.seconds)
        found = SpanningKills(Path(directory), given.seed).run(given.turns, given.seconds)
    return verdict(found, given.seed, [kind.kind for kind in KINDS])


def _with_spark(directory: Path, turns: int, seed: int, seconds: float) -> int:
    from tests.cluster import spark_writes

    with spark_writes.session(directory / "spark") as spark:
        kills = spark_writes.SparkKills(directory, seed, spark)
        found = kills.run(turns, seconds)
    print(f"the query started again {kills.failures} times; kills in their step: {dict(kills.hits)}")
    return verdict(found, seed, [spark_writes.Query.kind])


def verdict(found: SpanningFigures, seed: int, kinds: Sequence[str]) -> int:
    """The exit code; the figures are printed."""
    print(f"seed {seed}: {found.judged} kills; committed {dict(found.committed)}, rolled back", end=" ")
    print(f"{dict(found.rolled_back)}; the last parts ended {found.resolved_s:.1f} s after the applications")
    for kill, count in sorted(found.kills.items()):
        waits = ", ".join(f"{kind} {found.longest_s.get((kill, kind), 0.0):.2f} s" for kind in kinds)
        print(f"{count} of {kill}: the longest wait for the next commit: {waits}")
    print("\n".join(found.wrong) or "each in all stores or in none, and once")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
