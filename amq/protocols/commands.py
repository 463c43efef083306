"""The command vocabulary that every protocol shares: the requests of a client to the broker.

A protocol turns bytes into these; a connection hands them to the broker. Nothing here knows STOMP, sockets or threads.
Destinations are full names (`queue://x`, `topic://x`). `receipt` is the protocol's own token for "tell me when this is
done", opaque to the broker ("" = none). `transaction` is the client's name for an open transaction ("" = none).
"""

from __future__ import annotations

from amq.message import Message, alike
from amq.xid import AnyXid

ACK_AUTO = "auto"
ACK_CLIENT = "client"
ACK_INDIVIDUAL = "client-individual"
CREDIT_MAX = 999_999_999  # messages that a consumer can ask for at once


class Command:
    """Base of all commands."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: str = "") -> None:
        self.receipt = receipt

    def __repr__(self) -> str:
        names = [name for cls in type(self).__mro__ for name in getattr(cls, "__slots__", ())]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


class Connect(Command):
    """Open the conversation. `heartbeat_ms` = (what the client sends, what it wants), 0 = none. `instance` is the same
    for all connections that one client object makes, one after the other, and for no others; "" = it does not say."""

    __slots__ = ("client_id", "heartbeat_ms", "host", "instance", "login", "passcode")

    def __init__(
        self, login: str = "", passcode: str = "", client_id: str = "", host: str = "",
        heartbeat_ms: tuple[int, int] = (0, 0), instance: str = "",
    ) -> None:  # fmt: skip
        self.receipt = ""
        self.instance = instance
        self.login = login
        self.passcode = passcode
        self.client_id = client_id
        self.host = host
        self.heartbeat_ms = heartbeat_ms


class Send(Command):
    """Store and route `message`."""

    __slots__ = ("message", "transaction")

    def __init__(self, message: Message, receipt: str = "", transaction: str = "") -> None:
        self.message = message
        self.receipt = receipt
        self.transaction = transaction


class SendMany(Command):
    """Add messages to a transaction, at least one. They have no properties and no ids, and differ in their bodies alone
    from `like`, which has no body and belongs to this command only."""

    __slots__ = ("bodies", "like", "transaction")

    def __init__(self, like: Message, bodies: list[bytes], transaction: str) -> None:
        self.receipt = ""
        self.like = like
        self.bodies = bodies
        self.transaction = transaction

    @property
    def messages(self) -> list[Message]:
        """One by one."""
        return alike(self.like, self.bodies)


class Subscribe(Command):
    """Start a subscription. `id` is unique in the connection. `prefetch` 0 = the broker's default. With `browser` it
    looks at what is there and takes nothing.

    `message_id_prefix` is what the protocol writes before a message's `seq` in its id, which selectors may name.
    `subscription_name` is that of a durable subscription, "" = it is none.
    `token` is the protocol's own note for when it is asked about this subscription, opaque to the broker.
    """

    __slots__ = (
        "ack", "browser", "destination", "id", "message_id_prefix", "options", "prefetch", "selector",
        "subscription_name", "token",
    )  # fmt: skip

    def __init__(
        self, id: str, destination: str, ack: str = ACK_AUTO, prefetch: int = 0, selector: str = "",
        options: dict[str, str] | None = None, receipt: str = "", token: object = None, browser: bool = False,
        message_id_prefix: str | None = None, subscription_name: str = "",
    ) -> None:  # fmt: skip
        self.subscription_name = subscription_name
        self.message_id_prefix = message_id_prefix
        self.browser = browser
        self.token = token
        self.id = id
        self.destination = destination
        self.ack = ack
        self.prefetch = prefetch
        self.selector = selector
        self.options = options or {}
        self.receipt = receipt


class Credit(Command):
    """Subscription `id`, which began with the option `credit`, may get `credit` more messages from now on."""

    __slots__ = ("credit", "id")

    def __init__(self, id: str, credit: int, receipt: str = "") -> None:
        self.id = id
        self.credit = credit
        self.receipt = receipt


class Unsubscribe(Command):
    """The subscription `id` of this connection ends. With `subscription_name`: that durable one ends for good, which
    `id`, where there is such a one, consumes."""

    __slots__ = ("id", "subscription_name")

    def __init__(self, id: str, receipt: str = "", subscription_name: str = "") -> None:
        self.id = id
        self.subscription_name = subscription_name
        self.receipt = receipt


class Ack(Command):
    """Acknowledge the delivery of message `seq` to `subscription` ("" = whichever of this connection holds it).

    Whether that is cumulative is the subscription's ack mode.
    """

    __slots__ = ("seq", "subscription", "transaction")

    def __init__(self, seq: int, subscription: str = "", receipt: str = "", transaction: str = "") -> None:
        self.seq = seq
        self.subscription = subscription
        self.receipt = receipt
        self.transaction = transaction


class Nack(Ack):
    """The consumer refuses the delivery: the message goes to the dead-letter queue; with `requeue` it comes again, as
    after any failed delivery: see the broker's redelivery policy."""

    __slots__ = ("requeue",)

    def __init__(
        self, seq: int, subscription: str = "", receipt: str = "", transaction: str = "", requeue: bool = False
    ) -> None:
        super().__init__(seq, subscription, receipt, transaction)
        self.requeue = requeue


class Begin(Command):
    __slots__ = ("transaction",)

    def __init__(self, transaction: str, receipt: str = "") -> None:
        self.transaction = transaction
        self.receipt = receipt


class Commit(Begin):
    """Commit `transaction`. `outcome_id`, if given, names this commit for ever.

    A Commit of a transaction that this connection did not begin is a question: "did commit `outcome_id` take place?"
    It is confirmed if it did; if not, it never will and the answer is TRANSACTION_ROLLED_BACK.
    """

    __slots__ = ("outcome_id",)

    def __init__(self, transaction: str, receipt: str = "", outcome_id: str = "") -> None:
        self.transaction = transaction
        self.receipt = receipt
        self.outcome_id = outcome_id


class Abort(Begin):
    __slots__ = ()


class Prepare(Begin):
    """First phase: `transaction` becomes `xid`, which is bound to no connection and survives everything, until a
    `Finish` or `CommitBatch` of anybody ends it.

    `timeout_ms` is how long it waits for that before it is rolled back, 0 = for ever, None = as the broker is
    configured. `owner` and `batch` say of which pipeline's batch it is a part, "" = none. A Prepare of a transaction
    that this connection did not begin is a question, as a Commit is.
    """

    __slots__ = ("batch", "owner", "timeout_ms", "xid")

    def __init__(
        self, transaction: str, xid: AnyXid, timeout_ms: int | None = None, owner: str = "", batch: int = 0,
        receipt: str = "",
    ) -> None:  # fmt: skip
        super().__init__(transaction, receipt)
        self.xid = xid
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.batch = batch


class Finish(Command):
    """Second phase: commit or roll back the prepared transaction `xid`, whoever prepared it."""

    __slots__ = ("commit", "xid")

    def __init__(self, xid: AnyXid, commit: bool, receipt: str = "") -> None:
        super().__init__(receipt)
        self.xid = xid
        self.commit = commit


class CommitBatch(Command):
    """Commit the prepared transactions `xids` as batch `batch` of `owner`, all or none, once. A repeated request is
    answered "duplicate"; an older batch is rejected.

    `content` = (rows, checksum) of the batch, None = not told. The broker keeps it with the batch, and rejects a
    repeated request of other content.
    """

    __slots__ = ("batch", "content", "owner", "xids")

    def __init__(
        self, owner: str, batch: int, xids: list[AnyXid], receipt: str = "", content: tuple[int, int] | None = None
    ) -> None:
        super().__init__(receipt)
        self.owner = owner
        self.batch = batch
        self.xids = xids
        self.content = content


class AbortBatch(Command):
    """Roll back the prepared transactions of `owner`: all, or those of batch `batch`, or of that batch only `xids`. A
    transaction that has ended stays as it is. The answer says how many transactions are rolled back."""

    __slots__ = ("batch", "owner", "xids")

    def __init__(
        self, owner: str, batch: int | None = None, xids: list[AnyXid] | None = None, receipt: str = ""
    ) -> None:
        super().__init__(receipt)
        self.owner = owner
        self.batch = batch
        self.xids = xids


class Lease(Command):
    """Set the next waiting messages of `destination` apart for `cursor`: up to `messages`, and about up to `size` bytes
    in all, but at least one. They wait there for a SettleLeases of anybody, as a prepared transaction does, for
    `timeout_ms` (0 = for ever).

    Leases of a cursor have growing numbers. If there is one beyond `after`, the oldest such is the answer and nothing
    is set apart: so a client that lost the answer asks again. `messages` 0 = only ask. A topic means its durable
    subscription with the cursor's name.

    `take`: from now on the cursor belongs to the client that asks, and the answer has its new epoch. A request with an
    older `epoch` is rejected; 0 = this client does not say.
    """

    __slots__ = ("after", "cursor", "destination", "epoch", "messages", "size", "take", "timeout_ms")

    def __init__(
        self, destination: str, cursor: str, after: int, messages: int, size: int = 0, timeout_ms: int = 0,
        receipt: str = "", take: bool = False, epoch: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(receipt)
        self.destination = destination
        self.cursor = cursor
        self.after = after
        self.messages = messages
        self.size = size
        self.timeout_ms = timeout_ms
        self.take = take
        self.epoch = epoch


class SettleLeases(Command):
    """All leases of `cursor` at `destination` up to number `through` end: their messages are acknowledged, or go back
    where they were. There need not be any. `epoch` as in Lease."""

    __slots__ = ("commit", "cursor", "destination", "epoch", "through")

    def __init__(
        self, destination: str, cursor: str, through: int, commit: bool, receipt: str = "", epoch: int = 0
    ) -> None:
        super().__init__(receipt)
        self.epoch = epoch
        self.destination = destination
        self.cursor = cursor
        self.through = through
        self.commit = commit


class Disconnect(Command):
    __slots__ = ()


class Malformed(Command):
    """The peer broke the protocol. Always the last command of a connection: report `error`, close."""

    __slots__ = ("error",)

    def __init__(self, error: Exception, receipt: str = "") -> None:
        self.error = error
        self.receipt = receipt
