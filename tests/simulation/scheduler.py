"""The scheduler: simulated time, the order of everything, processes, their threads, and the event loop of each.

One seed gives one history. All that happens is an event in one heap, at a simulated time; a task (a thread of a
simulated process, or its event loop) is a greenlet that runs between two events without interruption. Invariants:
nothing of a killed process runs on: every door raises `Killed` for it; nothing of a paused one runs before it resumes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from amq.doors.threads import Done, Job

STEP_S = 0.00002  # what the shortest step takes, so that nothing can go on for ever without time passing


class Killed(BaseException):
    """The process of whoever called a door is dead."""


class Task:
    """A thread of a simulated process. `loop` is the event loop that runs in it, if any."""

    def __init__(self, scheduler: Scheduler, process: Process, name: str, body: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.loop: SimLoop | None = None
        self.over = False
        self._body = body
        self._joiners: list[SimEvent] = []
        self._scheduler = scheduler
        self.greenlet = greenlet(self._run, parent=scheduler.hub)

    def _run(self, _: object = None) -> None:
        try:
            self._body()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 (reported as a failure of the run)
            self._scheduler.on_crash(self, error)
        finally:
            self.over = True
            for event in self._joiners:
                if self.process.alive:
                    event.set()

    def join(self, timeout: float | None = None) -> None:
        self.process.check()
        if not self.over:
            event = SimEvent(self.process)
            self._joiners.append(event)
            event.wait(timeout)

    def is_alive(self) -> bool:
        self.process.check()
        return not self.over


class Scheduler:
    """`now` is the true time in seconds, which nobody inside the world can read."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.steps = 0
        self.hub = getcurrent()
        self.current: Task | None = None
        self.on_crash: Callable[[Task, Exception], None] = lambda _task, _error: None
        self._heap: list[tuple[float, int, Process | None, Callable[[], object]]] = []
        self._count = 0
        self._until = 0.0
        self._stop: Callable[[], bool] = lambda: False

    def at(self, when: float, action: Callable[[], object], process: Process | None = None) -> None:
        """Do `action` at true time `when`; never where `process` is dead by then, later where it is paused."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, process, action))

    def after(self, seconds: float, action: Callable[[], object], process: Process | None = None) -> None:
        self.at(self.now + seconds, action, process)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let the world go on until true time `until`, or until `stop()`."""
        heap, self._until, self._stop = self._heap, until, stop
        while heap and heap[0][0] <= until and not stop():
            when, _, process, action = heapq.heappop(heap)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused_until > when:
                    self.at(process.paused_until, action, process)  # what waited keeps its order
                    continue
            self.now = max(self.now, when)
            self.steps += 1
            action()
        if not stop():
            self.now = max(self.now, until)

    def resume(self, task: Task, value: object = None) -> None:
        """Run `task` until it waits again. From the hub only."""
        if task.over or not task.process.alive:
            return
        self.current = task
        asyncio._set_running_loop(task.loop)
        try:
            task.greenlet.switch(value)
        finally:
            self.current = None
            asyncio._set_running_loop(None)

    def wait(self) -> Any:
        """Inside a task: let the others run until somebody resumes this one."""
        task = self.current
        assert task is not None, "a door that may block was used outside of every task"
        value = self.hub.switch()
        if not task.process.alive:
            raise Killed
        return value

    def sleep(self, seconds: float) -> None:
        """Inside a task: let `seconds` of true time pass."""
        task = self.current
        assert task is not None
        process, when = task.process, self.now + seconds
        first = self._heap[0][0] if self._heap else self._until
        # Where nothing else happens meanwhile there is nobody to run: half of the time of a seed went into such turns.
        if when < first and when <= self._until and process.alive and process.paused_until <= when and not self._stop():
            self.now, self.steps = when, self.steps + 1
            return
        self.at(when, lambda: self.resume(task), process)
        self.wait()

    def reap(self, process: Process) -> None:
        """Unwind the tasks of a dead process. From the hub only; their doors refuse everything."""
        for task in process.tasks:
            if not task.over and task.greenlet:
                task.greenlet.throw(Killed)
            task.over = True


class Process:
    """A process on a host: its threads, its event loop, its clocks (doors Clock, Threads, Host)."""

    def __init__(self, scheduler: Scheduler, host: Machine, name: str, pid: int) -> None:
        self.scheduler = scheduler
        self.host = host
        self.name = name
        self.pid = pid
        self.pid_start = int(scheduler.now * 100) + 7
        self.alive = True
        self.died_at = 0.0
        self.paused_until = 0.0
        self.stall_chance = 0.0
        self.stall_s = 0.0
        self.tasks: list[Task] = []
        self.rng = Random(scheduler.rng.getrandbits(64))
        self.loop = SimLoop(self)

    def check(self) -> None:
        if not self.alive:
            raise Killed

    def start(self, name: str, target: Callable[[], object]) -> Task:
        """Door Threads."""
        self.check()
        task = Task(self.scheduler, self, name, target)
        self.tasks.append(task)
        self.scheduler.after(self.rng.random() * 0.0005, lambda: self.scheduler.resume(task), self)
        return task

    def event(self) -> SimEvent:
        """Door Threads."""
        return SimEvent(self)

    def run_loop(self, main: Callable[[], Any]) -> None:
        """Begin the process: its event loop, with the coroutine function `main` as the first task in it."""
        task = self.start("loop", self.loop.main)
        task.loop = self.loop
        self.loop.call_soon(lambda: self.loop.keep(self.loop.create_task(main())))

    def monotonic(self) -> float:
        """Door Clock. Somebody who asks may find himself stopped just after the answer."""
        self.check()
        value = self.host.monotonic()
        self.stall()
        return value

    def wall_ms(self) -> int:
        """Door Clock."""
        self.check()
        return self.host.wall_ms()

    def stall(self) -> None:
        """This thread is not run for a while, sometimes."""
        if self.stall_chance and self.scheduler.current is not None and self.rng.random() < self.stall_chance:
            self.scheduler.sleep(self.rng.expovariate(1 / self.stall_s))

    def kill(self) -> None:
        """kill -9. Whoever calls this from inside the process must raise `Killed` then."""
        if self.alive:
            self.alive = False
            self.died_at = self.scheduler.now
            self.scheduler.at(self.scheduler.now, lambda: self.scheduler.reap(self))

    def runner(self, post: Callable[..., object]) -> SimRunner:
        """Door JobRunner."""
        return SimRunner(self, post)


class Machine:
    """A host: its clocks, and which processes it has. `rate`: seconds that its clocks count in one true second."""

    def __init__(self, scheduler: Scheduler, name: str, rate: float, rng: Random) -> None:
        self.name = name
        self.rate = rate
        self.up = True
        self.boots = 0
        self.processes: list[Process] = []
        self.wall_offset_s = rng.uniform(-3600, 3600)
        self._scheduler = scheduler
        self._offset_s = rng.uniform(10, 100_000)
        self._pids = 100

    def monotonic(self) -> float:
        return self._offset_s + self._scheduler.now * self.rate

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int((self._scheduler.now + self.wall_offset_s) * 1000)

    def spawn(self, name: str) -> Process:
        self._pids += 1
        process = Process(self._scheduler, self, name, self._pids)
        self.processes.append(process)
        return process

    def boot_id(self) -> str:
        return f"boot-{self.boots}-of-{self.name}"


class HostDoor:
    """Door Host of one process. Processes of other machines have the same numbers as ours, as in life."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.boot = process.host.boot_id()

    def name(self) -> str:
        return self._process.host.name

    def boot_id(self) -> str:
        return self.boot

    def namespaces(self) -> str:
        return "pid:[1] time:[1]"

    def pid(self) -> int:
        return self._process.pid

    def pid_start(self) -> int:
        return self._process.pid_start

    def is_running(self, pid: int, pid_start: int) -> bool:
        self._process.check()
        now = self._process.scheduler.now
        for other in self._process.host.processes:
            if (other.pid, other.pid_start) == (pid, pid_start):
                return other.alive or now < other.died_at + 0.01
        return False


class SimEvent:
    """A flag that tasks of one process wait for."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._flag = False
        self._waiters: list[list[Task | None]] = []

    def set(self) -> None:
        self._process.check()
        self._flag = True
        waiters, self._waiters = self._waiters, []
        scheduler = self._process.scheduler
        for waiter in waiters:
            delay_s = self._process.rng.random() * 0.0003
            scheduler.after(delay_s, lambda waiter=waiter: self._wake(waiter, True), self._process)

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        self._process.check()
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        process = self._process
        process.check()
        if self._flag:
            return True
        scheduler = process.scheduler
        waiter = [scheduler.current]
        self._waiters.append(waiter)
        if timeout is not None:
            when_s = max(timeout, 0.0) / process.host.rate + STEP_S
            scheduler.after(when_s, lambda: self._wake(waiter, False), process)
        woken = scheduler.wait()
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        return bool(woken) or self._flag

    def _wake(self, waiter: list[Task | None], woken: bool) -> None:
        task, waiter[0] = waiter[0], None
        if task is not None:
            self._process.scheduler.resume(task, woken)


class SimRunner:
    """Door JobRunner: the journal's jobs, one after the other, in a task."""

    def __init__(self, process: Process, post: Callable[..., object]) -> None:
        self._post = post
        self._jobs: deque[tuple[Job, Done] | None] = deque()
        self._process = process
        self._more = process.event()
        self._task: Task | None = None

    def submit(self, job: Job, done: Done) -> None:
        if self._task is None:
            self._task = self._process.start("journal", self._run)
        self._jobs.append((job, done))
        self._more.set()

    def close(self) -> None:
        self._jobs.append(None)
        self._more.set()

    def is_alive(self) -> bool:
        return self._task is not None and self._task.is_alive()

    def _run(self) -> None:
        while True:
            while not self._jobs:
                self._more.clear()
                self._more.wait()
            item = self._jobs.popleft()
            if item is None:
                return
            job, done = item
            result, failure = None, None
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 (as the real runner does)
                failure = error
            self._post(done, result, failure)


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one process: asyncio's own, with the scheduler in place of the selector."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.network: Any = None
        self._process = process
        self._wakeup = SimEvent(process)
        self._selector = self
        self._clock_resolution = 1e-7
        self._kept: list[asyncio.Task[Any]] = []
        self.set_exception_handler(self._failed)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a reference: the loop itself has weak ones only."""
        self._kept.append(task)

    def bury(self) -> None:
        """The process is dead: end what its coroutines left open, so that no collection of garbage does it later."""
        for task in asyncio.all_tasks(self):
            with suppress(Killed, RuntimeError):
                task.get_coro().close()  # type: ignore[union-attr]
        self.close()

    def __del__(self) -> None:
        """There is nothing to close: not asyncio's complaint of a loop left open."""

    def main(self) -> None:
        while True:
            self._run_once()

    def select(self, timeout: float | None) -> list[Any]:
        """What asyncio asks of a selector."""
        self._process.check()
        if timeout == 0:
            self._process.scheduler.sleep(STEP_S)
        else:
            self._wakeup.wait(timeout)
        self._wakeup.clear()
        return []

    def time(self) -> float:
        return self._process.host.monotonic()

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        self._wakeup.set()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._process.alive and not isinstance(error, Killed):
            failure = error if isinstance(error, Exception) else RuntimeError(context.get("message"))
            self._process.scheduler.on_crash(self._process.tasks[0], failure)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        self._process.check()
        return self.network.listen(self._process, protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(self._process, protocol_factory, host, port)
