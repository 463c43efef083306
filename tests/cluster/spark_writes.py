"""A query of Spark that writes to a queue of each store through the gateways while what takes part is killed.

A micro-batch has rows for all three queues, which two tasks prepare; the driver commits it in one step (`redirect` =
false). A query that fails starts again from its checkpoint, as a user's does. The kills come at named steps of a
micro-batch. Before the query starts for the last time, each micro-batch must be wholly in the queues or not at all,
with no help but that of the stores; afterwards each one is there once.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import amq
from amq.client import Connection
from amq.core.errors import AmqError
from tests.cluster.nodes import Node, all_served
from tests.cluster.spanning_kills import QUEUES, STORES, TASKS, Application, SpanningKills
from tests.patience import DEADLINE_S
from tests.spark.session import environment, start, stop_jvm

ROWS: Final = 60  # of a micro-batch
LOOK_S: Final = 0.002
FAILURES_MAX: Final = 20  # of the query, more than there are micro-batches
SENDS_S: Final = 0.2  # tasks send at some moment of that time after their micro-batch began
AT_ANY: Final = "at any moment"
BEGUN: Final = "while tasks send"
PREPARED: Final = "when all parts are prepared"
DECIDED: Final = "when it is decided, and participants do not know it"
DONE: Final = "when it is committed"
STEPS: Final = (AT_ANY, BEGUN, PREPARED, DECIDED, DONE)
VICTIMS: Final = ("the gateways", "the decider", "a participant", "a node")
SPARK_KILLS: Final = tuple(f"{victim} {step}" for step in STEPS for victim in VICTIMS)


@contextmanager
def session(directory: Path) -> Iterator[Any]:
    """A Spark in this process."""
    os.environ.update(environment(directory, makes_archive=False))
    spark = start(directory, "local[2,8]")
    try:
        yield spark
    finally:
        spark.stop()
        stop_jvm()


class Query(Application):
    """`number` = the newest micro-batch that was committed."""

    kind = "Spark"
    copies = ROWS // len(QUEUES)

    def __init__(self, url: str, first: int, spark: Any, checkpoint: Path) -> None:
        super().__init__(url, first)
        self.failures = 0
        self._spark = spark
        self._checkpoint = checkpoint
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", TASKS)
        place, batch = f"CAST(value % {len(QUEUES)} AS INT)", f"CAST(value DIV {ROWS} AS STRING)"
        part = f"CAST(value % {ROWS} DIV {len(QUEUES)} AS STRING)"
        written = rows.load().selectExpr(
            f"concat_ws(' ', '{self.kind}', {batch}, {part}) AS value",
            f"array({', '.join(map(repr, QUEUES))})[{place}] AS destination",
        )
        options = {"url": url, "redirect": "false", "checkpointLocation": str(checkpoint)}
        self._writer = written.writeStream.format("amq").options(**options)

    def run(self) -> None:
        try:
            of_java = self._spark._jsparkSession
            self._spark._jvm.SparkSession.setActiveSession(of_java)  # each thread has one; it finds formats in Python
            while not self.stopped.is_set():
                query = self._writer.start()
                while not self.stopped.wait(LOOK_S) and query.isActive:
                    self.look()
                query.stop()
                self.look()
                if (why := query.exception()) is not None:
                    self.failures += 1
                    assert self.failures < self.count + FAILURES_MAX, why
        except BaseException as error:  # noqa: BLE001 - the run shows it
            self.failure = error

    def look(self) -> None:
        """Note what the query has committed."""
        if committed := {number for number in self.numbers("commits") if number > self.number}:
            self.committed |= committed
            self.count += len(committed)
            self.number = max(committed)
            self.ended_s = time.monotonic()

    def numbers(self, of: str) -> set[int]:
        """`of` = offsets: micro-batches that have begun; commits: that are committed."""
        with suppress(FileNotFoundError):
            return {int(each) for each in os.listdir(self._checkpoint / of) if each.isdecimal()}
        return set()

    def recover(self) -> None:
        """End the micro-batch that a query has left, and one more."""
        for _ in range(FAILURES_MAX):
            query = self._writer.trigger(availableNow=True).start()
            while query.isActive:
                time.sleep(LOOK_S)
            self.look()
            if (why := query.exception()) is None:
                return
            self.failures += 1
        raise AssertionError(f"the query does not end: {why}")


class SparkKills(SpanningKills):
    """`hits` = by step, how many kills came in that step, and not later."""

    kills = SPARK_KILLS
    each = 1

    def __init__(self, directory: Path, seed: int, spark: Any) -> None:
        super().__init__(directory, seed)
        self.hits: Counter[str] = Counter()
        self.failures = 0  # of queries, which start again
        self._spark = spark
        self._checkpoint = directory / "checkpoint"
        self._first = -1
        self._drawn = itertools.cycle(self._random.sample(self.kills, len(self.kills)))

    def _applications(self) -> list[Application]:
        self._query = Query(self._url, self._first, self._spark, self._checkpoint)
        return [self._query]

    def _draw(self) -> str:
        return next(self._drawn)

    def _kill(self, what: str) -> float:
        victim = next(each for each in VICTIMS if what.startswith(each))
        step = what.removeprefix(f"{victim} ")
        while True:
            masters = self._masters()
            with ExitStack() as held:
                try:
                    batch = self._reach(step, masters, held)
                except (AmqError, OSError):
                    continue  # what was killed last is still on its way
                if victims := self._victims(victim, masters):
                    self.hits[step] += self._is_at(step, batch)
                    print(f"kill {self.figures.turns + 1}: {what}, micro-batch {batch}", flush=True)
                    return self._end(victim, victims)

    def _is_at(self, step: str, batch: int) -> bool:
        return step == AT_ANY or (batch in self._query.numbers("commits")) == (step == DONE)

    def _masters(self) -> dict[str, Node]:
        found = self._nodes.until(all_served)["stores"]
        return {each["store"]: self._nodes.nodes[each["master"]] for each in found}

    def _victims(self, victim: str, masters: Mapping[str, Node]) -> list[int]:
        if victim in ("the gateways", "a node"):
            return [pid for node in self._nodes.nodes.values() for pid in node.gateways]
        store = STORES[0] if victim == "the decider" else self._random.choice(STORES[1:])
        return masters[store].members_of(store)

    def _end(self, victim: str, victims: Sequence[int]) -> float:
        began_s = time.monotonic()
        if victim == "a node":
            node = self._nodes.nodes[self._random.choice("ab")]
            node.kill()
            node.start()
            return began_s
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return began_s

    def _reach(self, step: str, masters: Mapping[str, Node], held: ExitStack) -> int:
        """Wait until a micro-batch is at this step, and return its number. `held` = what shall go on behind the kill.
        Raises AmqError, OSError."""
        query = self._query
        if step == AT_ANY:
            threading.Event().wait(self._random.random())
            return query.number
        if step == DONE:
            known = query.number
            self._until([query], lambda: query.number > known)
            return query.number
        known = max(query.numbers("offsets"), default=-1)
        self._until([query], lambda: max(query.numbers("offsets"), default=-1) > known)
        batch = max(query.numbers("offsets"))
        if step == BEGUN:
            threading.Event().wait(self._random.random() * SENDS_S)
            return batch
        stores = [held.enter_context(amq.connect(self._direct(store, masters[store]))) for store in STORES]
        self._until([query], lambda: all(len(each.recover()) >= TASKS for each in stores) or query.number >= batch)
        if step == DECIDED and query.number < batch:
            for store in STORES[1:]:
                for pid in masters[store].members_of(store):
                    os.kill(pid, signal.SIGSTOP)
                    held.callback(_continue, pid)
            self._until([query], lambda: not stores[0].recover())
        return batch

    def _direct(self, store: str, node: Node) -> str:
        return f"stomp://127.0.0.1:{node.port + 1 + STORES.index(store)}"

    def _judge(self, applications: Sequence[Application]) -> None:
        self._stop(applications)
        query = self._query
        began_s = time.monotonic()
        with amq.connect(self._url) as connection:
            wrong: list[str] = []
            while (wrong := in_part(connection)) and time.monotonic() < began_s + DEADLINE_S:
                time.sleep(LOOK_S)
        self.figures.wrong += wrong
        self.figures.resolved_s = max(self.figures.resolved_s, time.monotonic() - began_s)
        query.recover()
        self.failures += query.failures
        if missing := set(range(self._first + 1, query.number)) - query.committed:
            self.figures.wrong.append(f"the checkpoint lacks micro-batches: {sorted(missing)[:10]}")
        super()._judge(applications)


def in_part(connection: Connection) -> list[str]:
    """Micro-batches of which not all is in the queues, which lose nothing by that look."""
    found = []
    for queue in QUEUES:
        with connection.session() as session:
            found.append([str(message.text) for message in session.browser(queue)])
    numbers = torn(found)
    return [f"micro-batches are there in part, and nothing ends them: {numbers[:10]}"] if numbers else []


def torn(there: Sequence[Sequence[str]]) -> list[int]:
    """Numbers of micro-batches of which a part is there alone. `there` = the texts of each queue."""
    counts = [Counter(int(text.split()[1]) for text in texts) for texts in there]
    return sorted(number for number in set().union(*counts) if any(each[number] != Query.copies for each in counts))


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
