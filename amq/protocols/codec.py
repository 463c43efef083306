"""The contract, from the broker to a client: the methods of a codec. Bytes in, commands out; replies, deliveries in,
bytes out. No I/O, no clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from amq.core.message import Message, MessageBatch
from amq.protocols.commands import Command, Failure, Reattachable, Scope, Subscribe

ALL_FRAMES: Final = sys.maxsize
RARE_FRAMES: Final = 8  # a frame that takes the general path counts as so many


class RunWriter(Protocol):
    """Writes many messages in one piece, as the journal has them."""

    def run(
        self,
        destination: str,
        data: bytes | memoryview,
        sizes: Sequence[int],
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> bytes:
        """Messages of `destination`, whose records are `data`, each of one of `sizes`. `seq` = that of the last one;
        `redelivered` = (place in the run, deliveries before) of those that were."""
        ...


class StepWriter(Protocol):
    """The codec of a protocol whose clients log in by `LoginStep`."""

    def challenge(self, challenge: bytes, is_last: bool) -> bytes:
        """The broker's answer to a step. `is_last`: the login was found right, and a `Connect` is due. A codec that has
        it already sets `has_more`."""
        ...


class Codec(Protocol):
    """The broker's side of one connection. Never raises on bad input: the last command is then `Malformed`."""

    name: str
    survives: ClassVar[frozenset[Scope]]  # errors of these scopes leave the connection open
    returns: ClassVar[bool]  # its clients connect again at once, for ever, whatever they are refused for
    confirmed: int  # this many bytes of ours the client says it has; only of one whose `Connect` has `reattach`
    unsaid: bytes  # the codec's own part of the conversation, to be sent now: whoever takes it puts b"" there
    # Agreed on: the broker says something at least so often, and the client does; 0 = that side need not; None = no
    # agreement yet. A client with which there is one before its login need not log in within `connectTimeout`.
    beats_ms: tuple[int, int] | None
    has_more: bool  # `receive` stopped at `frames_max`: `receive(b"", …)` goes on
    pending: bool  # a frame has begun and is not complete

    def receive(self, data: bytes, frames_max: int = ALL_FRAMES) -> list[Command]:
        """Commands completed by `data`, of about `frames_max` frames; the others stay in the codec. 0 = only take
        `data` in. After `Malformed` everything further is ignored."""
        ...

    def close(self) -> None:
        """Nothing is received any more: let go of what was buffered."""
        ...

    # A codec bounds the frames that come before this.
    def connected(self, session: str, brokers: Sequence[str] = (), reattachable: Reattachable | None = None) -> bytes:
        """Answer to Connect. `brokers` = the addresses of the group, the master's own first: URLs of all protocols;
        () = the client is told none. `reattachable` None = the client did not ask for it, or does not get it."""
        ...

    def brokers(self, brokers: Sequence[str]) -> bytes:
        """The addresses of the group have changed; b"" = this client did not ask, or its protocol cannot say so."""
        ...

    def received(self, count: int) -> bytes:
        """Tell a client whose `Connect` has `reattach` that this many bytes of it are here."""
        ...

    def receipt(self, receipt: Any, outcome: str = "") -> bytes:
        """Confirm that the command with this token is done; `outcome` = how, where there is more than one way."""
        ...

    def receipts(self, receipts: Sequence[Any]) -> bytes:
        """`receipt` for each of these, which have no outcome."""
        ...

    def error(self, failure: Failure) -> bytes:
        """Tell the client why, and what ends with it; the connection is closed afterwards unless the protocol
        `survives` it."""
        ...

    def subscription(self, command: Subscribe, session: int) -> Any:
        """The facts of a consumer that `delivery` needs, computed once; a `RunWriter` where it browses `in_runs`."""
        ...

    def delivery(self, subscription: Any, message: Message, redelivered: int, /) -> bytes:
        """One message for one consumer; `redelivered` = how many times it was delivered before. Here, and in `batch`
        and `large_delivery`: raises CostlyError where a thread must make the message ready, by `translation`."""
        ...

    def deliveries(self, subscription: Any, messages: Sequence[Message], /) -> tuple[bytes, int]:
        """`delivery` for each of `messages`, for the first time, in one piece; but none from the first on that is
        costly. And how many these are."""
        ...

    def translation(self, subscription: Any) -> Callable[[Message], Message]:
        """A pure function that makes a message ready for `large_delivery` to this consumer. Equal ones do the same."""
        ...

    def large_delivery(self, subscription: Any, message: Message, redelivered: int) -> tuple[bytes, ...]:
        """The bytes of `delivery` in pieces, of which the message's body is one: it is not copied."""
        ...

    def end_of_browse(self, subscription: Any) -> bytes:
        """The browse of this consumer has shown everything."""
        ...

    def batch(self, subscription: Any, batch: MessageBatch) -> bytes:
        """Many messages for one consumer, each delivered for the first time. The part that other consumers share is
        written once, and kept in `batch`.
        """
        ...

    def may_repeat(self, until: int) -> None:
        """Messages up to number `until` may come that the client had before, on this connection or an earlier one."""
        ...

    def heartbeat(self) -> bytes: ...
