"""Partitions of a replicated store: three hosts, each a network namespace with a broker and a server of etcd, and a
bridge between them. The test run sees nothing of it, and needs no right but to make namespaces.

    python -m tests.quorum.partitions DIR [--turns 50] [--seed N] [--shapes FIRST,SECOND | --kills] [--longest 12]

Each turn cuts the network in one of `SHAPES`, or kills brokers (`KILLS`), waits until those that still are a majority
confirm, and as long as is drawn, at most `--longest` seconds; heals it, and waits until all three copies count. Three
clients, one at each member, send all the time. Checked: a member that is cut off from the others confirms nothing that
is sent to it after the cut; no two members confirm in turns; at the end all that was confirmed is there, once and in
order. Prints a line for each turn, and then the figures, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from amq.store.open import open_coordinator, open_store
from amq.store.replica.book import GroupBook, KnownRecord
from amq.store.replica.store import LinkedEpochs
from bench.wire import WireConnection, WireError
from tests.brokers import Broker
from tests.ensemble import EtcdEnsemble, wait_until
from tests.patience import DEADLINE_S
from tests.processes import LEASH
from tests.traffic import QUEUE, drain

NAMES = "abc"
HOST, NETWORK = "10.86.0.254", "10.86.0.{}/24"
NOWHERE = "02:00:00:00:00:ff"  # the address of no interface
CLIENTS = 61613
WINDOW = 5
SILENCE_S = 3.0  # of a member, until its client tries anew
PACE_S = 0.01  # between two messages of a client
ENOUGH = 20  # confirmations that show that the majority goes on
APART_S = 4.0
FLAPS = 12
LIMITS = "sessionTimeout=3000"
OPTIONS = {
    "lockKeepAlivePeriod": "6s",
    "lockAcquireSleepInterval": "100ms",
    "logFormat": "json",
    "anonymous": "yes",
}

Way = tuple[int, int]  # from host, to host


def address(number: int) -> str:
    return NETWORK.format(number + 1).partition("/")[0]


# -- the network -------------------------------------------------------------------------------------------------------


class Network:
    """Three hosts. `cut` ways lose everything, silently; a host that is `unplugged` reaches nobody."""

    def __init__(self) -> None:
        self._hosts: list[subprocess.Popen[bytes]] = []
        self._cut: set[Way] = set()
        self._unplugged: set[int] = set()

    def __enter__(self) -> Network:
        _ip("link set lo up", "link add bridge type bridge", f"address add {HOST}/24 dev bridge", "link set bridge up")
        for number in range(len(NAMES)):
            host = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
            self._hosts.append(host)
            wait_until(lambda pid=host.pid: _network_of(pid) != _network_of("self"), "the namespace is there")
            _ip(
                f"link add port{number} type veth peer name wire netns {host.pid}",
                f"link set port{number} master bridge up",
            )
            own = NETWORK.format(number + 1)
            _ip("link set lo up", f"address add {own} dev wire", "link set wire up", inside=self.inside(number))
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.kill()
            host.wait()

    def inside(self, number: int) -> list[str]:
        """The words before a command that runs on that host."""
        return ["nsenter", "--target", str(self._hosts[number].pid), "--net"]

    def cut(self, ways: set[Way]) -> None:
        """From now on just these ways are cut."""
        for number in range(len(NAMES)):
            ended = [f"neighbour del {address(to)} dev wire" for way, to in self._cut - ways if way == number]
            begun = [
                f"neighbour replace {address(to)} lladdr {NOWHERE} nud permanent dev wire"
                for way, to in ways - self._cut
                if way == number
            ]
            if ended or begun:
                _ip(*ended, *begun, inside=self.inside(number))
        self._cut = set(ways)

    def unplug(self, number: int) -> None:
        _ip(f"link set port{number} nomaster")
        self._unplugged.add(number)

    def heal(self) -> None:
        self.cut(set())
        while self._unplugged:
            _ip(f"link set port{self._unplugged.pop()} master bridge")


def _network_of(process: int | str) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def _ip(*lines: str, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, "ip", "-batch", "-"], input="\n".join(lines).encode(), check=True)


class EtcdOnHosts(EtcdEnsemble):
    """A server on each host."""

    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__(directory)
        self._network = network
        self.hosts = [address(number) for number in range(self.servers)]

    def command(self, number: int) -> list[str]:
        return [*self._network.inside(number), *super().command(number)]


# -- clients -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sent:
    """A message that was confirmed. Times are of the clock of all clients; `sent_at` = for the first time."""

    number: int
    connection: int
    sent_at: float
    confirmed_at: float


class Client(threading.Thread):
    """Sends numbered messages to the member `number` alone, at `host` and `port`, whenever it serves."""

    def __init__(self, number: int, host: str = "", port: int = CLIENTS) -> None:
        super().__init__(name=f"client {NAMES[number]}", daemon=True)
        self.number = number
        self._host, self._port = host or address(number), port
        self.confirmed: list[Sent] = []
        self.failure: BaseException | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self.failure = error

    def _run(self) -> None:
        sent: dict[int, float] = {}  # the messages in doubt
        following = connection = 0
        while not self._stopping.is_set():
            connection += 1
            try:
                with WireConnection(self._port, self._host, timeout_s=SILENCE_S) as wire:
                    for number in sent:
                        self._send(wire, number)
                    while not self._stopping.is_set():
                        while len(sent) < WINDOW:
                            sent[following] = time.monotonic()
                            following += 1
                            self._send(wire, following - 1)
                        first = next(iter(sent))
                        wire.receipt(str(first), SILENCE_S)
                        self.confirmed.append(Sent(first, connection, sent.pop(first), time.monotonic()))
                        self._stopping.wait(PACE_S)
            except (OSError, WireError):
                self._stopping.wait(PACE_S)

    def _send(self, wire: WireConnection, number: int) -> None:
        body = f"{NAMES[self.number]} {number}"
        wire.send("SEND", {"destination": QUEUE, "receipt": number, "_AMQ_DUPL_ID": body}, body.encode())


class Violation(AssertionError):
    """A promise was broken."""


def check_turns(clients: Sequence[Client]) -> int:
    """No two members confirm in turns: what is sent after the next master has confirmed something is not confirmed by
    the one before. Returns how many masterships confirmed something."""
    spans: list[tuple[int, float, float]] = []
    for client in clients:
        for connection in sorted({each.connection for each in client.confirmed}):
            found = [each for each in client.confirmed if each.connection == connection]
            spans.append((client.number, min(s.confirmed_at for s in found), max(s.sent_at for s in found)))
    for (one, one_first, one_last), (other, other_first, other_last) in combinations(spans, 2):
        if one != other and one_last > other_first and other_last > one_first:
            raise Violation(f"{NAMES[one]} and {NAMES[other]} confirm at once: {spans}")
    order = [number for number, _, _ in sorted(spans, key=lambda each: each[1])]
    return sum(following != number for number, following in zip([-1, *order], order, strict=False))


def check_kept(clients: Sequence[Client], bodies: Sequence[bytes]) -> int:
    """What was confirmed is there, once and in order. Returns how much was confirmed."""
    for client in clients:
        words = [body.split() for body in bodies]
        found = [int(number) for name, number in words if name.decode() == NAMES[client.number]]
        if found != sorted(set(found)):
            raise Violation(f"messages of {client.name} are stored twice, or out of order")
        lost = {each.number for each in client.confirmed} - set(found)
        if lost:
            raise Violation(f"{client.name}: confirmed and lost: {sorted(lost)}")
    return sum(len(client.confirmed) for client in clients)


# -- the turns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A cut. Members are the `master`, and the others `s` and `o`: letters in `ways` say from whom to whom. `mute` =
    those that most copies do not hear, or that hear none of them. Brokers that are `killed` start again when the
    network is healed."""

    ways: str = ""
    mute: str = ""
    unplugged: str = ""
    killed: str = ""


SHAPES = {
    "the master alone": Shape("ms sm mo om", "m"),
    "the master unplugged": Shape("", "m", "m"),
    "a slave alone": Shape("ms sm so os", "s"),
    "a slave unplugged": Shape("", "s", "s"),
    "all apart": Shape("ms sm mo om so os", "mso"),
    "nothing leaves the master": Shape("ms mo", "m"),
    "nothing reaches the master": Shape("sm om", "m"),
    "nothing leaves a slave": Shape("sm so", "s"),
    "nothing reaches a slave": Shape("ms os", "s"),
    "master and slave apart": Shape("ms sm"),
    "master to slave": Shape("ms"),
    "slave to master": Shape("sm"),
    "slaves apart": Shape("so os"),
    "flapping": Shape(),
}
KILLS = {
    "the master killed": Shape(mute="m", killed="m"),
    "a slave killed": Shape(mute="s", killed="s"),
    "all killed": Shape(mute="mso", killed="mso"),
}


class Partitions:
    """Three members on `network`, whose copies all count, and a client at each."""

    def __init__(self, network: Network, brokers: Sequence[Broker], book: GroupBook, random: Random) -> None:
        self.network, self.brokers, self.book, self.random = network, brokers, book, random
        self.clients = [Client(number) for number in range(len(NAMES))]
        self.longest_s = 0.0
        self.takeovers = 0
        self.revived = 0  # brokers that ended by themselves, and were started again as a service manager does
        self._killed: set[int] = set()

    def turn(self, name: str, longest_s: float) -> dict[str, Any]:
        """Raises Violation."""
        epoch, shape = self.epoch, (SHAPES | KILLS)[name]
        members = self.roles()
        mute = {members[letter] for letter in shape.mute}
        for letter in shape.unplugged:
            self.network.unplug(members[letter])
        self.network.cut({(members[one], members[other]) for one, other in shape.ways.split()})
        self._killed = {members[letter] for letter in shape.killed}
        for number in self._killed:
            self.brokers[number].kill()
        cut_at = time.monotonic()
        if name == "flapping":
            self._flap()
        elif len(mute) == len(NAMES):
            wait_until(lambda: time.monotonic() > cut_at + APART_S, "all were apart for a while")
        else:
            wait_until(lambda: self._newly(cut_at, mute) >= ENOUGH, f"{name}: those that are a majority confirm")
        hold_s = self.random.choice([0.0, self.random.uniform(0.0, longest_s)])
        wait_until(lambda: time.monotonic() >= cut_at + hold_s, "they were apart for a while")
        for number in mute:
            late = [each for each in list(self.clients[number].confirmed) if each.sent_at > cut_at]
            if late:
                raise Violation(f"{name}: {NAMES[number]} confirmed {late}")
        self._killed.clear()
        self._revive()
        self.network.heal()
        healed_at = time.monotonic()
        wait_until(self._all_count, "all copies count")
        wait_until(lambda: self._newly(healed_at, set()) >= ENOUGH, f"{name}: the master confirms when all is healed")
        paused_s = self._pause(cut_at, healed_at)
        self.longest_s = max(self.longest_s, paused_s)
        self.takeovers += self.epoch - epoch
        cut_s = round(healed_at - cut_at, 1)
        return {"shape": name, "cut_s": cut_s, "pause_s": round(paused_s, 2), "takeovers": self.epoch - epoch}

    def _all_count(self) -> bool:
        self._revive()
        return len(self.book.read().record.members) == len(NAMES)

    @property
    def epoch(self) -> int:
        return self.known().record.epoch

    def known(self) -> KnownRecord:
        """The record, when a server says it: they may be electing."""
        found: list[KnownRecord] = []
        wait_until(lambda: found.append(self.book.read()) is None, "the coordinator answers")
        return found[0]

    def roles(self) -> dict[str, int]:
        """By letter, which member is the master, a slave, and the other one."""
        epoch = self.known().epoch
        assert epoch is not None
        master = NAMES.index(epoch.owner.name)
        others = [number for number in range(len(NAMES)) if number != master]
        self.random.shuffle(others)
        return {"m": master, "s": others[0], "o": others[1]}

    def _flap(self) -> None:
        ways = list(permutations(range(len(NAMES)), 2))
        for _ in range(FLAPS):
            self.network.cut(set(self.random.sample(ways, self.random.randint(0, 4))))
            until = time.monotonic() + self.random.uniform(0.1, 1.0)
            wait_until(lambda until=until: time.monotonic() > until, "this flap is over")

    def _revive(self) -> None:
        for number, broker in enumerate(self.brokers):
            if not broker.alive and number not in self._killed:
                self.revived += broker.said("stopped") != []
                broker.start()

    def _newly(self, after: float, mute: set[int]) -> int:
        """How many messages were confirmed that were sent after that moment."""
        self._revive()
        return sum(
            each.sent_at > after
            for client in self.clients
            if client.number not in mute
            for each in client.confirmed[-2 * ENOUGH :]
        )

    def _pause(self, began: float, healed: float) -> float:
        """The longest time without a confirmation, from the cut on."""
        times = sorted(
            each.confirmed_at for client in self.clients for each in list(client.confirmed) if each.confirmed_at > began
        )
        assert times[-1] > healed
        return max(after - before for before, after in zip([began, *times], times, strict=False))


@contextlib.contextmanager
def three_hosts(directory: Path, random: Random) -> Iterator[Partitions]:
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        servers = EtcdOnHosts(directory / "servers", network)
        stack.callback(servers.kill)
        servers.start()
        coordinator = servers.url(LIMITS)
        wait_until(lambda: open_coordinator(coordinator).read("any") is None, "the servers have a leader")
        brokers = []
        for number, name in enumerate(NAMES):
            own = address(number)
            store = f"replica://{directory / name}?group=fish&coordinator={coordinator}&listen={own}:0"
            broker = Broker(store, name, CLIENTS, OPTIONS)
            broker.host, broker.inside = own, network.inside(number)
            brokers.append(broker)
            stack.callback(lambda broker=broker: broker.alive and broker.kill())
            broker.start()
        epochs = open_store(str(brokers[0].store)).epochs
        assert isinstance(epochs, LinkedEpochs)
        book = epochs._book
        found = Partitions(network, brokers, book, random)
        for client in found.clients:
            client.start()
        try:
            wait_until(lambda: len(book.read().record.members) == len(NAMES), "all copies count")
            yield found
        except BaseException:
            for broker in brokers:
                sys.stderr.write(f"{broker.name}:\n{broker.log_text()}\n")
            raise


def run(directory: Path, turns: int, seed: int, shapes: Sequence[str], longest_s: float) -> None:
    random = Random(seed)
    with three_hosts(directory, random) as world:
        for number in range(turns):
            if not number % len(shapes):
                order = random.sample(shapes, len(shapes))
            told = world.turn(order[number % len(shapes)], longest_s)
            sys.stdout.write(json.dumps({"turn": number + 1, **told}) + "\n")
            sys.stdout.flush()
        for client in world.clients:
            client.stop()
        confirmed = sum(len(client.confirmed) for client in world.clients)
        master = address(world.roles()["m"])
        with WireConnection(CLIENTS, master, timeout_s=DEADLINE_S) as wire:
            bodies = drain(wire, confirmed)
        figures = {
            "seed": seed,
            "turns": turns,
            "confirmed": check_kept(world.clients, bodies),
            "takeovers": world.takeovers,
            "masterships that confirmed": check_turns(world.clients),
            "started again": world.revived,
            "longest_pause_s": round(world.longest_s, 2),
        }
        sys.stdout.write(json.dumps(figures) + "\n")


def command(directory: Path, *words: str) -> list[str]:
    """It runs in a namespace without other networks, and dies with the process that starts it."""
    inside = [sys.executable, "-c", LEASH, sys.executable, "-m", "tests.quorum.partitions", str(directory), "--inside"]
    return ["unshare", "--map-root-user", "--net", *inside, *words]


def missing() -> list[str]:
    """The programs that this needs, and that are not installed."""
    return [each for each in ("etcd", "unshare", "nsenter", "setpriv", "ip") if shutil.which(each) is None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.quorum.partitions", description=__doc__)
    parser.add_argument("directory", type=Path, help="a new one, for the copies and the servers")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names of cuts, separated by commas")
    parser.add_argument("--kills", action="store_true", help="kill brokers instead")
    parser.add_argument("--longest", type=float, default=12.0, help="seconds; from 10 on members miss each other")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kills:
        options.shapes = ",".join(KILLS)
    if not options.inside:
        words = [f"--{name}={getattr(options, name)}" for name in ("turns", "seed", "shapes", "longest")]
        sys.exit(subprocess.run(command(options.directory, *words), check=False).returncode)
    options.directory.mkdir(parents=True, exist_ok=True)
    run(options.directory, options.turns, options.seed, options.shapes.split(","), options.longest)


if __name__ == "__main__":
    main()
