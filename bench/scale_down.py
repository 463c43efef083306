"""What becomes of a broker's messages when it leaves for good, and one of the two brokers is killed in the middle.

Two brokers work as one, as in `bench.clusters`: ours are two nodes of a cluster of two stores, those of others two
Artemis brokers in a cluster. Messages wait in a queue of the first, and others are scheduled. The first is stopped, and
gives what it holds to the second by the scale-down of its kind. In the middle nothing happens, or the process that
gives is killed (kill -9), or the one that gets. What was killed starts again; an Artemis that ended, and got no word
of that all has gone, is started and stopped once more. Then both queues are read at the second. The figures: how many
messages were lost, came twice, came in another order, and were delivered before they were due.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rich.table import Table

from amq.cluster.directory import Cluster
from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import AmqError
from bench import brokers, cli, host
from bench.clusters import Pair
from bench.wire import WireConnection, WireError
from tests.processes import naming

LEAVES, STAYS = "s1", "s2"  # stores of ours
QUEUE, LATER = "/queue/leaving", "/queue/scheduled"
KILLS: Final = ("nothing", "the one that gives", "the one that gets")
RULES: Final = ("lost", "doubled", "reordered", "early")
SCHEDULED = 100
BODY_BYTES = 1024
RECEIPT_EVERY = 500
END_S = 300.0  # for a scale-down with its kill
EARLY_S = 0.5  # less is the clock's
MIDDLE = (0.2, 0.8)  # of the time that a scale-down without a kill took
EXAMPLES = ("--quick", "--turns 5 --peer artemis=/opt/apache-artemis-2.40.0 --json scale-down.json")
SCALE_DOWN_XML = """<ha-policy><primary-only><scale-down>
  <connectors><connector-ref>{connector}</connector-ref></connectors>
</scale-down></primary-only></ha-policy>
"""


class LeavingNode:
    """Two nodes of ours: the first one leaves with its store, which the second empties."""

    kind = "amq"

    def __init__(self, directory: str | None, options: dict[str, str]) -> None:
        self.pair = Pair(self.kind, directory, options)
        self.pair.first.more = ("--scale-down", LEAVES, "--scale-down-to", STAYS, "--scale-down-after", "0.1")

    def prepare(self) -> None:
        """Both queues live in the store that leaves: their names decide it."""
        home_of = Cluster(str(self.pair.first.store)).table().placement.home_of
        assert {home_of(QUEUE_SCHEME + queue.removeprefix("/queue/")) for queue in (QUEUE, LATER)} == {LEAVES}

    def leave(self) -> None:
        self.pair.first.process.terminate()

    @property
    def has_left(self) -> bool:
        return not self.pair.first.alive and LEAVES not in Cluster(str(self.pair.first.store)).table().stores

    def kill(self, what: str) -> None:
        """The member of the second node: this starts it again."""
        store = LEAVES if what == KILLS[1] else STAYS
        for pid, words in naming(str(self.pair.first.store)):
            if words[-3:-1] == ["--member", store] and self.pair.second.name in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def go_on(self) -> None:
        """Nothing is to be done."""


class LeavingArtemis(LeavingNode):
    """Two Artemis brokers: the first one gives all to the second before it ends."""

    kind = "artemis"

    def __init__(self, directory: str | None, options: dict[str, str]) -> None:
        self.pair = Pair(self.kind, directory, options)
        self._victim: Any = None
        first = self.pair.first
        first.command()  # makes its files
        configuration = first.store.parent / f"{first.name}-instance/etc/broker.xml"
        text, mark = configuration.read_text(), "<connectors>"
        connector = re.search(rf'<connector name *= *"(\w+)">tcp://127.0.0.1:{first.neighbour}<', text)
        assert connector is not None
        assert text.count(mark) == 1
        configuration.write_text(text.replace(mark, SCALE_DOWN_XML.format(connector=connector[1]) + mark))

    def prepare(self) -> None:
        """Its queues are where they are used."""

    @property
    def has_left(self) -> bool:
        return not self.pair.first.alive

    def kill(self, what: str) -> None:
        self._victim = self.pair.first if what == KILLS[1] else self.pair.second
        self._victim.kill()

    def go_on(self) -> None:
        """What was killed starts again, and the first, too, if it has ended by that: it leaves once more."""
        victim, first = self._victim, self.pair.first
        if victim is None:
            return
        victim.start()
        self.pair.wait(victim)
        if victim is not first:
            _until(lambda: not first.alive, "the first broker does not end")
            first.start()
            self.pair.wait(first)
        self.pair.meet()
        self.leave()


KINDS: Final = {kind.kind: kind for kind in (LeavingNode, LeavingArtemis)}


def _until(is_so: Any, otherwise: str) -> None:
    """Raises BrokerProcessError."""
    end_s = time.monotonic() + END_S
    while not is_so():
        if time.monotonic() > end_s:
            raise brokers.BrokerProcessError(otherwise)
        time.sleep(0.02)


def fill(port: int, messages: int, later_s: float) -> float:
    """Numbers from 0 on in the queue, and `SCHEDULED` of them for later; returns when these are due, of `time.time`."""
    with WireConnection(port) as connection:
        pad = "x" * BODY_BYTES
        delay: dict[str, object] = {"AMQ_SCHEDULED_DELAY": round(later_s * 1000)}
        none: dict[str, object] = {}
        for queue, count, more in ((QUEUE, messages, none), (LATER, SCHEDULED, delay)):
            due = time.time() + later_s
            for number in range(count):
                headers: dict[str, object] = {"destination": queue, "persistent": "true"} | more
                is_asked = (number + 1) % RECEIPT_EVERY == 0 or number + 1 == count
                connection.send("SEND", headers | ({"receipt": number} if is_asked else {}), f"{number} {pad}".encode())
                if is_asked:
                    connection.receipt(str(number), END_S)
    return due


def read(port: int, queue: str, idle_s: float, until: float) -> list[tuple[int, float]]:
    """Number of each message, and when it came, of `time.time`: until `until`, and then until `idle_s` bring none."""
    found = []
    with WireConnection(port) as connection:
        connection.send("SUBSCRIBE", {"id": "0", "destination": queue, "ack": "auto"})
        came_s = time.time()
        while (now := time.time()) < max(until, came_s + idle_s):
            with contextlib.suppress(TimeoutError):
                frame = connection.next_frame(1.0)
                if frame.command == "MESSAGE":
                    came_s = time.time()
                    found.append((int(frame.body.split()[0]), came_s))
                continue
            if now > came_s:
                connection.send_bytes(b"\n")  # Artemis closes a connection that says nothing for a minute
    return found


def judged(came: list[int], sent: int) -> dict[str, int]:
    """What became of the numbers below `sent`."""
    times = Counter(came)
    firsts, highest, reordered = list(dict.fromkeys(came)), -1, 0
    for number in firsts:
        reordered += number < highest
        highest = max(highest, number)
    doubled = sum(count - 1 for count in times.values())
    return {"lost": sent - len(times), "doubled": doubled, "reordered": reordered}


def one(kind: str, what: str, after_s: float, args: Any) -> dict[str, float]:
    """A scale-down of new brokers, with a kill `after_s` seconds after its beginning. Raises BrokerProcessError."""
    made = KINDS[kind](args.dir, cli.amq_options(args))
    with made.pair as pair:
        made.prepare()
        due = fill(pair.first.port, args.messages, args.later)
        began_s = time.monotonic()
        made.leave()
        if what != KILLS[0]:
            time.sleep(after_s)
            made.kill(what)
            made.go_on()
        _until(lambda: made.has_left, f"{kind}: the first broker has not left:\n{pair.second.log_text()[-2000:]}")
        took_s = time.monotonic() - began_s
        pair.wait(pair.second)
        scheduled = read(pair.second.port, LATER, args.idle, due + args.idle)
        came = read(pair.second.port, QUEUE, args.idle, 0.0)
    of_scheduled = judged(sorted(number for number, _ in scheduled), SCHEDULED)
    found = judged([number for number, _ in came], args.messages)
    return {
        "seconds": took_s,
        "lost": found["lost"] + of_scheduled["lost"],
        "doubled": found["doubled"] + of_scheduled["doubled"],
        "reordered": found["reordered"],
        "early": sum(came_s < due - EARLY_S for _, came_s in scheduled),
    }


def measure(kind: str, args: Any, found: dict[str, list[dict[str, float]]], keep: Callable[[], None]) -> None:
    """Into `found`, by kind of kill: the figures of each turn. `keep()` after each."""
    luck = random.Random(args.seed)
    calm_s = 0.0
    for what in KILLS:
        for turn in range(args.turns):
            cli.progress(f"{kind}: turn {turn + 1} of {args.turns}, kill of {what}")
            found.setdefault(what, []).append(one(kind, what, calm_s * luck.uniform(*MIDDLE), args))
            keep()
        calm_s = calm_s or min(each["seconds"] for each in found[what])


def table(found: dict[str, dict[str, list[dict[str, float]]]], args: Any, load: float) -> Table:
    held = f"{args.messages:,} messages and {SCHEDULED} scheduled ones"
    shown = Table(
        title=f"a broker leaves with {held}; {args.turns} turns each",
        caption=f"load of the machine: {load:.1f}. Each: {', '.join(RULES)}, of all turns",
    )
    for heading in ("", *(f"kill of {what}" for what in KILLS), "longest, s"):
        shown.add_column(heading, justify="right" if heading else "left")
    for kind, kills in found.items():
        by_kill = [kills.get(what, []) for what in KILLS]
        sums = [", ".join(f"{sum(turn[rule] for turn in turns):,.0f}" for rule in RULES) for turns in by_kill]
        longest = max((turn["seconds"] for turns in by_kill for turn in turns), default=0.0)
        shown.add_row(kind, *sums, f"{longest:.1f}")
    return shown


def main() -> None:
    parser = cli.parser("scale_down", __doc__, EXAMPLES, peers=False)
    cli.add_pairs(parser, "artemis=DIR")
    parser.add_argument("--messages", type=int, default=20_000, help="in the queue, of 1 KiB (default %(default)s)")
    parser.add_argument(
        "--later", type=float, default=60.0, help="delay of the scheduled ones, s (default %(default)s)"
    )
    parser.add_argument("--idle", type=float, default=10.0, help="for so long nothing comes at the end, s")
    parser.add_argument("--turns", type=int, default=3, help="of each kind of kill (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cli.terminate_on_signal()
    if args.quick:
        args.messages, args.later, args.idle, args.turns = 500, 20.0, 2.0, 1
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    told = host.describe(args.dir)

    def report() -> dict[str, Any]:
        return {"host": told, "load": os.getloadavg()[0], "scale_down": found}

    for kind in ("amq", *args.peer):
        try:
            measure(kind, args, found.setdefault(kind, {}), lambda: cli.keep(args, report()))
        except (WireError, OSError, brokers.BrokerProcessError, AmqError) as error:
            failed.append(f"{kind} failed: {error}")
    cli.show(args, report(), table(found, args, os.getloadavg()[0]))
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
