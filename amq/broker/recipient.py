"""A client and its consumers, as the broker sees them: the calls that each protocol and the link implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from amq.core.message import Message, MessageBatch
from amq.journal.reader import RecordRun
from amq.protocols.commands import Failure, Subscribe


class QueueConsumer(Protocol):
    """A consumer, as its client's connection sees it: a `Subscription`, or what stands for one of another process.

    wire   the answer of `Recipient.subscribed`
    queue  its `Queue`, for the broker alone; where the broker is elsewhere, anything
    """

    wire: Any

    @property
    def ended(self) -> bool: ...
    @property
    def queue(self) -> Any: ...


class Recipient(Protocol):
    """A client as the broker sees it: it gets deliveries, answers and errors. Nothing is sent before the end of the
    turn, and then only if the lease is valid.
    """

    def subscribed(self, command: Subscribe, session: int) -> Any:
        """The facts that `deliver` needs of this subscription; kept as `Subscription.wire`."""

    def deliver(self, subscription: QueueConsumer, message: Message, redelivered: int) -> None: ...
    def deliver_all(self, subscription: QueueConsumer, messages: Sequence[Message]) -> None:
        """`deliver` for each of `messages`, none of them large, for the first time."""

    def browsed(self, subscription: QueueConsumer) -> None:
        """A browse has shown everything."""

    def deliver_batch(self, subscription: QueueConsumer, batch: MessageBatch) -> None:
        """Deliver many messages, none of them large, for the first time, to a subscription that needs no credit."""

    def deliver_run(
        self,
        subscription: QueueConsumer,
        destination: str,
        run: RecordRun,
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> None:
        """Deliver plain messages together, as the journal has them, to a consumer that asked for runs. `seq` = that of
        the last one; `redelivered` = (place in the run, deliveries before) of those that were."""

    def confirm(self, receipt: object, outcome: str = "") -> None:
        """A command is done. `outcome` = how, where there is more than one way."""

    def confirm_all(self, receipts: Sequence[object]) -> None:
        """`confirm` for each of these."""

    def fail(self, failure: Failure) -> None:
        """Tell the client. Whether the connection closes is the protocol's word."""

    def close(self) -> None:
        """Close when what is pending has been sent."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
