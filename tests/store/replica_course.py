"""The course of tests/fault_course.py on a replicated store: the real adapter, of three members, in one thread.

Disks are in memory and forget in a power cut what was not synced; messages between members wait in one queue; the
coordinator is in memory. So a history is the same each time, and each call of a disk, of a peer and of the coordinator
can be the one that fails. Where a member waits, the others work: `StillCondition`.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from amq.core.errors import AmqError, OwnershipLostError, StoreError
from amq.journal.copies import JournalFormat
from amq.journal.format import HEADER_BYTES, SegmentHeader, encode_batch, segment_name
from amq.store.epoch import Epoch
from amq.store.open import replica_in
from amq.store.port import EventLoop
from amq.store.replica.member import TICK_S, ReplicaMember
from amq.store.replica.port import Receive
from amq.store.replica.url import ReplicaUrl
from amq.store.segment_log import NoRoomError
from tests.copies import SALT, content
from tests.crash.disk import Disk, DiskVfs, Remains
from tests.fakes import FakeClock
from tests.fault_course import Candidate, Course, Violation
from tests.memory_coordinator import Ensemble, MemoryCoordinator

ROUNDS_MAX = 2_000  # of messages in a history
IDLE_MAX = 40  # waits in a row in which nothing happens: whoever waits would wait for ever
SEGMENT_BYTES = 1 << 16
NAMES = ("old", "new", "third")
WORDS = "coordinator=file:///nowhere&group=g"


class PowerCut(BaseException):
    """All members stop at this call."""


class HangsError(AssertionError):
    """A call of the adapter would never return."""


# -- the doors of a member ---------------------------------------------------------------------------------------------


class StillEvent:
    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        return self._is_set


class StillThread:
    """It never runs: the world calls what it would do."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool:
        return False


class StillThreads:
    event = StillEvent

    def start(self, name: str, target: Callable[[], None]) -> StillThread:  # noqa: ARG002
        return StillThread()


class StillCondition:
    """Of one member. While it waits the world goes on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def __enter__(self) -> StillCondition:
        assert not self._held, "a thread would wait for itself"
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._held = False

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self._held = False
        try:
            self._world.go_on()
        finally:
            self._held = True
        return True

    def notify_all(self) -> None: ...


class CopyVfs(DiskVfs):
    """The door of one member to its disk. The calls that change something are steps of the course."""

    def __init__(self, world: World, name: str, disk: Disk) -> None:
        super().__init__(disk)
        self._world, self._name = world, name
        for call in ("open", "pwrite", "fsync", "fdatasync", "fsync_directory", "unlink", "ftruncate", "replace"):
            real = getattr(self, call)
            setattr(self, call, lambda *given, _real=real, _call=call: world.step("disk", name, _call, _real, given))

    def replace(self, source: str, target: str) -> None:
        node = self.disk.find(source)
        directory, name = self.disk.parent(target)
        self.disk.set_name(directory, name, node, target)
        directory, name = self.disk.parent(source)
        self.disk.set_name(directory, name, 0, source)

    def rmdir(self, path: str) -> None:
        directory, name = self.disk.parent(path)
        self.disk.set_name(directory, name, 0, path)


class QueueEnd:
    """See `amq.store.replica.port.OtherCopies`."""

    def __init__(self, world: World, name: str, me: str, receive: Receive) -> None:
        self._world, self.name, self.me, self.receive = world, name, me, receive

    def send(self, member: str, message: Any) -> None:
        put = lambda: self._world.queue.append((self.me, member, message))  # noqa: E731
        self._world.step("peer", self.name, type(message).__name__, put, ())

    def members(self) -> frozenset[str]:
        world = self._world
        return frozenset(each for each in world.ends if world.leads(self.me, each)) - {self.me}

    def gone(self) -> frozenset[str]:
        """All that cannot be reached: a hint may be wrong, and nothing is lost by it."""
        return frozenset(self._world.met) - {self.me} - self.members()

    def hear_on(self, loop: EventLoop | None) -> None: ...

    def hear(self) -> None: ...

    def close(self) -> None:
        if self._world.ends.get(self.me) is self:  # else it has started again
            del self._world.ends[self.me]


# -- the world ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallStep:
    """A call of the member `who`: of its "disk", a "peer" or the "record"."""

    kind: str
    who: str
    name: str
    run: Callable[[], Any]
    arguments: tuple[Any, ...]


class World:
    """Disks by name of member, the queue between members, and who runs. `meet(step)` carries out a step."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ensemble = Ensemble(clock=self.clock)
        self.disks: dict[str, Disk] = {}
        self.members: dict[str, ReplicaMember] = {}
        self.ends: dict[str, QueueEnd] = {}  # by id
        self.met: set[str] = set()  # all ids that there were
        self.queue: deque[tuple[str, str, Any]] = deque()
        self.late: list[tuple[str, str, Any]] = []
        self.cut: set[str] = set()  # names of members that reach no other one
        self.frozen: set[str] = set()
        self.meet: Callable[[CallStep], Any] = lambda step: step.run()
        self.stuck: Callable[[], bool] = lambda: False  # whether anything came of it
        self._idle = 0
        self._rounds = 0

    def step(self, kind: str, who: str, name: str, call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return self.meet(CallStep(kind, who, name, partial(call, *given), given))

    def leads(self, sender: str, to: str) -> bool:
        names = [self.ends[each].name for each in (sender, to) if each in self.ends]
        return len(names) == 2 and not self.cut.intersection(names)

    def go_on(self) -> None:
        """Messages arrive and members work. Where none does, time passes."""
        if self._deliver():
            self._idle = 0
            return
        self._idle += 1
        if not self._work():
            self.clock.advance(TICK_S)
            for name, member in list(self.members.items()):
                if name not in self.frozen:
                    with member._changed:
                        member._tick()
        if self._idle > IDLE_MAX:
            self._idle = 0
            if not self.stuck():
                raise HangsError("a call of the adapter does not return")

    def settle(self) -> None:
        """Until nothing is on its way."""
        while self._deliver() + self._work():
            pass

    def _deliver(self) -> int:
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise HangsError("members talk for ever")
        done = 0
        for sender, to, message in [self.queue.popleft() for _ in range(len(self.queue))]:
            if not self.leads(sender, to):
                continue
            end = self.ends[to]
            if end.name in self.frozen:
                self.queue.append((sender, to, message))
                continue
            done += 1
            end.receive(sender, message, partial(end.send, sender))
        return done

    def _work(self) -> int:
        """What the threads of each member would do."""
        done = 0
        for name, member in list(self.members.items()):
            if name not in self.frozen:
                done += len(member._own) + len(member._supplies) + (member._wanted is not None)
                member._serve()
                member._put_record()
        return done

    def power_cut(self, *names: str) -> None:
        """What those have not synced is gone, and they do not run."""
        for name in names:
            disk = self.disks[name]
            remains = Remains(disk.image)
            for call in disk.log:
                remains.follow(call)
            image, _ = next(remains.images(1, Random(0)))
            self.disks[name] = Disk(image, allocates=False)
            del self.members[name]
            self.ends = {id: end for id, end in self.ends.items() if end.name != name}


# -- members and the course --------------------------------------------------------------------------------------------


class CopyCandidate(Candidate):
    """A member of `world`. `kept` = segment → its bytes that were confirmed: an append has returned."""

    def __init__(self, world: World, name: str, options: str = "") -> None:
        self.world, self.name = world, name
        self.coordinator = MemoryCoordinator(world.ensemble)
        for call in ("read", "names", "compare_and_set", "remove", "open_session"):
            real = getattr(self.coordinator, call)
            step = lambda *given, _real=real, _call=call: world.step("record", name, _call, _real, given)  # noqa: E731
            setattr(self.coordinator, call, step)
        vfs = CopyVfs(world, name, world.disks.setdefault(name, Disk(allocates=False)))
        url = ReplicaUrl.parse(f"replica:///d?{WORDS}{options}")
        store = replica_in(url, self.coordinator, self._connect, vfs, world.clock, StillThreads(), Random(name))
        super().__init__(store, name, world.clock)
        self.kept: dict[str, bytes] = {}
        self._stack = ExitStack()
        self._stack.enter_context(store.take_part(JournalFormat(), name))
        self.at_work = member = store.election._part.taken()  # type: ignore[attr-defined]
        member._mutex = member._changed = StillCondition(world)
        world.members[name] = member

    def _connect(self, _group: object, me: str, receive: Receive) -> QueueEnd:
        self.world.met.add(me)
        self.world.ends[me] = end = QueueEnd(self.world, self.name, me, receive)
        return end

    @property
    def id(self) -> str:
        return self.at_work.me

    def become_master(self) -> None:
        why = ""
        for _ in range(IDLE_MAX):
            try:
                if self.locker.try_acquire():
                    term = self.locker.take_over(self.pause, self.seal)
                    assert term is not None
                    self.lease, self.epoch, self.sealed = term.lease, term.epoch.number, term.epoch.sealed
                    return
            except (OSError, AmqError) as error:
                why = str(error)
            self.world.go_on()
        raise HangsError(f"{self.name} does not become the master: {why}")

    def seal(self, previous: Epoch | None) -> Mapping[str, int]:
        known = dict(previous.sealed) if previous is not None else {}
        for name in self.store.log.names():
            if name not in known:
                with self.store.log.open(name) as segment:
                    known[name] = JournalFormat.whole(segment)
        return known

    def work(self) -> None:
        """Two segments, a check behind each, and the first one is no longer needed."""
        self.write(1, 2)
        self.write(2, 2)
        name = segment_name(self.epoch, 1)
        del self.confirmed[name], self.kept[name]
        self.store.log.delete([name])

    def write(self, number: int, batches: int) -> None:
        name = segment_name(self.epoch, number)
        head = SegmentHeader(self.epoch, number, bytes(16), SALT).encode()
        writer = self.again(lambda: self.store.log.create(name, head, SEGMENT_BYTES, self.clock))
        end, kept = HEADER_BYTES, head
        for batch in range(1, batches + 1):
            data = encode_batch(b"%d of %d" % (batch, number) * 20, SALT, self.epoch, batch, 1, 0)
            start, end = end, end + len(data)
            self.again(lambda start=start, end=end, data=data: writer.append(start, end, [data]))
            kept += data
            self.confirmed[name], self.kept[name] = end, kept
        writer.finish(end)
        self.lease.check()

    def again(self, call: Callable[[], Any]) -> Any:
        """As the journal does: a full disk is no end."""
        with suppress(NoRoomError):
            return call()
        self.world.go_on()
        return call()


@dataclass(frozen=True)
class FaultAt:
    """What happens at a call: `act(course, step)`, at those that it `fits`."""

    name: str
    fits: Callable[[CallStep], bool]
    act: Callable[[ReplicaCourse, CallStep], Any]

    def __call__(self, course: Course, step: Any) -> Any:
        assert isinstance(course, ReplicaCourse)
        return self.act(course, step)


class ReplicaCourse(Course):
    """a is the old master, b its successor, and c keeps a copy, too."""

    waits = False  # copies refuse the old master
    options = ""

    def __init__(self, fault: FaultAt, at: int) -> None:
        self.world = world = World()
        self.a, self.b, self.c = (CopyCandidate(world, name, self.options) for name in NAMES)
        super().__init__(self.a, self.b, fault, at)
        world.meet, world.stuck = self.meet, self.give_way
        self.error: BaseException | None = None
        self.lost_disk = ""
        self._what = fault

    def prepare(self) -> None:
        """All copies count."""
        self.a.become_master()
        self.wait(lambda: self.members() == {self.a.id, self.b.id, self.c.id})

    def wait(self, is_so: Callable[[], bool]) -> None:
        wait_in(self.world, is_so)

    def members(self) -> frozenset[str]:
        return self.b.at_work._book.read().record.members

    def play(self) -> bool:
        self.prepare()
        self._is_working = True
        try:
            self.a.work()
            self.world.settle()
        except (OSError, AmqError) as error:
            self.error = error
        except PowerCut:
            self.restart()
        self._is_working = False
        self.world.cut &= {self.a.name}
        self.succeed()
        self.heal()
        self.world.queue += self.world.late
        self.world.settle()
        return self.calls >= self._at

    def meet(self, step: CallStep) -> Any:
        if self._is_working and self._what.fits(step):
            self.calls += 1
            if self.calls == self._at:
                return self._fault(self, step)
        return step.run()

    def heal(self) -> None:
        self.world.cut = {self.lost_disk} - {""}

    def free(self) -> None:
        for session in set(self.world.ensemble.owners.values()):
            self.world.ensemble.expire(session)

    def stand_still(self) -> None:
        """The successor takes over, while the old master does nothing."""
        self.world.frozen.add(self.a.name)
        self.succeed()
        self.world.frozen.clear()

    def give_way(self) -> bool:
        """Where the old master waits for ever, because too few copies answer."""
        if not self._is_working:
            return True  # `become_master` and `wait` count themselves
        if self._is_over:
            return False
        self.world.cut &= {self.a.name}
        self.succeed()
        self.heal()
        return True

    def restart(self) -> None:
        """All members were without power for a moment."""
        self.world.power_cut(*NAMES)
        self.world.queue.clear()
        self.free()
        confirmed, kept = self.a.confirmed, self.a.kept
        self.a, self.b, self.c = (CopyCandidate(self.world, name, self.options) for name in NAMES)
        self.a.confirmed, self.a.kept = confirmed, kept
        self.old, self.new = self.a, self.b
        if self.lost_disk:
            del self.world.disks[self.lost_disk], self.world.members[self.lost_disk]
            self.world.cut.add(self.lost_disk)

    def check(self) -> None:
        super().check()
        if not self.has_all(self.b):
            raise Violation("what was confirmed is not in the copy of the successor")
        if self.error is not None and HARMLESS.match(self._what.name):
            raise Violation(f"the master ended: {self.error}")
        if self.error is not None and len(str(self.error)) < len("no space"):
            raise Violation(f"an error that says nothing: {self.error!r}")
        if hasattr(self.a, "lease"):
            with suppress(OwnershipLostError):
                self.a.lease.check()
                raise Violation("the old master proves that it is the master")
        try:
            self.b.write(1, 1)
        except (OSError, StoreError) as error:
            raise Violation(f"the successor cannot work: {error}") from error
        if not ENDS_A_COPY.search(self._what.name):
            there = [each for each in (self.a, self.b, self.c) if each.name != self.lost_disk]
            self.wait(lambda: all(map(self.has_all, there)))

    def has_all(self, member: CopyCandidate) -> bool:
        """Whether its copy has all that was confirmed."""
        return has_all(member, self.a.kept | self.b.kept)


class ShrinkCourse(ReplicaCourse):
    """The old master is cut off, and may go on alone where the record says so."""

    options = "&leastCopies=1"

    def prepare(self) -> None:
        super().prepare()
        self.world.cut.add(self.a.name)

    def succeed(self) -> None:
        """Nobody does once the old master is the only one that counts."""
        if self.b.id in self.members():
            super().succeed()

    def check(self) -> None:
        if self._is_over:
            super().check()
        else:
            assert self.members() == {self.a.id}
            assert self.has_all(self.a)


class JoinCourse(ReplicaCourse):
    """The successor joins while the old master works, with all that came before: in many pieces."""

    def __init__(self, fault: FaultAt, at: int) -> None:
        super().__init__(fault, at)
        self.world.power_cut(self.b.name)

    def prepare(self) -> None:
        self.a.become_master()
        self.wait(lambda: self.members() == {self.a.id, self.c.id})
        for number in range(1, 4):
            self.a.write(number, 2)
        self.world.settle()
        self.a.locker.release()
        self.a.become_master()
        self.b = self.new = CopyCandidate(self.world, self.b.name)

    def members(self) -> frozenset[str]:
        return self.a.at_work._book.read().record.members

    def play(self) -> bool:
        work = self.a.work

        def joined() -> None:
            self.wait(lambda: self.b.id in self.members())
            work()

        self.a.work = joined  # type: ignore[method-assign]
        return super().play()

    def succeed(self) -> None:
        self.world.cut.add(self.c.name)
        super().succeed()
        self.world.cut.discard(self.c.name)


def stop_and_start(stops: tuple[str, ...], starts: tuple[str, ...]) -> None:
    """All members are killed in that order and started in the other one; those that are left write meanwhile. Raises
    what shows that something that was confirmed is lost."""
    world = World()
    at_work = {name: CopyCandidate(world, name) for name in NAMES}
    kept: dict[str, bytes] = {}
    master = at_work[NAMES[0]]

    def over() -> None:
        for session in set(world.ensemble.owners.values()):
            world.ensemble.expire(session)

    def writes() -> None:
        nonlocal master
        if at_work.get(master.name) is not master:
            over()
            may = [each for each in at_work.values() if not each.at_work.why_not(each.at_work._book.read())]
            master = may[0]
            master.become_master()
        master.write(len(master.kept) + 1, 1)
        kept.update(master.kept)

    master.become_master()
    wait_in(world, lambda: len(master.at_work._book.read().record.members) == len(NAMES))
    writes()
    for name in stops:
        del at_work[name]
        world.power_cut(name)
        if len(at_work) >= 2:
            writes()
    for name in starts:
        at_work[name] = CopyCandidate(world, name)
        if len(at_work) >= 2:
            writes()
    for member in at_work.values():
        wait_in(world, lambda member=member: has_all(member, kept))


def wait_in(world: World, is_so: Callable[[], bool]) -> None:
    for _ in range(IDLE_MAX):
        if is_so():
            return
        world.go_on()
    raise HangsError("what should come does not")


def has_all(member: CopyCandidate, kept: Mapping[str, bytes]) -> bool:
    """Whether its copy has all of that. Segments that nobody needs may be there or not."""
    there = content(member.store)
    return all(there.get(name, b"")[: len(data)] == data for name, data in kept.items())


# -- faults ------------------------------------------------------------------------------------------------------------


def fails(number: int, *, done: bool = False) -> Callable[[ReplicaCourse, CallStep], Any]:
    def act(_course: ReplicaCourse, step: CallStep) -> Any:
        if done:
            step.run()
        raise OSError(number, os.strerror(number))

    return act


def half(step: CallStep) -> int:
    """Half of a write."""
    fd, data, offset = step.arguments
    written: int = DiskVfs.pwrite(step.run.func.__self__, fd, bytes(data)[: len(data) // 2], offset)  # type: ignore[attr-defined]
    return written


def short(_course: ReplicaCourse, step: CallStep) -> int:
    return half(step)


def short_and_broken(_course: ReplicaCourse, step: CallStep) -> None:
    half(step)
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def power(_course: ReplicaCourse, step: CallStep) -> None:
    raise PowerCut(step.name)


def power_after(_course: ReplicaCourse, step: CallStep) -> None:
    step.run()
    raise PowerCut(step.name)


def power_and_a_disk(course: ReplicaCourse, step: CallStep) -> None:
    """The disk of the old master does not come back."""
    course.lost_disk = course.a.name
    raise PowerCut(step.name)


def over_and_power(course: ReplicaCourse, step: CallStep) -> Any:
    """The successor takes over, and a copy that has promised this starts again; then the old master goes on."""
    course.world.frozen.add(course.a.name)
    course.succeed()
    course.world.power_cut(course.c.name)
    course.c = CopyCandidate(course.world, course.c.name, course.options)
    course.world.frozen.clear()
    return step.run()


def over_before(course: ReplicaCourse, step: CallStep) -> Any:
    course.stand_still()
    return step.run()


def over_after(course: ReplicaCourse, step: CallStep) -> Any:
    found = step.run()
    course.stand_still()
    return found


def lost(_course: ReplicaCourse, _step: CallStep) -> None: ...


def doubled(_course: ReplicaCourse, step: CallStep) -> None:
    step.run()
    step.run()


def late(course: ReplicaCourse, step: CallStep) -> None:
    step.run()
    course.world.late.append(course.world.queue.pop())


def reset(course: ReplicaCourse, step: CallStep) -> None:
    """The connections of one of the copies are gone, for as long as the old master works."""
    course.world.cut.add("third" if step.who == "old" else step.who)


def alone(course: ReplicaCourse, step: CallStep) -> Any:
    """The old master reaches nobody any more."""
    course.world.cut.add("old")
    return step.run()


def of(kind: str, who: str = "", *names: str) -> Callable[[CallStep], bool]:
    return lambda step: step.kind == kind and who in ("", step.who) and (not names or step.name in names)


def fills(who: str) -> Callable[[CallStep], bool]:
    """What a full disk refuses."""

    def fits(step: CallStep) -> bool:
        return of("disk", who, "pwrite", "replace")(step) or (
            of("disk", who, "open")(step) and bool(step.arguments[1] & os.O_CREAT)
        )

    return fits


HARMLESS = re.compile("a message|connection|ENOSPC|a short write at|EIO at a copy|the (coordinator|answer)")
ENDS_A_COPY = re.compile("EIO")  # and its broker has to start again
FAULTS = (
    FaultAt("EIO at the master", of("disk", "old"), fails(errno.EIO)),
    FaultAt("EIO at a copy", of("disk", "third"), fails(errno.EIO)),
    FaultAt("done, and EIO at the master", of("disk", "old"), fails(errno.EIO, done=True)),
    FaultAt("ENOSPC at the master", fills("old"), fails(errno.ENOSPC)),
    FaultAt("ENOSPC at a copy", fills("third"), fails(errno.ENOSPC)),
    FaultAt("a short write at the master", of("disk", "old", "pwrite"), short),
    FaultAt("a short write at a copy", of("disk", "third", "pwrite"), short),
    FaultAt("a short write, and EIO at the master", of("disk", "old", "pwrite"), short_and_broken),
    FaultAt("a short write, and EIO at a copy", of("disk", "third", "pwrite"), short_and_broken),
    FaultAt("power cut", of("disk"), power),
    FaultAt("power cut after a message", of("peer"), power_after),
    FaultAt("power cut, and a lost disk", of("peer"), power_and_a_disk),
    FaultAt("deposed, and power cut of a copy", of("peer", "old"), over_and_power),
    FaultAt("deposed before a call of the disk", of("disk", "old"), over_before),
    FaultAt("deposed after a call of the disk", of("disk", "old"), over_after),
    FaultAt("a message is lost", of("peer"), lost),
    FaultAt("a message comes twice", of("peer"), doubled),
    FaultAt("a message is late", of("peer"), late),
    FaultAt("connection reset", of("peer"), reset),
    FaultAt("the master is cut off", of("peer", "old"), alone),
    FaultAt("deposed before a message", of("peer", "old"), over_before),
    FaultAt("the coordinator does not answer", of("record"), fails(errno.ETIMEDOUT)),
    FaultAt("the answer of the coordinator is lost", of("record"), fails(errno.ETIMEDOUT, done=True)),
    FaultAt("deposed before a call of the coordinator", of("record", "old"), over_before),
    FaultAt("deposed after a call of the coordinator", of("record", "old"), over_after),
)


NAMED = {each.name: each for each in FAULTS}


def histories(fault: FaultAt, make: Callable[[FaultAt, int], ReplicaCourse] = ReplicaCourse) -> Iterator[ReplicaCourse]:
    """Of `fault` at each call."""
    for at in itertools.count(1):
        course = make(fault, at)
        if not course.play():
            return
        yield course
