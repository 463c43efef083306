"""One lab for one scenario: network, guests, file server, mounts, brokers, clients; and what is measured on it.

Invariant: `finish` gives the checker a complete history: clients have ended, queues are drained, and the store was read
through a mount made afresh, so that no cache answers for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lab import checker
from lab.broker import SERVING, WAITING, Broker, Line
from lab.errors import ExpectationError
from lab.filesystem import MOUNT, SERVER, FileSystem, together
from lab.guest import MEMORY, Guest, Place
from lab.history import History, Sent, Served, StoreFacts, now_s
from lab.network import Network
from lab.nfs import Nfs
from lab.traffic import DEFAULT, HEART_BEAT_MS, Traffic
from tests.older import unpack

PERIOD_S = 2.0  # lockKeepAlivePeriod
DEPOSED_DEADLINE_S = 25.0  # on a soft mount a process that hangs in it can be replaced after as long
MARGIN_S = 1.0  # what reading a receipt, or a clock, may be late on a busy machine
STORE = f"{MOUNT}/store"
OPTIONS: dict[str, object] = {
    "lockKeepAlivePeriod": f"{PERIOD_S:g}s",
    "lockAcquireSleepInterval": "500ms",
    "journalSegmentSize": "1MiB",
    "journalBatchSize": "512KiB",
    "storeFreeFloor": "16MiB",
    "logFormat": "json",
    "anonymous": "yes",
    "heartBeatSend": f"{HEART_BEAT_MS}ms",
}
T = TypeVar("T")


class World:
    """`hosts`: numbers of the guests that run brokers; guest 1 is the file server. `memory` is that of each guest.

    measures   what is shown beside the verdict: {"takeover": 12.3, …}, in seconds
    findings   what the scenario itself found wrong
    mount, store   where the shared file system is mounted, and the store in it
    """

    def __init__(
        self,
        place: Place,
        command: Sequence[str],
        say: Callable[[str], None],
        verbose: bool,
        hosts: int = 2,
        spare: int = 0,
        files: Callable[[], FileSystem] = Nfs,
        options: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
        default_client: bool = False,
        memory: str = MEMORY,
    ) -> None:
        self.place = place
        self.say = say
        self.verbose = verbose
        self.mount, self.store = MOUNT, STORE
        self.history = History()
        self.measures: dict[str, float] = {}
        self.findings: list[str] = []
        self.files = files()
        self.network = Network()
        numbers = range(SERVER + 1, SERVER + 1 + hosts + spare)
        disks = self.files.disks(place.work, numbers)
        self.guests = {n: Guest(n, self.network, place, disks.get(n), memory) for n in (SERVER, *numbers)}
        self.options = OPTIONS | dict(options or {})
        self.brokers = [
            Broker(self.guests[n], place, command, STORE, self.options, self._noted, flags) for n in numbers[:hosts]
        ]
        self.traffic = Traffic(self.history, self.brokers, default=default_client)
        self._served = False
        self._fault_s: float | None = None  # the first one

    # -- building ------------------------------------------------------------------------------------------------------

    def build(self) -> World:
        """Boot, mount, start the brokers (the first becomes master) and the clients, and wait until work flows."""
        self.boot()
        self.serve()
        return self

    def boot(self) -> None:
        """Boot and mount."""
        self.say("booting")
        for guest in self.guests.values():
            guest.start()
        together([guest.wait_up for guest in self.guests.values()])
        self.say("mounting")
        self.files.set_up(self.guests)

    def serve(self) -> None:
        """Start the brokers, the first of which becomes master, and clients; wait until work flows."""
        self.say("starting brokers and clients")
        self._served = True
        first, *others = self.brokers
        first.start().wait_event(SERVING)
        for broker in others:
            broker.start()
        for broker in others:
            broker.wait_event(WAITING)
        self.traffic.start()
        self.traffic.wait_confirmed(60)

    def close(self) -> None:
        self.files.close()
        for guest in self.guests.values():
            guest.power_off()

    def _noted(self, broker: Broker, line: Line, at_s: float) -> None:
        if self.verbose:
            self.say(f"{broker.name}: {json.dumps(line)}")
        if line.get("event") == SERVING:
            self.history.note(Served(broker.name, int(line["epoch"]), at_s))

    def older(self, version: str) -> list[str]:
        """The `amq` of an earlier release, for `Broker.command`."""
        code = unpack(version, self.place.work / f"amq-{version}")
        return ["env", f"PYTHONPATH={code}", *self.place.amq]

    # -- hurting -------------------------------------------------------------------------------------------------------

    def fault(self, what: str) -> float:
        """Say that the fault comes now, and note when."""
        self.say(what)
        at_s = now_s()
        self._fault_s = self._fault_s or at_s
        return at_s

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def master(self) -> Broker:
        newest = max(self.history.of(Served), key=lambda served: served.epoch)
        return next(broker for broker in self.brokers if broker.name == newest.host)

    @property
    def epoch(self) -> int:
        return max(served.epoch for served in self.history.of(Served))

    def wait_served(self, since_s: float, epoch: int, timeout_s: float = 90.0) -> None:
        """Until a newer epoch than `epoch` is served; measures "takeover"."""
        found = self.wait(lambda: [served for served in self.history.of(Served) if served.epoch > epoch], timeout_s)
        self.measures["takeover"] = found[0].at_s - since_s
        self.say(f"{found[0].host} took over after {found[0].at_s - since_s:.1f} s")

    def wait_takeover(self, since_s: float, epoch: int, timeout_s: float = 90.0) -> None:
        """The same, and until it confirms."""
        self.wait_served(since_s, epoch, timeout_s)
        self.traffic.wait_confirmed(40)

    def wait(self, done: Callable[[], T], timeout_s: float = 60.0) -> T:
        """Until `done()` is true; its value. ExpectationError with the brokers' logs otherwise."""
        deadline = time.monotonic() + timeout_s
        while not (value := done()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {broker.name}\n{broker.tail()}" for broker in self.brokers)
                raise ExpectationError(f"not within {timeout_s:g} s:\n{logs}")
            time.sleep(0.02)
        return value

    def wait_deposed(self, broker: Broker, after: int) -> None:
        """Until a master that was overtaken is a slave, by itself or as a new process."""
        broker.wait_event(WAITING, DEPOSED_DEADLINE_S, after)

    def default_confirmed(self, after_s: float) -> float:
        """When the client without options got its first confirmation after `after_s`; 0.0 = not yet."""
        return next(
            (s.at_s for s in self.history.of(Sent) if s.message.startswith(f"{DEFAULT}-") and s.at_s > after_s), 0.0
        )

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.findings.append(otherwise)

    def check_deposed(self, epoch: int, since_s: float) -> None:
        """The master of `epoch`, which lost its store at `since_s`, stopped confirming within one period and closed its
        sockets within two."""
        last_s, closed_s = checker.last_confirmed_s(self.history, epoch), checker.closed_s(self.history, epoch)
        if last_s is not None:
            self.measures["last confirm"] = last_s - since_s
            self.expect(
                last_s - since_s <= PERIOD_S + MARGIN_S,
                f"the master of epoch {epoch} confirmed {last_s - since_s:.2f} s after it lost its store "
                f"(lockKeepAlivePeriod {PERIOD_S:g} s)",
            )
        if closed_s is None:
            self.findings.append(f"the master of epoch {epoch} never closed its connections")
            return
        self.measures["sockets closed"] = closed_s - since_s
        self.expect(
            closed_s - since_s <= 2 * PERIOD_S + PERIOD_S / 10 + MARGIN_S,
            f"the master of epoch {epoch} closed its connections {closed_s - since_s:.2f} s after it lost its store "
            f"(lockKeepAlivePeriod {PERIOD_S:g} s)",
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Let the clients end, stop the brokers, read the store; what was found wrong."""
        if not self._served:
            return self.findings
        running = self._end_clients()
        self.say("reading the store")
        self.history.store = self.read_store(running[0].guest)
        return [*self.findings, *checker.check(self.history)]

    def _end_clients(self) -> list[Broker]:
        """Let the clients end, then the brokers: returns those that had run."""
        self.say("draining")
        self.traffic.finish()
        if self._fault_s is not None:
            self.measures["longest pause"] = checker.longest_pause_s(self.history, self._fault_s)
            default_s = checker.pause_of_s(self.history, DEFAULT, self._fault_s)
            if default_s is not None:
                self.measures["default client"] = default_s
        running = [broker for broker in self.brokers if broker.guest.on and broker.exit_code is None]
        for broker in sorted(running, key=self._ends_last):  # slaves first: no takeover at the end
            try:
                broker.stop()
            except ExpectationError as error:
                self.findings.append(str(error))
        return running

    def _ends_last(self, broker: Broker) -> bool:
        return broker is self.master

    def read_store(self, guest: Guest) -> StoreFacts:
        self.files.remount(guest)
        return self.store_facts(guest, STORE)

    def store_facts(self, guest: Guest, store: str) -> StoreFacts:
        listing = guest.run(f"cd {store}/epochs; cat $(ls | grep '^[0-9]*[.]json$' | sort)")
        epochs = [json.loads(line)["body"] for line in listing.splitlines()]
        code, said = self.amq(guest, "journal", "check", "--store", store)
        return StoreFacts(epochs, (255 if code is None else code, said))

    def amq(self, guest: Guest, *words: str, timeout_s: float = 60.0) -> tuple[int | None, str]:
        """Run `amq …` on `guest`: (exit code, output); None = it did not end in time."""
        environment = [f"{key}={value}" for key, value in self.place.environment.items()]
        return guest.try_run(["env", *environment, *self.place.amq, *words], timeout_s)
