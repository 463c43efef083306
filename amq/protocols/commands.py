"""The contract, from a client to its broker: the commands that every protocol shares.

A protocol turns bytes into these; a connection hands them to the broker. Nothing here knows a protocol's spelling,
sockets or threads. A connection (one socket, one user, one client id) has sessions; a session has consumers and
transactions. A producer is nothing that the broker keeps. The commands of a read are those of session 0, up to an
`InSession`.

Destinations are full names (`queue://x`), or patterns: see `amq.core.destination`. `receipt` is a protocol's token for
"tell me when this is done": any value, None = nobody asks. The session makes a waiter of it. `transaction` is the
client's name for an open transaction of its connection ("" = none): all sessions of that share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from amq.core.destination import Pattern, Source
from amq.core.message import GivenIds, HeaderColumns, Message, alike
from amq.core.xid import AnyXid

CREDIT_MAX = 999_999_999  # messages that a consumer can ask for at once
OLDEST = 0  # the oldest delivery that a consumer holds
NOT_HELD = "not held"  # outcome of a `SettleIfHeld`
# Outcomes of `Decide` and `AskDecision`
DECIDED, REPEATED, NEVER, UNDECIDED = "decided", "repeated", "never", "undecided"


class Outcome(Enum):
    """The fate of a delivered message."""

    ACCEPTED = auto()  # it leaves its queue
    RELEASED = auto()  # it waits again where it was, as if it had not been delivered
    RETURNED = auto()  # it waits again where it was; the delivery counts, but not as one that failed
    FAILED = auto()  # it comes again, and the delivery counts as one that failed: see the redelivery policy
    REJECTED = auto()  # it goes to the dead-letter queue
    EXPIRED = auto()  # its time was over when the consumer looked at it: see what becomes of such messages


class Scope(Enum):
    """The part that ends with an error. Only the last one ends the connection in any protocol."""

    COMMAND = auto()
    CONSUMER = auto()
    SESSION = auto()
    CONNECTION = auto()


class Failure(NamedTuple):
    """An error on its way to the client. `receipt` is that of the command that failed; `session` is where it happened,
    and `consumer` whose it is, "" = nobody's."""

    error: Exception
    scope: Scope = Scope.COMMAND
    receipt: object = None
    session: int = 0
    consumer: str = ""


class Command:
    """Base of all commands."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: object = None) -> None:
        self.receipt = receipt

    def __repr__(self) -> str:
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


class Reattach(NamedTuple):
    """The client wants its connection back when its socket breaks: for `window_ms`, after which it has ended. The
    client keeps the last `window_bytes` that it sent, and can say them again.

    token     of the connection that it wants back now, "" = it has lost none; of which it has `received` so many bytes,
              and can repeat its own from number `repeats_from` on
    """

    window_ms: int
    window_bytes: int
    token: str = ""
    received: int = 0
    repeats_from: int = 0


class Reattachable(NamedTuple):
    """The broker's answer: `token` gives the connection back, for `window_ms` after its socket broke. The broker keeps
    the last `window_bytes` that it sent. `received` = how many bytes of the client it has, where this is the connection
    that the client wanted back; None = it is a new one."""

    token: str
    window_ms: int
    window_bytes: int
    received: int | None = None


@dataclass(slots=True, eq=False)
class LoginStep(Command):
    """One step of a login that takes several: `response` to the last challenge; the first one names the `mechanism`.
    `Connect` comes after the last one, and shows nothing then."""

    response: bytes
    mechanism: str = ""
    receipt: object = None


@dataclass(slots=True, eq=False)
class Connect(Command):
    """Open the conversation. `instance` is the same for all connections that one client object makes, one after the
    other, and for no others; "" = it does not say. `reattach` None = the connection ends with its socket. `exclusive` =
    no other client may have this client id at the same time; and a message to a temporary destination that is not there
    is an error for this one."""

    login: str = ""
    passcode: str = ""
    client_id: str = ""
    instance: str = ""
    reattach: Reattach | None = None
    receipt: object = None
    exclusive: bool = False


class Send(Command):
    """Store and route `message`."""

    __slots__ = ("message", "transaction")

    def __init__(self, message: Message, receipt: object = None, transaction: str = "") -> None:
        self.message = message
        self.receipt = receipt
        self.transaction = transaction


class SendToMany(Send):
    """Store and route `message` to all of `destinations`, or to none."""

    __slots__ = ("destinations",)

    def __init__(
        self, message: Message, destinations: tuple[str, ...], receipt: object = None, transaction: str = ""
    ) -> None:
        super().__init__(message, receipt, transaction)
        self.destinations = destinations


class SendRun(Command):
    """Store messages that came one after the other, at least two, in no transaction. They have no ids or envelope, are
    not large, and differ in their bodies and receipts alone from `like`, which has no body and belongs to this command
    only. `receipts` = a token for each message, or None where none of them asks for an answer. `natives` None = they
    have no native form either; or the data of theirs, and `like` says of which protocol, and has no properties.

    The effect is that of as many `Send`.
    """

    __slots__ = ("bodies", "like", "natives", "receipts")

    def __init__(
        self, like: Message, bodies: list[bytes], receipts: Sequence[object] | None, natives: list[bytes] | None = None
    ) -> None:
        self.receipt = None
        self.like = like
        self.bodies = bodies
        self.receipts = receipts
        self.natives = natives

    def one_by_one(self) -> list[Command]:
        receipts = self.receipts if self.receipts is not None else [None] * len(self.bodies)
        return [Send(*each) for each in zip(alike(self.like, self.bodies, None, self.natives), receipts, strict=True)]


class SendMany(Command):
    """Add messages to a transaction, at least one. They have no ids, and differ in their bodies and `headers` alone
    from `like`, which has no body and belongs to this command only. `headers` None = no message has any. `natives` as
    in `SendRun`."""

    __slots__ = ("bodies", "headers", "like", "natives", "transaction")

    def __init__(
        self,
        like: Message,
        bodies: list[bytes],
        transaction: str,
        headers: HeaderColumns | None = None,
        natives: list[bytes] | None = None,
    ) -> None:
        self.receipt = None
        self.like = like
        self.bodies = bodies
        self.headers = headers
        self.natives = natives
        self.transaction = transaction

    @property
    def messages(self) -> list[Message]:
        """The messages one by one."""
        headers = self.headers
        rows = headers.rows(len(self.bodies)) if headers is not None else None
        return alike(self.like, self.bodies, rows, self.natives)


@dataclass(slots=True, eq=False)
class InSession(Command):
    """The commands behind this one are those of session `session`, up to the next such command, or the end of what was
    read."""

    session: int
    receipt: None = field(init=False, default=None)


@dataclass(slots=True, eq=False)
class OpenSession(Command):
    """A session `session` begins on this connection. Session 0 is there from the beginning to the end."""

    session: int
    receipt: object = None


class CloseSession(OpenSession):
    """Its consumers end, and its open transactions are rolled back."""

    __slots__ = ()


class LeaseReading(NamedTuple):
    """A part of lease `number` of `cursor`: its messages from position `begin` up to before `end`, None = all. `epoch`
    as in Lease."""

    number: int
    cursor: str
    epoch: int = 0
    begin: int = 0
    end: int | None = None


class Range(NamedTuple):
    """A part of a browse: what stands behind one message, up to another one and with it; each is priority and seq. None
    = from the beginning, to the end."""

    after: tuple[int, int] | None = None
    until: tuple[int, int] | None = None


class Mode(NamedTuple):
    """How a consumer takes what it is given.

    acknowledges         False = what it is given has left at once
    redelivers           its client delivers again by itself, and says with `Outcome.RETURNED` what counts. If the
                         consumer is lost, what it holds waits again and counts as delivered at least once, and never as
                         failed
    exclusive, priority  which consumer comes first: see `Queue.join`
    shared               its durable subscription may have several consumers
    """

    acknowledges: bool = False
    redelivers: bool = False
    exclusive: bool = False
    priority: int = 0
    shared: bool = False


class Flow(NamedTuple):
    """How much a consumer is given.

    prefetch       deliveries that may be outstanding, 0 = the broker's default
    credit         it is given this many messages and then waits for a `Credit`, however many it acknowledges; None = it
                   has prefetch
    pending_limit  messages that may wait for it, of a topic; -1 = any number, 0 = the broker's default
    """

    prefetch: int = 0
    credit: int | None = None
    pending_limit: int = 0


class Filter(NamedTuple):
    """The messages of its sources that a consumer wants.

    selector     "" = all
    no_local     none that its own connection sends
    retroactive  first those that its topics keep
    ids          those that its selector means by `JMSMessageID`; None = as the broker gives them
    """

    selector: str = ""
    no_local: bool = False
    retroactive: bool = False
    ids: GivenIds | None = None


class Browse(NamedTuple):
    """A consumer looks at what is there and takes nothing.

    reading         it looks at the messages of a lease
    range           it looks at a part of one queue
    places, bounds  it wants to know where the messages stand; with `bounds` only between which numbers
    in_runs         it gets many messages in one piece, as the journal has them, where the codec can write that
    """

    reading: LeaseReading | None = None
    range: Range | None = None
    places: bool = False
    bounds: bool = False
    in_runs: bool = False


ANY_MODE: Final = Mode()
ANY_FLOW: Final = Flow()
EVERYTHING: Final = Filter()


class Subscribe(Command):
    """Start consumer `id`, unique in its session, of what `sources` name: one, or several together.

    subscription_name  of a durable subscription, "" = it is none
    browse             None = it takes what it is given
    token              the codec's own note for when it is asked about this consumer, opaque to the broker
    """

    __slots__ = ("browse", "filter", "flow", "id", "mode", "sources", "subscription_name", "token")

    def __init__(
        self,
        id: str,
        sources: Source | tuple[Source, ...],
        mode: Mode = ANY_MODE,
        flow: Flow = ANY_FLOW,
        filter: Filter = EVERYTHING,
        receipt: object = None,
        token: object = None,
        *,
        subscription_name: str = "",
        browse: Browse | None = None,
    ) -> None:
        self.id = id
        self.sources: tuple[Source, ...] = (sources,) if isinstance(sources, str | Pattern) else sources
        self.mode = mode
        self.flow = flow
        self.filter = filter
        self.receipt = receipt
        self.token = token
        self.subscription_name = subscription_name
        self.browse = browse


@dataclass(slots=True, eq=False)
class Credit(Command):
    """Consumer `id`, which began with credit, may get `credit` more messages from now on, instead of as many as before.
    With `drain`: of those that are there within `wait_ms`; what is left of the credit then is taken back, and that is
    the answer. A later Credit of the same consumer ends the wait."""

    id: str
    credit: int
    receipt: object = None
    drain: bool = False
    wait_ms: int = 0


@dataclass(slots=True, eq=False)
class Extend(Command):
    """Consumer `id`, which has a prefetch and acknowledges, may have this many more deliveries outstanding from now on;
    fewer, where `change` is negative."""

    id: str
    change: int
    receipt: object = None


@dataclass(slots=True, eq=False)
class Unsubscribe(Command):
    """Consumer `id` of this session ends. With `subscription_name`: that durable subscription ends for good, which
    `id`, where there is such a one, consumes."""

    id: str
    receipt: object = None
    subscription_name: str = ""


class Settle(Command):
    """Deliveries of `consumer` ("" = whichever of this session holds it) are over, with this outcome: that of message
    `seq`; or a range in the order of delivery, from that of message `first` (OLDEST = whatever is held) up to it.
    `reason` = why the consumer refuses them, "" = it does not say."""

    __slots__ = ("consumer", "first", "outcome", "reason", "seq", "transaction")

    def __init__(
        self,
        seq: int,
        consumer: str = "",
        receipt: object = None,
        transaction: str = "",
        outcome: Outcome = Outcome.ACCEPTED,
        first: int | None = None,
        reason: str = "",
    ) -> None:
        self.reason = reason
        self.seq = seq
        self.consumer = consumer
        self.receipt = receipt
        self.transaction = transaction
        self.outcome = outcome
        self.first = first


class SettleSet(Settle):
    """The deliveries of all of `seqs`, at least one, to `consumer` are over. If it does not hold one of them, that
    is an error, and nothing is done."""

    __slots__ = ("seqs",)

    def __init__(
        self,
        seqs: Sequence[int],
        consumer: str = "",
        receipt: object = None,
        transaction: str = "",
        outcome: Outcome = Outcome.ACCEPTED,
        reason: str = "",
    ) -> None:
        super().__init__(seqs[-1], consumer, receipt, transaction, outcome, None, reason)
        self.seqs = seqs


class SettleRun(Command):
    """As many `Settle` of `consumer` as there are `seqs`, at least two, which came one after the other: accepted, in no
    transaction, without receipts. An error with one of them is none of the others."""

    __slots__ = ("consumer", "seqs")

    def __init__(self, seqs: list[int], consumer: str) -> None:
        self.receipt = None
        self.seqs = seqs
        self.consumer = consumer

    def one_by_one(self) -> list[Command]:
        return [Settle(seq, self.consumer) for seq in self.seqs]


class SettleAgain(Settle):
    """The client does not know whether its acceptance of `seq`, which `consumer` had on an earlier connection, was
    carried out. It is carried out where the message waits, or `consumer` has it again, and confirmed where it has left
    its queue for good; otherwise an error, and nothing is done: somebody else has it."""

    __slots__ = ()


class SettleIfHeld(Settle):
    """A settlement outside transactions that a gateway is not sure of: where the consumer does not hold the delivery,
    nothing is done, and the outcome is `NOT_HELD`."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Begin(Command):
    transaction: str
    receipt: object = None


@dataclass(slots=True, eq=False)
class Commit(Begin):
    """Commit `transaction`. `outcome_id`, if given, names this commit for ever.

    A Commit of a transaction that this connection did not begin is a question: "did commit `outcome_id` take place?"
    It is confirmed if it did; if not, it never will and the answer is TRANSACTION_ROLLED_BACK.
    """

    transaction: str
    receipt: object = None
    outcome_id: str = ""


class Abort(Begin):
    __slots__ = ()


class Prepare(Begin):
    """First phase: `transaction` becomes `xid`, which is bound to no connection and survives everything, until a
    `Finish` or `CommitBatch` ends it.

    `timeout_ms` is how long it waits for that before it is rolled back, 0 = for ever, None = as the broker is
    configured. `owner` and `batch` say of which pipeline's batch it is a part, "" = none. A Prepare of a transaction
    that this connection did not begin is a question, as a Commit is. `may_be_read_only` = where it does nothing,
    nothing is prepared, and the outcome says so. `span`, `stores`: the xid of its parts, which these other stores have
    prepared and which end as it does; "" = it has none. A gateway's word.
    """

    __slots__ = ("batch", "may_be_read_only", "owner", "span", "stores", "timeout_ms", "xid")

    def __init__(
        self,
        transaction: str,
        xid: AnyXid,
        timeout_ms: int | None = None,
        owner: str = "",
        batch: int = 0,
        receipt: object = None,
        may_be_read_only: bool = False,
        span: str = "",
        stores: tuple[str, ...] = (),
    ) -> None:
        self.may_be_read_only = may_be_read_only
        self.span = span
        self.stores = stores
        super().__init__(transaction, receipt)
        self.xid = xid
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.batch = batch


class PreparePart(Prepare):
    """First phase of a transaction over several stores, in each but the one that decides. `xid` names that, see
    `amq.journal.records.spanning`. The part never times out: it ends as was decided. Of a batch of `owner` that this
    store has committed by itself there can be no part. A gateway's command."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Decide(Commit):
    """Commit `transaction`, and with it the decision that the parts of `xid`, which `stores` have prepared, are
    committed. The outcome is `DECIDED`. Where `transaction` is not open it is a question, which never will be decided
    where it was not; `REPEATED` = not, but another commit `outcome_id` took place. A gateway's command."""

    xid: str = ""
    stores: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class AskDecision(Command):
    """Was the transaction `xid` of `user` decided, over several stores? The outcome is `DECIDED`, or `NEVER`: then it
    never will be; or `UNDECIDED`: its client, who has prepared it, decides. A store's command."""

    xid: str
    user: str
    receipt: object = None


@dataclass(slots=True, eq=False)
class EndPart(Command):
    """Commit the part of `xid` of `user` that was prepared, or roll it back, as was decided. Again, or where there is
    no such part = nothing. To the store that decided it says that all parts have ended. A gateway's or a store's
    command."""

    xid: str
    user: str
    commit: bool
    receipt: object = None


@dataclass(slots=True, eq=False)
class Finish(Command):
    """Second phase: commit or roll back the prepared transaction `xid`, which the user owns or may manage."""

    xid: AnyXid
    commit: bool
    receipt: object = None


@dataclass(slots=True, eq=False)
class CommitBatch(Command):
    """Commit the prepared transactions `xids` as batch `batch` of `owner`, all or none, once. A repeated request is
    answered "duplicate"; an older batch is rejected.

    `content` = (rows, checksum) of the batch, None = not told. The broker keeps it with the batch, and rejects a
    repeated request of other content.
    """

    owner: str
    batch: int
    xids: Collection[AnyXid]
    receipt: object = None
    content: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class AbortBatch(Command):
    """Roll back the prepared transactions of `owner`: all, or those of batch `batch`, or of that batch only `xids`. A
    transaction that has ended stays as it is. The answer says how many transactions are rolled back."""

    owner: str
    batch: int | None = None
    xids: Collection[AnyXid] | None = None
    receipt: object = None


@dataclass(slots=True, eq=False)
class ForgetOutcome(Command):
    """Nobody is going to ask any more how the prepared transaction `xid` ended. An error where it has not, or where the
    broker does not know of it."""

    xid: AnyXid
    receipt: object = None


class ListPrepared(Command):
    """Which transactions are prepared, of those that the user may finish? The answer is their ids, as `amq.core.xid`
    writes them, with a line end between."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Locate(Command):
    """In which stores of its cluster does each of `sources` live, and where does a client find the masters of these? A
    gateway answers with a JSON object, a broker, which serves one store, with "".

        table   the number of the table of homes
        homes   for each source its store; "" = it lives in every store, or a pattern may match there
        stores  of those: name → addresses, the master's first; none where no master is known now
    """

    sources: tuple[Source, ...]
    receipt: object = None


@dataclass(slots=True, eq=False)
class MakeTemporary(Command):
    """The temporary destination `name`, a full name that the client chose, is there from now on, as long as this
    connection. Only it may consume from there, and everybody send. Again = nothing."""

    name: str
    receipt: object = None


class RemoveTemporary(MakeTemporary):
    """Remove a temporary destination with its messages. It must have no consumers."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class OpenProducer(Command):
    """A producer `id` begins, of messages for `destination`, a full name. For those who want to know: the broker serves
    those that say nothing as well."""

    id: str
    destination: str
    receipt: object = None


@dataclass(slots=True, eq=False)
class CloseProducer(Command):
    """Producer `id` ends. Another than those that began = nothing."""

    id: str
    receipt: object = None


@dataclass(slots=True, eq=False)
class DeleteDestination(Command):
    """The queue or topic `name` is forgotten, and the messages that wait in the queue are thrown away. It must have no
    consumers, and the topic no durable subscriptions."""

    name: str
    receipt: object = None


@dataclass(slots=True, eq=False)
class Transfer(Command):
    """Messages of another store, which go here exactly once: parcel `number` of `channel` (see
    `amq.broker.transfer.channel`), all or none. Sent by the master of that store alone, over a link.

    queue   full name of the queue of the journal that gets them; "" = each goes where it was sent to
    extra   more that comes with them, as the two ends have agreed
    """

    channel: str
    number: int
    messages: list[Message]
    queue: str = ""
    extra: str = ""
    receipt: object = None


@dataclass(slots=True, eq=False)
class TakeCopies(Command):
    """A parcel as `Transfer` is one, of which this store has the messages: copies that came before (see
    `amq.broker.transfer.copies_here`). Sent by the master of another store alone, over a link.

    ranges  (first, count) of their seqs here
    """

    channel: str
    number: int
    ranges: tuple[tuple[int, int], ...]
    queue: str
    extra: str = ""
    receipt: object = None


@dataclass(slots=True, eq=False)
class CloseParcel(Command):
    """Parcel `number` of `channel` does not come from now on, if it has not come yet. The answer is how many messages
    it had, 0 = it has not come."""

    channel: str
    number: int
    receipt: object = None


class Nothing(Command):
    """There is nothing to do but to answer, in its turn."""

    __slots__ = ()


class MakeSure(Nothing):
    """The answer says that all messages before it are stored."""

    __slots__ = ()


class GoOn(Nothing):
    """Of a gateway, which has had the answers to all messages that it sent to this home before: those behind this one
    may be stored again, also for a destination that was refused because it had moved."""

    __slots__ = ()


class Leave(Nothing):
    """The client is about to close the connection, and opens another one as soon as it has the answer: nothing that it
    has alone is its any more."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class LeaseMessages(Command):
    """Set the next waiting messages of what `sources` name apart for `cursor`: up to `messages`, and about up to `size`
    bytes in all, but at least one. They wait there for a SettleLeases of anybody, as a prepared transaction does, for
    `timeout_ms` (0 = for ever).

    Leases of a cursor have growing numbers. If there is one beyond `after`, the oldest such is the answer and nothing
    is set apart: so a client that lost the answer asks again. `messages` 0 = only ask. A topic means its durable
    subscription with the cursor's name.

    `take`: from now on the cursor belongs to the client that asks, and the answer has its new epoch. A request with an
    older `epoch` is rejected; 0 = this client does not say. `places`: the answer says where in the store the messages
    stand, if the client may know. `skip`: this many leases beyond `after` are left out; so a client asks for several at
    once. `reads`: how many messages a client has read from the store, and how many it had to get from the broker
    although it reads the store; the answer has the sums of the cursor. A pattern of queues, with `messages` 0, asks
    which queues hold messages or leases.
    """

    sources: tuple[Source, ...]
    cursor: str
    after: int
    messages: int
    size: int = 0
    timeout_ms: int = 0
    receipt: object = None
    take: bool = False
    epoch: int = 0
    places: bool = False
    skip: int = 0
    reads: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class SettleLeases(Command):
    """All leases of `cursor` there up to number `through` end: their messages are acknowledged, or go back
    where they were. There need not be any. `epoch` as in Lease."""

    sources: tuple[Source, ...]
    cursor: str
    through: int
    commit: bool
    receipt: object = None
    epoch: int = 0


class Disconnect(Command):
    __slots__ = ()


@dataclass(slots=True, eq=False)
class Malformed(Command):
    """The peer broke the protocol. Always the last command of a connection: report `error`, close."""

    error: Exception
    receipt: object = None


@dataclass(slots=True, eq=False)
class Invalid(Command):
    """A command that the protocol has understood, and that cannot be carried out: it fails with `error`, and those
    behind it go on. A transaction of which it would have been a part never commits without it."""

    error: Exception
    receipt: object = None
    transaction: str = ""
