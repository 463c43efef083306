"""Two brokers that work as one, beside those of others: producers are at the first, consumers at the second.

Ours are two nodes of a cluster of two stores; the others are two Artemis brokers in a cluster, which forward messages
on demand and redistribute them at once, and two ActiveMQ brokers in a network. First the rate of four producers and
four consumers of one queue. Then clients that keep to the rules work on other queues, each with one producer and one
consumer; one broker is killed (kill -9, with all its processes) and started again; and the checker of the soak says
what was lost, came twice, or came in another order. Rates of a busy machine say little: the table names its load.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from amq.cli.demo_brokers import free_port
from bench import brokers, checker, cli, clients, history, host
from bench.load import Load, LoadError, run
from bench.wire import WireConnection, WireError

EXAMPLES = ("--quick", "--peer activemq --peer artemis=/opt/apache-artemis-2.40.0 --json clusters.json")
RULES = ("lost", "undone", "doubled", "reordered")  # of `bench.checker`
PAIRS = 4  # producers, and consumers
PER_S = 200.0  # of each producer
MEET_S = 180.0  # for the two to be one
RECOVER_S = 180.0  # for both to answer after a kill


class PairEffort(NamedTuple):
    """Messages of the rate; seconds of work before and after the kill; for how long nothing comes at the end."""

    messages: int = 40_000
    seconds: float = 6.0
    idle_s: float = 15.0


QUICK = PairEffort(4000, 2.0, 6.0)


class Pair:
    """Two brokers, `first` and `second`. Use it in `with`."""

    def __init__(self, kind: str, directory: str | None, options: dict[str, str]) -> None:
        made = brokers.TwoStoreNode if kind == "amq" else brokers.broker_class(kind)
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-two-{kind}-", dir=directory))
        self.brokers: list[Any] = []
        for name in ("first", "second"):
            store = self.directory / ("cluster" if kind == "amq" else name)
            store.mkdir(exist_ok=True)
            self.brokers.append(made(name, store, free_port(), 2000, options if kind == "amq" else {}))
        for one, other in (self.brokers, self.brokers[::-1]):
            if isinstance(one, brokers.ArtemisBroker):
                one.neighbour = other.port
            elif isinstance(one, brokers.ActiveMqBroker):
                other.openwire_port = other.openwire_port or free_port()
                one.neighbour = other.openwire_port
        self.first, self.second = self.brokers

    def __enter__(self) -> Pair:
        try:
            for broker in self.brokers:
                broker.start()
                self.wait(broker)
            self.meet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def wait(self, broker: Any) -> None:
        """Until it answers."""
        end_s = time.monotonic() + RECOVER_S
        while not broker.answers():
            broker.check()
            if time.monotonic() > end_s:
                raise brokers.BrokerProcessError(f"{broker.name} does not answer:\n{broker.log_text()[-2000:]}")
            time.sleep(0.05)

    def meet(self) -> None:
        """Until a message from the first comes at the second."""
        end_s = time.monotonic() + MEET_S
        with WireConnection(self.first.port) as producer, WireConnection(self.second.port) as consumer:
            consumer.send("SUBSCRIBE", {"id": "0", "destination": "/queue/meet", "ack": "auto"})
            while time.monotonic() < end_s:
                producer.send("SEND", {"destination": "/queue/meet", "persistent": "true"}, b"are you there?")
                consumer.send_bytes(b"\n")  # Artemis closes a connection that says nothing for a minute
                with contextlib.suppress(TimeoutError):
                    consumer.next_frame(1.0)
                    return
        raise brokers.BrokerProcessError("nothing that is sent to the first broker comes at the second")

    def rate(self, effort: PairEffort) -> float:
        """Messages a second through both."""
        load = Load(
            self.first.port, producers=PAIRS, consumers=PAIRS, messages=effort.messages, consumer_port=self.second.port
        )
        return run(load).per_s

    def killed(self, victim: Any, effort: PairEffort) -> dict[str, float]:
        """How often each rule was broken where `victim` was killed in mid-stream; and what was sent."""
        directory = self.directory / f"seen-{victim.name}"
        directory.mkdir()
        plans = []
        for number in range(2 * PAIRS):
            role, broker = (("producer", self.first), ("consumer", self.second))[number % 2]
            name, queue = f"{role}{number // 2}", f"/queue/kill.{victim.name}.{number // 2}"
            plans.append(
                clients.WorkerPlan(name, role, queue, (broker.port,), number, number, per_s=PER_S, drop_every=1 << 40)
            )
        context = multiprocessing.get_context("fork")
        board = clients.Scoreboard(context, len(plans))
        workers = [context.Process(target=clients.work, args=(plan, board, directory), daemon=True) for plan in plans]
        for worker in workers:
            worker.start()
        try:
            self._work_on(victim, board, plans, effort)
        finally:
            board.stop_producing.value = board.stop_consuming.value = True
            for worker in workers:
                worker.join(clients.LEAVE_S + RECOVER_S)
                if worker.is_alive():
                    worker.kill()
                    worker.join()
        logs = history.read(directory)
        sent = sum(board.confirmed[plan.index] for plan in plans if plan.role == "producer")
        return {"sent": sent} | {rule: len(list(getattr(checker, rule)(logs))) for rule in RULES}

    def _work_on(self, victim: Any, board: Any, plans: Sequence[clients.WorkerPlan], effort: PairEffort) -> None:
        def moved() -> tuple[int, ...]:
            return tuple(board.touched[plan.index] for plan in plans)

        def touched(role: str) -> int:
            return sum(board.touched[plan.index] for plan in plans if plan.role == role)

        end_s = time.monotonic() + RECOVER_S
        while not touched("consumer") and time.monotonic() < end_s:
            time.sleep(0.1)
        time.sleep(effort.seconds)
        victim.kill()
        victim.start()
        self.wait(victim)
        time.sleep(effort.seconds)
        board.stop_producing.value = True
        seen, moved_s = moved(), time.monotonic()
        while time.monotonic() - moved_s < effort.idle_s:
            if (now := moved()) != seen:
                seen, moved_s = now, time.monotonic()
            time.sleep(0.1)


def table(found: dict[str, dict[str, Any]], load: float) -> Table:
    shown = Table(
        title="two brokers as one: producers at the first, consumers at the second",
        caption=f"load of the machine: {load:.1f}. Of each kill: {', '.join(RULES)}, after the number sent",
    )
    for heading in ("", "messages/s", "kill -9 of the consumers' broker", "of the producers' broker"):
        shown.add_column(heading, justify="right" if heading else "left")
    for kind, facts in found.items():
        kills = [
            f"{', '.join(str(each[rule]) for rule in RULES)} of {each['sent']:,.0f}"
            for each in (facts["second"], facts["first"])
        ]
        shown.add_row(kind, f"{facts['per_s']:,.0f}", *kills)
    return shown


def main() -> None:
    parser = cli.parser("clusters", __doc__, EXAMPLES, peers=False)
    cli.add_pairs(parser, "activemq|artemis=DIR")
    args = parser.parse_args()
    cli.terminate_on_signal()
    effort = PairEffort(*QUICK) if args.quick else PairEffort()
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for kind in ("amq", *args.peer):
        cli.progress(f"{kind}: two of them")
        try:
            with Pair(kind, args.dir, cli.amq_options(args)) as pair:
                facts: dict[str, Any] = {"per_s": pair.rate(effort)}
                for victim in (pair.second, pair.first):
                    cli.progress(f"{kind}: kill -9 of the {victim.name}")
                    facts[victim.name] = pair.killed(victim, effort)
            found[kind] = facts
        except (LoadError, WireError, OSError, brokers.BrokerProcessError) as error:
            failed.append(f"{kind} failed: {error}")
    load = os.getloadavg()[0]
    cli.show(args, {"host": host.describe(args.dir), "load": load, "clusters": found}, table(found, load))
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
