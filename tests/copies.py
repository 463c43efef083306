"""Members of a replicated store in one process: their copies are directories, the network between them is a queue each.

`LocalNetwork.cut` are pairs that do not hear each other; `away` are members that hear nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.journal.copies import JournalFormat
from amq.journal.format import SegmentHeader, encode_batch, segment_name
from amq.store.coordinator import Coordinator
from amq.store.files.vfs import SystemVfs, ToolVfs
from amq.store.host import Owner
from amq.store.locker import Locker, Term
from amq.store.open import replica_in
from amq.store.port import EventLoop, Store
from amq.store.replica.member import ReplicaMember
from amq.store.replica.messages import TO_A_COPY
from amq.store.replica.port import Receive
from amq.store.replica.url import ReplicaUrl
from amq.store.segment_log import Writer
from tests.fakes import FakeHost
from tests.memory_coordinator import Ensemble, MemoryCoordinator

SALT = 7


class LocalNetwork:
    """Between the members of one process."""

    def __init__(self) -> None:
        self.ends: dict[str, LocalEnd] = {}
        self.away: set[str] = set()
        self.lose: Callable[[str, str, Any], bool] = lambda _sender, _to, _message: False

    def connect(self, _group: Coordinator, me: str, receive: Receive) -> LocalEnd:
        self.ends[me] = end = LocalEnd(self, me, receive)
        return end

    def leads(self, sender: str, to: str) -> bool:
        return sender in self.ends and to in self.ends and not {sender, to} & self.away


class LocalEnd:
    """See `amq.store.replica.port.OtherCopies`: two threads, one for what is said to the copy, one for answers."""

    def __init__(self, network: LocalNetwork, me: str, receive: Receive) -> None:
        self._network, self._me, self._receive = network, me, receive
        self._queues: list[SimpleQueue[tuple[str, Any] | None]] = [SimpleQueue(), SimpleQueue()]
        self._threads = [SystemThreads().start("local copy", partial(self._run, queue)) for queue in self._queues]

    def send(self, member: str, message: Any) -> None:
        if self._network.leads(self._me, member) and not self._network.lose(self._me, member, message):
            self._network.ends[member].put(self._me, message)

    def put(self, sender: str, message: Any) -> None:
        self._queues[not isinstance(message, TO_A_COPY)].put((sender, message))

    def gone(self) -> frozenset[str]:
        return frozenset()

    def members(self) -> frozenset[str]:
        return frozenset(each for each in list(self._network.ends) if self._network.leads(self._me, each)) - {self._me}

    def hear_on(self, loop: EventLoop | None) -> None:
        """Its threads read on."""

    def hear(self) -> None: ...

    def close(self) -> None:
        self._network.ends.pop(self._me, None)
        for queue, thread in zip(self._queues, self._threads, strict=True):
            queue.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self, queue: SimpleQueue[tuple[str, Any] | None]) -> None:
        while (item := queue.get()) is not None:
            sender, message = item
            if self._network.leads(sender, self._me):
                self._receive(sender, message, partial(self.send, sender))


class GroupOfCopies:
    """The members of one group in directories below `root`, and their coordinator."""

    def __init__(self, root: Path, options: str = "", vfs: ToolVfs | None = None) -> None:
        self.root, self.options, self.vfs = root, options, vfs or SystemVfs()
        self.network, self.ensemble = LocalNetwork(), Ensemble()
        self.coordinators: dict[str, MemoryCoordinator] = {}  # name of a member → its view, which may be `away`
        self._stack = ExitStack()

    def __enter__(self) -> GroupOfCopies:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def store(self, name: str) -> Store:
        text = f"replica://{self.root / name}?group=g&coordinator=file:///nowhere{self.options}"
        coordinator, entropy = MemoryCoordinator(self.ensemble), Random(f"{name} {len(list(self.root.iterdir()))}")
        self.coordinators[name] = coordinator
        return replica_in(
            ReplicaUrl.parse(text), coordinator, self.network.connect, self.vfs, SystemClock(), SystemThreads(), entropy
        )

    def member(self, name: str) -> CopyMember:
        """A member that takes part until it is stopped, or the group is."""
        return self._stack.enter_context(self.running(name))

    @contextmanager
    def running(self, name: str) -> Iterator[CopyMember]:
        member = CopyMember(self.store(name), name)
        try:
            yield member
        finally:
            member.stop()


class CopyMember:
    """One member, and what a broker does with its store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        host = FakeHost(host_name=f"host-of-{name}", boot=f"boot-of-{name}")
        owner = Owner.make(host, name=name, uuid=f"u-{name}", transport_urls=(), lock_keep_alive_period_s=60.0)
        self._stack = ExitStack()
        self._stack.enter_context(store.take_part(JournalFormat(), name))
        self.locker = Locker(store, SystemClock(), host, owner)
        self.batch = 0

    @property
    def at_work(self) -> ReplicaMember:
        return self.store.election._part.taken()  # type: ignore[attr-defined, no-any-return]

    @property
    def id(self) -> str:
        return self.at_work.me

    @property
    def directory(self) -> str:
        return self.store.log.place().rpartition("/")[0]

    def stop(self) -> None:
        """As a process that ends: nothing is handed over."""
        self._stack.close()

    def take_over(self) -> Term:
        """Raises what a takeover raises. What is sealed is what a journal would measure."""
        assert self.locker.try_acquire()
        term = self.locker.take_over(lambda _: False, lambda before: self.seal(before.sealed if before else {}))
        assert term is not None
        self.term, self.batch = term, 0
        return term

    def seal(self, known: Any) -> dict[str, int]:
        found = {}
        for name in self.store.log.names():
            with self.store.log.open(name) as segment:
                found[name] = known[name] if name in known else JournalFormat.whole(segment)
        return {**known, **found}

    def create(self, number: int) -> Writer:
        epoch = self.term.epoch.number
        head = SegmentHeader(epoch, number, bytes(16), SALT).encode()
        return self.store.log.create(segment_name(epoch, number), head, 1 << 20, SystemClock())

    def append(self, writer: Writer, start: int, payload: bytes) -> int:
        self.batch += 1
        data = encode_batch(payload, SALT, self.term.epoch.number, self.batch, 1, 0)
        writer.append(start, start + len(data), [data])
        return start + len(data)


def content(store: Store) -> dict[str, bytes]:
    """What counts in the files of a copy: segments up to their last whole write."""
    found = {}
    try:
        names = store.log.names()
    except FileNotFoundError:
        return {}  # it begins anew
    for name in names:
        with store.log.open(name) as segment:
            end = JournalFormat.whole(segment)
            if end:
                found[name] = segment.read(0, end)
    return found
