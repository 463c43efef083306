"""Runs: browses for a client that takes many messages in one frame. Records go out as they are read from the disk.

Only a message that is large, has several holders, says more than text can, or is not persistent comes alone. An
acknowledgement of the last message of a run makes room for as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from amq.broker.core import Core
from amq.broker.memory import cost
from amq.broker.names import real_name
from amq.broker.queues.browser import Browser, detached
from amq.broker.queues.queue import ConsumerOwner, Subscription
from amq.broker.queues.rows import Rows
from amq.broker.queues.rows_browser import RowsBrowser
from amq.core.message import Message
from amq.journal.reader import RecordRun
from amq.protocols.commands import Subscribe

RUN_MESSAGES_MAX = 4096  # in one frame
STEP_RUNS = 4  # in one turn
_SHOWN = Message("", b"")  # stands for what was shown and not acknowledged


class Runs:
    """Messages that a browse has read and not shown yet, and the sizes of the runs that it has shown."""

    __slots__ = ("_counts", "_found", "_seqs")

    def __init__(self) -> None:
        self._found: deque[RecordRun | Message] = deque()
        self._seqs: Sequence[int] = ()  # of the messages in these
        self._counts: dict[int, int] = {}  # seq of the last message of a run that is not acknowledged → its messages

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def held_bytes(self) -> int:
        return sum(map(_size, self._found))

    @property
    def count(self) -> int:
        """Messages."""
        return len(self._seqs)

    def fill(self, found: Iterable[RecordRun | Message], seqs: Sequence[int]) -> None:
        """These come next; all before them were shown."""
        self._found, self._seqs = deque(found), seqs

    def clear(self) -> None:
        self.fill((), ())

    def room_of(self, seqs: Sequence[int]) -> int:
        """These are acknowledged: that makes room for this many more than there are."""
        return sum(self._counts.pop(seq, 1) - 1 for seq in seqs)

    def show(self, browser: Subscription) -> int:
        """A run, or the message that comes alone, as far as the credit goes. Returns the bytes that it took."""
        shown = self._found.popleft()
        if isinstance(shown, RecordRun):
            shown, rest = _cut(shown, min(browser.credit, RUN_MESSAGES_MAX))
            if rest is not None:
                self._found.appendleft(rest)
        count = len(shown.sizes) if isinstance(shown, RecordRun) else 1
        seqs, self._seqs = self._seqs[:count], self._seqs[count:]
        browser.credit -= count
        before, seq = browser.queue.redelivered, seqs[-1]
        if not browser.auto:
            browser.unacked[seq] = _SHOWN
            self._counts[seq] = count
        if isinstance(shown, RecordRun):
            known = [(i, before[each][0]) for i, each in enumerate(seqs) if each in before] if before else []
            browser.peer.deliver_run(browser, real_name(browser.queue.name), shown, seq, known)
        else:
            browser.peer.deliver(browser, shown, before[seq][0] if seq in before else 0)
        return _size(shown)


def _cut(run: RecordRun, count: int) -> tuple[RecordRun, RecordRun | None]:
    """The first so many, and the others."""
    if len(run.sizes) <= count:
        return run, None
    size = sum(run.sizes[:count])
    return RecordRun(run.data[:size], run.sizes[:count]), RecordRun(run.data[size:], run.sizes[count:])


class InRuns(Browser):
    """The part that every browse in runs has."""

    _runs: Runs
    __slots__ = ()

    @property
    def held_bytes(self) -> int:
        return self._runs.held_bytes

    def settle(self, seqs: Sequence[int]) -> list[Message]:
        settled = super().settle(seqs)
        if settled:
            self.credit += self.refund * self._runs.room_of(seqs)
        return settled

    def end(self) -> None:
        super().end()
        self._runs.clear()


class QueueRunBrowser(InRuns, RowsBrowser):
    """Shows what waits in a queue, in runs. A message that left after it was read from the disk is shown as well."""

    __slots__ = ("_runs",)

    def __init__(self, command: Subscribe, core: Core, owner: ConsumerOwner, prefetch: int) -> None:
        self._runs = Runs()
        super().__init__(command, core, owner, prefetch)

    def step(self, now_ms: int) -> None:
        """Show on as far as there is room. Once a turn."""
        for _ in range(STEP_RUNS):
            if not self.may_show():
                return
            if self._runs:
                self._core.memory.give_back(self._runs.show(self))
            else:
                self._read_on(now_ms)
        self._core.pager.again(self.queue)

    def _read_on(self, now_ms: int) -> None:
        found = self.some(now_ms)
        if found is None:
            self._go_on()
            return
        through, rows = found
        if isinstance(rows, Message):
            self._seq = through
            self._hold([detached(rows)], [through])
        elif not rows:
            self._seq = through
        else:
            self._read(rows.head(self._core.pager.look_bytes()))

    def _read(self, rows: Rows) -> None:
        self._looking = True

        def found(runs: list[RecordRun | Message] | None) -> None:
            """Read; or copied forward meanwhile (None), and to be looked for again."""
            self._looking = False
            if runs is not None and not self.done:
                self._seq = rows.seqs[-1]
                self._hold(runs, rows.seqs)
            self._core.dirty[self.queue] = None
            self._core.wake()

        self._core.pager.look_at_runs(self.queue, rows, found)

    def _hold(self, found: Sequence[RecordRun | Message], seqs: Sequence[int]) -> None:
        self._runs.fill(found, seqs)
        self._core.memory.take(self.held_bytes)


def _size(each: RecordRun | Message) -> int:
    return cost(each) if isinstance(each, Message) else len(each.data)
