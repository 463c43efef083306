"""Turn: what happens once after all the input of one round of the event loop, instead of once a message.

The journal gets one batch, every queue is dispatched once, every socket is written once. And the gate: no byte leaves
the broker, receipt or delivery, unless the lease is valid at that moment. A master in doubt keeps still.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from amq.broker.broker import Broker
from amq.journal.journal import Journal
from amq.transports.hub import Sender
from amq.transports.shares import Shares

LONE_PEERS_MAX = 2  # so few talkers are served with the sync in place of a thread switch
# How long acknowledgements that nobody asked a receipt for wait for something to be synced with: a lone producer and
# consumer need one sync a message instead of two.
UNASKED_DELAY_S = 0.002
ALARM_MIN_S = 0.001  # the loop's timers may go off a little early


class Turn:
    """Implements `amq.transports.hub.PeerTurn`. `inline`: for clients that wait for single messages the event loop
    itself may sync; not where it serves other stores, too, which a store that hangs must not stop.
    """

    is_gated = True
    _valid: Callable[[], bool]

    def __init__(self, loop: asyncio.AbstractEventLoop, inline: bool = True) -> None:
        self._loop = loop
        self._unasked: asyncio.TimerHandle | None = None
        self._inline = inline
        self._lone_max = LONE_PEERS_MAX if inline else -1
        self._lone = inline  # do so few clients talk that there is nothing to gather from others?
        self._unasked_since = 0  # batches that there had been when that timer began
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = 0.0  # monotonic
        self.is_due = False  # at the end of this round
        self._broker: Broker | None = None
        self._journal: Journal | None = None
        self.talkers: deque[int] = deque(maxlen=16)  # numbers of connections that sent something lately
        self.unsent: dict[Sender, None] = {}  # connections that have output
        self.shares = Shares(loop)

    def serve(self, broker: Broker, journal: Journal, valid: Callable[[], bool]) -> None:
        """Turns have an effect from now on. `valid()` tells whether the lease is valid now."""
        self._broker, self._journal, self._valid = broker, journal, valid
        self.wake()

    def stop(self) -> None:
        """Nothing is sent or stored through this turn any more."""
        self._broker = self._journal = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.unsent.clear()
        self.shares.stop()

    def wake(self) -> None:
        """There is something to do at the end of this round."""
        if not self.is_due:
            self.is_due = True
            self._loop.call_soon(self._run)

    def hurry(self) -> None:
        """Nothing leaves before the lease is known to be valid."""

    def _run(self) -> None:
        broker, journal = self._broker, self._journal
        if broker is None or journal is None:
            self.is_due = False
            return
        self.shares.round_until_s = 0.0
        self._lone = lone = len(set(self.talkers)) <= self._lone_max
        try:
            journal.flush(lone, False, self._inline)
        finally:  # only now: what a batch that was synced right here has woken follows in this turn
            self.is_due = False
        if not self._valid():
            return  # `lease_renewed` wakes us again
        unsent = self.unsent
        while lone and unsent:  # receipts: a producer that waits for each goes on while we deliver
            unsent.popitem()[0].send_out(now=True)
        batch = journal.open
        broker.dispatch()
        more = batch.consumed or batch.records or batch.confirms or journal.open is not batch
        if more and journal.flush() and self._unasked is None:
            self._wait_unasked(journal)
        if broker.redelivery.timers or broker.scheduler.timers or broker.pulling.timers:
            for timers in (broker.redelivery, broker.scheduler, broker.pulling):
                if timers.timers and (due_s := timers.due_s) is not None:
                    self._wake_at(due_s, broker.clock.monotonic())
        while unsent:
            unsent.popitem()[0].send_out()

    def _wake_at(self, due_s: float, now_s: float) -> None:
        """Run at that moment, monotonic, if nothing else makes us."""
        if self._alarm is not None:
            if self._alarm_s <= due_s:
                return
            self._alarm.cancel()
        self._alarm_s = due_s
        self._alarm = self._loop.call_later(max(due_s - now_s, ALARM_MIN_S), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    def _wait_unasked(self, journal: Journal) -> None:
        self._unasked_since = journal.batches
        self._unasked = self._loop.call_later(UNASKED_DELAY_S, self._flush_unasked)

    def _flush_unasked(self) -> None:
        """Acknowledgements that found no company are written alone. Where a batch was written since the timer began,
        it took those along that waited then: the others wait anew, so each for twice the delay at most."""
        self._unasked = None
        journal = self._journal
        if journal is None:
            return
        if journal.batches == self._unasked_since:
            journal.flush(self._lone, unasked=True)
        elif journal.only_unasked():
            self._wait_unasked(journal)
