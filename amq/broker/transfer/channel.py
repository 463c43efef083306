"""Channel: messages that go to another store exactly once, in parcels, one after the other.

    recording   the record of the parcel, its number and the seqs of its messages, is on its way to the journal
    sent        its messages are on their way to the other store; the answer is that they are stored there
    doubt       no answer came (the link broke, or either store got another master), or it was refused. The parcel is
                closed: the other store says whether it came, and refuses it from now on if it did not
    ending      it has come, and the messages leave this store, in one record with the end of the parcel

Invariants: nothing is sent before its parcel is durable; the messages of a parcel are sent once, by one mastership;
they leave this store only when the other one has them, and stay if it says that it never will. So neither needs to
remember the ids of messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

import structlog

from amq.broker.core import Core
from amq.broker.transfer.peers import PeerConnection
from amq.broker.waiters import Call
from amq.core.errors import AmqError, CommandError, StoreError
from amq.core.message import Message
from amq.journal.records import ACKED, Consumed, Group, Parcel
from amq.protocols.commands import CloseParcel, Failure, TakeCopies, Transfer

PAUSE_S: Final = 0.5  # before the first repetition
PAUSE_S_MAX: Final = 30.0
IDLE_S: Final = 20.0  # a connection that carries nothing for so long is closed
PROTOCOL: Final = "outbox"  # of the connections to other stores
_log = structlog.get_logger("amq.outbox")
Seqs = Mapping[str, Sequence[int]]  # full name of a queue → seqs of its messages


class ChannelOwner(Protocol):
    """The one who has messages for the other store."""

    def release(self, queues: Seqs) -> None:
        """These messages leave now: they are in no line, and no consumer has them."""

    def delivered(self) -> None:
        """The parcel is over: its messages are in the other store, and have left this one."""

    def refused(self, error: AmqError) -> None:
        """The parcel is over: nothing of it is in the other store, nor will be."""


class ChannelStep(Enum):
    """The steps of a parcel, and of a channel that has none."""

    FREE = "free"
    RECORDING = "recording"
    SENT = "sent"
    DOUBT = "doubt"
    ENDING = "ending"


class Channel:
    """Call `step` once in a while, at the latest at `due_s` (monotonic), where that is not None.

    name     unique among the channels of this store, and the same in each mastership
    trouble  why the last parcel has not arrived, "" = all is well
    """

    def __init__(self, core: Core, name: str, owner: ChannelOwner) -> None:
        self.name = name
        self.trouble = ""
        self.due_s: float | None = None
        self.state = ChannelStep.FREE
        self._core = core
        self._owner = owner
        self._parcel = Parcel(name, 0)
        self._transfer: Transfer | TakeCopies | None = None
        self._error: AmqError = StoreError("this broker became the master")
        self._tries = 0
        self._connection: PeerConnection | None = None
        self._linked_to = ""
        self._idle_s = 0.0  # when its connection ends if nothing more is sent
        self._asked = 0  # the number of the question that may be answered

    @property
    def is_free(self) -> bool:
        return self.state is ChannelStep.FREE

    def begin(self) -> None:
        """A mastership begins: a parcel that is open is settled first."""
        last = self._core.state.parcels.last(self.name)
        if last is not None and last.store:
            self._parcel, self.state = last, ChannelStep.DOUBT
            self.due_s = self._core.clock.monotonic()
            self._core.wake()

    def send(
        self,
        store: str,
        messages: list[Message],
        queues: Seqs,
        queue: str = "",
        extra: str = "",
        copies: list[tuple[int, int]] | None = None,
    ) -> None:
        """Give `messages` to `store`; `queues` = the persistent ones, which leave when they have come. `queue`, `extra`
        = see `Transfer`; `copies` = ranges of seqs there, of which `TakeCopies` says more, in place of messages. The
        owner hears what became of it."""
        assert self.is_free
        core = self._core
        self.state = ChannelStep.RECORDING
        self._parcel = parcel = Parcel(self.name, core.next_seq(), store, queues)
        channel = f"{core.journal.store_uuid.hex()}/{self.name}"
        if copies is not None:
            self._transfer = TakeCopies(channel, parcel.number, tuple(copies), queue, extra)
        else:
            self._transfer = Transfer(channel, parcel.number, messages, queue, extra)
        batch = core.journal.open
        core.journal.append_record(parcel)
        batch.confirms.append((Call(self._recorded, self._failed), parcel))
        core.wake()

    def stop(self) -> None:
        """The mastership ends."""
        self.state = ChannelStep.ENDING
        self.due_s = None
        self._hang_up()

    def step(self, now_s: float) -> None:
        """Go on, if it is time for that. A connection that nobody needs ends."""
        if self.state is ChannelStep.FREE and self._connection is not None and now_s >= self._idle_s:
            self._hang_up()
        if self.due_s is not None and now_s >= self.due_s and self._core.peers is not None:
            self.due_s = None
            if self.state is ChannelStep.DOUBT:
                self._close()

    # -- the other store ----------------------------------------------------------------------------------------------

    def _recorded(self) -> None:
        transfer, self._transfer = self._transfer, None
        assert transfer is not None
        if self.state is ChannelStep.RECORDING:
            self.state = ChannelStep.SENT
            self._ask(transfer)

    def _failed(self, error: Exception) -> None:
        """It was not recorded, and not sent."""
        self.state, self._transfer = ChannelStep.FREE, None
        self._owner.refused(error if isinstance(error, AmqError) else StoreError(str(error)))

    def _ask(self, command: Transfer | TakeCopies | CloseParcel) -> None:
        self._idle_s = self._core.clock.monotonic() + IDLE_S
        try:
            connection = self._connected()  # before it asks: one to another store ends here, with its questions
            self._asked += 1
            command.receipt = self._asked
            connection.handle([command])
        except AmqError as error:
            self._doubt(error)

    def _connected(self) -> PeerConnection:
        """Raises AmqError."""
        core, store = self._core, self._parcel.store
        if self._connection is not None and (self._connection.is_closed or self._linked_to != store):
            self._hang_up()
        if self._connection is None:
            if core.peers is None:
                raise StoreError("this broker has no ways to other stores: serve the store by `amq start --cluster`")
            self._linked_to = store
            self._connection = core.peers.open(store, self, PROTOCOL, self._lost)
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._asked += 1
        if connection is not None and not connection.is_closed:
            connection.close()

    def _lost(self, error: AmqError) -> None:
        self._connection = None
        self._asked += 1
        if self.state in (ChannelStep.SENT, ChannelStep.DOUBT):
            self._doubt(error)

    def _doubt(self, error: AmqError) -> None:
        """It is not known whether the parcel came, or it was refused."""
        self._error, self.state = error, ChannelStep.DOUBT
        if str(error) != self.trouble:
            _log.warning("a parcel has not arrived", channel=self.name, to_store=self._parcel.store, reason=str(error))
        self.trouble = str(error)
        pause_s = min(PAUSE_S * 2.0 ** min(self._tries, 10), PAUSE_S_MAX) if self._tries else 0.0
        self._tries += 1
        self.due_s = self._core.clock.monotonic() + pause_s
        self._core.wake()

    def _close(self) -> None:
        self._ask(CloseParcel(f"{self._core.journal.store_uuid.hex()}/{self.name}", self._parcel.number))

    # -- Recipient: what the other store answers ----------------------------------------------------------------------

    def confirm(self, receipt: object, outcome: str = "") -> None:
        if receipt != self._asked:
            return
        if self.state is ChannelStep.SENT or (self.state is ChannelStep.DOUBT and outcome != "0"):
            self._come()
        elif self.state is ChannelStep.DOUBT:
            self._free(self._error)

    def confirm_all(self, receipts: Sequence[object]) -> None:
        for receipt in receipts:
            self.confirm(receipt)

    def fail(self, failure: Failure) -> None:
        if failure.receipt is not None and failure.receipt != self._asked:
            return
        if self.state not in (ChannelStep.SENT, ChannelStep.DOUBT):
            return
        error = failure.error if isinstance(failure.error, AmqError) else CommandError(str(failure.error))
        self._doubt(error)

    def close(self) -> None:
        self._lost(StoreError("the other store has ended the connection"))

    def pause_reading(self) -> None:
        """A parcel is small."""

    def resume_reading(self) -> None:
        """Nothing was paused."""

    def subscribed(self, *_: Any) -> Any:
        raise AssertionError("a channel consumes nothing")

    deliver = deliver_all = browsed = deliver_batch = deliver_run = subscribed

    # -- the end of a parcel ------------------------------------------------------------------------------------------

    def _come(self) -> None:
        """The other store has it."""
        core, queues = self._core, self._parcel.queues
        self.state, self.due_s = ChannelStep.ENDING, None
        self._owner.release(queues)
        consumed = [Consumed(name, ACKED, [*seqs]) for name, seqs in queues.items() if seqs]
        batch, end = core.journal.open, Parcel(self.name, core.next_seq())
        core.journal.append_record(record := Group([*consumed, end]))
        batch.confirms.append((Call(self._ended, self._doubt_again), record))
        core.wake()

    def _ended(self) -> None:
        self._tries, self.trouble = 0, ""
        if self.state is ChannelStep.ENDING:
            self.state = ChannelStep.FREE
            self._owner.delivered()

    def _doubt_again(self, error: Exception) -> None:
        self._doubt(error if isinstance(error, AmqError) else StoreError(str(error)))

    def _free(self, error: AmqError) -> None:
        """The other store does not have it, and never will."""
        core = self._core
        self.state, self.due_s = ChannelStep.ENDING, None
        batch, end = core.journal.open, Parcel(self.name, core.next_seq())
        core.journal.append_record(end)

        def ended() -> None:
            self._tries = 0
            if self.state is ChannelStep.ENDING:
                self.state = ChannelStep.FREE
                self._owner.refused(error)

        batch.confirms.append((Call(ended, self._doubt_again), end))
        core.wake()
