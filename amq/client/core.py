"""Sessions, producers, consumers and transactions without I/O: the common part of the synchronous and the asyncio face.

They build frames and keep state; a caller that must wait does so at a gate of the state machine. Invariants: a
delivery is acknowledged at most once, and only in the session of the broker that brought it; a transaction lives in
one such session and is rollback-only once that is gone; in a transacted session every message handed over belongs to
the transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from amq.client.copies import DeliveryCopies
from amq.client.errors import (
    CallTimeoutError,
    CommitOutcomeUnknownError,
    ConnectionClosedError,
    DeliveryLostError,
    FailoverTimeoutError,
    TransactionRetryError,
    transaction_refused,
)
from amq.client.requests import Gate, Request, RequestKind, SendOwner, open_gate
from amq.core.errors import AmqError, CommandError, TransactionRolledBackError
from amq.core.message import DEFAULT_PRIORITY, LARGE_BODY_BYTES
from amq.protocols.stomp.frame import Frame, encode, escape
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL

if TYPE_CHECKING:
    from amq.client.machine import Machine

VERSION = "1.2"
DUPLICATE_ID_HEADER = "_AMQ_DUPL_ID"
PREFETCH_DEFAULT = 100
PULL_ANSWER_S_MAX = 2.0  # so long `receive` waits, after its time, for the broker's word that nothing is on its way
EXACTLY_ONCE = "exactly_once()"
ACK_MODES = (ACK_INDIVIDUAL, ACK_CLIENT, ACK_AUTO)
# Set by arguments of `send` or by the client itself.
RESERVED_HEADERS = frozenset(
    {
        "content-length",
        "content-type",
        "destination",
        "expires",
        "persistent",
        "priority",
        "receipt",
        "transaction",
        DUPLICATE_ID_HEADER,
    }
)


class Delivery:
    """One message that the broker delivered to one subscription, in its session number `epoch`, as its `number`th.

    settled    it was acknowledged or refused; `settling` is the request for that, None if it asked for no receipt
    """

    __slots__ = ("epoch", "frame", "number", "settled", "settling", "subscription")

    def __init__(self, frame: Frame, subscription: Subscription, epoch: int, number: int) -> None:
        self.frame = frame
        self.subscription = subscription
        self.epoch = epoch
        self.number = number
        self.settled = False
        self.settling: Request | None = None

    @property
    def is_settled(self) -> bool:
        """Alone, or with later ones."""
        return self.settled or self.number <= self.subscription.acknowledged

    @property
    def buffer(self) -> deque[Delivery]:
        return self.subscription.buffer


class Subscription:
    """The subscription of one consumer, with the messages that were delivered and not yet handed over."""

    __slots__ = (
        "_headers",
        "acknowledged",
        "browses",
        "buffer",
        "copies",
        "delivered",
        "ended",
        "error",
        "finished",
        "gate",
        "id",
        "pulls",
        "session",
        "settling",
        "stride",
        "wanted",
    )

    def __init__(self, id: str, session: SessionCore, headers: list[tuple[str, str]], browses: bool = False) -> None:
        self.id = id
        self.browses = browses
        self.stride = 1  # a browse: this many messages are acknowledged together
        self.finished = False  # a browse whose end the broker has told
        self.session = session
        self.buffer: deque[Delivery] = deque()
        self.gate: Gate = []  # opened when a delivery arrives, the link breaks, or the subscription ends
        self.ended = False
        self.error: AmqError | None = None
        self.delivered = 0  # messages, ever
        self.acknowledged = 0  # in cumulative mode: everything up to this delivery
        self.settling: Request | None = None  # and the request for that, if it asked for a receipt
        self.pulls = ("credit", "0") in headers
        self.wanted = False  # one that pulls: a message was asked for, and none has come since
        self.copies = None if browses or self.pulls or session.ack == ACK_AUTO else DeliveryCopies()
        self._headers = headers

    def request(self, machine: Machine) -> Request:
        """Ask the broker for this subscription; it is confirmed when deliveries may come."""
        receipt = machine.next_receipt()
        frame = encode("SUBSCRIBE", [("id", self.id), *self._headers, ("receipt", receipt.decode())])
        return machine.request(RequestKind.SUBSCRIBE, receipt, frame, self.id)

    def deliver(self, frame: Frame, epoch: int) -> None:
        if self.browses and frame.headers.get("browser") == "end":
            self._finish()
            return
        self.delivered += 1
        self.wanted = False
        delivery = Delivery(frame, self, epoch, self.delivered)
        if self.copies is not None and self.session.machine.is_at_gateway and self.copies.needless(delivery):
            return
        self.buffer.append(delivery)
        if self.gate:
            open_gate(self.gate)

    def _finish(self) -> None:
        """The buffer holds the last messages: no new link shall begin this browse anew."""
        self.finished = True
        machine = self.session.machine
        machine.subscriptions.pop(self.id, None)
        machine.write(encode("UNSUBSCRIBE", [("id", self.id)]))
        open_gate(self.gate)

    def interrupt(self) -> None:
        """The link broke: what it brought will be delivered again."""
        self.empty()
        open_gate(self.gate)  # a transacted receive must learn that its transaction is rolled back

    def empty(self) -> None:
        """Nothing of what was delivered counts any more."""
        self.buffer.clear()
        if self.copies is not None:
            self.copies.clear()

    def resume(self, machine: Machine) -> None:
        """There is a restored link again."""
        if self.buffer:
            open_gate(self.gate)  # transacted consumers took nothing until now
        elif self.wanted:
            machine.write(_credit(self, 1))

    def end(self, error: AmqError | None) -> None:
        """No deliveries will come any more: closed by the application (None) or for the reason `error`."""
        if not self.ended:
            self.ended = True
            self.error = error
            self.empty()
            open_gate(self.gate)

    def ready(self) -> bool:
        """True when `SessionCore.take` knows what comes. Raises when nothing can come any more."""
        if self.ended:
            raise (self.error or ConnectionClosedError("the consumer was closed")).with_traceback(None)
        self.session.check_transaction()
        may_write = self.session.may_write()  # raises where nothing can come any more
        return self.finished or (bool(self.buffer) and may_write)  # a browse that is over needs no link


class Transaction:
    """One transaction on one link. `doomed` = why it is rollback-only: the link broke, the broker has rolled it back.

    refused the broker's answer to something that was sent in it, where that is why the link broke: to run the
            transaction again would end in the same way
    first   of each subscription the first message received in it. It is acknowledged last, just before the commit:
            so it is the oldest that the broker sees unacknowledged if the consumer goes, and it counts as the failed
            delivery, not an innocent message that was only prefetched
    """

    __slots__ = ("doomed", "first", "name", "refused")

    def __init__(self, name: str) -> None:
        self.name = name
        self.doomed: AmqError | None = None
        self.refused: AmqError | None = None
        self.first: dict[Subscription, Delivery] = {}

    def check(self, cure: str) -> None:
        """Raises when it is rollback-only."""
        if self.refused is not None:
            raise transaction_refused(self.refused)
        if self.doomed is not None:
            raise TransactionRolledBackError(
                f"the connection broke during the transaction, which the broker rolled back: {cure} ({self.doomed})"
            ) from self.doomed


class SessionCore:
    """One session: an acknowledgement mode, or a sequence of transactions."""

    def __init__(self, machine: Machine, transacted: bool, ack: str) -> None:
        if ack not in ACK_MODES:
            raise CommandError(f"ack={ack!r}: write one of {', '.join(ACK_MODES)}")
        self.machine = machine
        self.transacted = transacted
        self.ack = ack
        self.transaction: Transaction | None = None
        self.closed = False
        self._block = ""  # the call whose block of code runs now, and commits at its end

    # ---- transactions

    def enter_block(self, call: str) -> None:
        """Code that `call` commits begins. Raises CommandError inside such code: it would commit a half."""
        if self._block:
            raise CommandError(
                f"{call} inside {self._block} would commit a half of it: call it outside, or in another session"
            )
        self._block = call

    def leave_block(self) -> None:
        self._block = ""

    def check_block(self, call: str) -> None:
        """Raises CommandError where `call` would end the transaction of `exactly_once` too early."""
        if self._block == EXACTLY_ONCE:
            raise CommandError(f"{call} inside {EXACTLY_ONCE} would commit a half of it: return, or raise, instead")

    def check_transaction(self) -> None:
        """Raises when the open transaction is rollback-only."""
        if self.transaction is not None:
            self.transaction.check("call rollback() and run it again")

    def may_write(self) -> bool:
        """True when a message may be sent or taken: transactions need a restored link, the rest is kept until then."""
        self.machine.check_open()
        if self.closed:
            raise ConnectionClosedError("the session was closed")
        self.check_transaction()
        return not self.transacted or self.machine.flowing

    def may_send(self) -> bool:
        """True when one more message may be sent."""
        return self.may_write() and self.machine.has_room()

    def current(self) -> Transaction:
        """The open transaction, begun now if there is none."""
        if self.transaction is None:
            assert self.machine.flowing
            self.transaction = Transaction(self.machine.next_id())
            self.machine.transactions.add(self.transaction)
            self.machine.write(encode("BEGIN", [("transaction", self.transaction.name)]))
        return self.transaction

    def start_prepare(self, headers: list[tuple[str, str]]) -> Request:
        """Ask for the first phase, also where nothing was done: `may_write` must have been true then."""
        if self.transacted:
            self.transaction = self.transaction or self.current()
        request = self.start_commit(headers=headers)
        assert request is not None
        return request

    def start_commit(self, outcome_id: str = "", headers: list[tuple[str, str]] | None = None) -> Request | None:
        """Ask for the commit, or what else `headers` say. None = nothing was done since the last one. Raises if the
        transaction was rolled back."""
        self.check_block("commit() or prepare()")
        transaction = self._leave()
        if transaction is None:
            self.machine.check_open()
            if self.closed:
                raise ConnectionClosedError("the session was closed")
            return None
        transaction.check("run it again")
        machine = self.machine
        for delivery in transaction.first.values():
            machine.write(_settling("ACK", delivery, transaction.name))
        receipt = machine.next_receipt()
        outcome_id = outcome_id or (dict(headers).get("xid", "") if headers else machine.next_id())
        headers = headers or [("amq-outcome-id", outcome_id)]
        frame = encode("COMMIT", [("transaction", transaction.name), *headers, ("receipt", receipt.decode())])
        request = machine.request(RequestKind.COMMIT, receipt, frame, transaction.name)
        request.outcome_id = outcome_id
        for subscription in transaction.first:
            if subscription.copies is not None and machine.is_at_gateway:
                subscription.copies.commit(request)
        return request

    def start_rollback(self) -> Request | None:
        """Ask for the rollback. None = there is nothing that the broker must be told.

        Consumers that received in it subscribe anew, which gives back what was prefetched too: so the messages come
        again in their old order, from whatever make of broker.
        """
        self.check_block("rollback()")
        transaction = self._leave()
        if transaction is None or transaction.doomed is not None:
            return None
        machine = self.machine
        for subscription in transaction.first:
            machine.write(encode("UNSUBSCRIBE", [("id", subscription.id)]))
        receipt = machine.next_receipt()
        frame = encode("ABORT", [("transaction", transaction.name), ("receipt", receipt.decode())])
        request = machine.request(RequestKind.ABORT, receipt, frame, transaction.name)
        for subscription in transaction.first:
            del machine.subscriptions[subscription.id]
            subscription.empty()
            subscription.wanted = False
            subscription.id = machine.next_id()  # a new id: late deliveries to the old one are ignored
            machine.subscriptions[subscription.id] = subscription
            subscription.request(machine)
        return request

    def _leave(self) -> Transaction | None:
        if not self.transacted:
            raise CommandError("the session is not transacted: open it with session(transacted=True)")
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            self.machine.transactions.discard(transaction)
        return transaction

    def close(self, subscriptions: list[Subscription]) -> None:
        """Roll an open transaction back and end `subscriptions`, as far as there is a broker to be told."""
        self.closed = True
        self.leave_block()  # its commit will learn that the session was closed
        open_gate(self.machine.room_gate)
        if self.transacted and self.machine.line is not None:
            self.start_rollback()
        elif self.transacted:
            self._leave()
        for subscription in subscriptions:
            self.unsubscribe(subscription)

    # ---- consuming

    def subscribe(
        self,
        destination: str,
        prefetch: int,
        selector: str,
        headers: Mapping[str, str],
        browses: bool = False,
        kind: type[Subscription] = Subscription,
    ) -> tuple[Subscription, Request]:
        """A new subscription and the request whose end says whether the broker accepted it."""
        wire = [("destination", destination), ("ack", ACK_CLIENT if self.ack == ACK_CLIENT else ACK_INDIVIDUAL)]
        if prefetch < browses:
            raise CommandError(f"prefetch={prefetch}: write a number from {int(browses)}")
        if prefetch:
            wire.append(("activemq.prefetchSize", str(prefetch + self.transacted)))  # one more: see Transaction.first
        else:
            wire.append(("credit", "0"))
        if selector:
            wire.append(("selector", selector))
        if browses:
            wire.append(("browser", "true"))
        wire += headers.items()
        if self.transacted or browses:
            wire[1] = ("ack", ACK_CLIENT if browses else ACK_INDIVIDUAL)
        machine = self.machine
        self.may_write()
        subscription = kind(machine.next_id(), self, wire, browses)
        subscription.stride = max(1, prefetch // 2)
        request = subscription.request(machine)  # raises where a header cannot be written
        machine.subscriptions[subscription.id] = subscription
        return subscription, request

    def unsubscribe(self, subscription: Subscription) -> Request | None:
        """End the subscription; the broker delivers to others what was not acknowledged."""
        if subscription.ended:
            return None
        subscription.end(None)
        machine = self.machine
        machine.subscriptions.pop(subscription.id, None)
        if subscription.finished:
            return None
        if machine.line is None:
            return None  # it will not be restored: that is all
        transaction = self.transaction
        if transaction is not None and transaction.doomed is None and subscription in transaction.first:
            machine.write(_settling("ACK", transaction.first.pop(subscription), transaction.name))
        receipt = machine.next_receipt()
        frame = encode("UNSUBSCRIBE", [("id", subscription.id), ("receipt", receipt.decode())])
        return machine.request(RequestKind.UNSUBSCRIBE, receipt, frame, subscription.id)

    def want(self, subscription: Subscription) -> None:
        """Somebody waits for a message: ask for one, of a broker that sends none unasked."""
        if subscription.pulls and not subscription.wanted:
            subscription.wanted = True
            if self.machine.flowing:
                self.machine.write(_credit(subscription, 1))

    def want_no_more(self, subscription: Subscription) -> Request | None:
        """Nobody waits any longer. When the request, if any, has ended, what was on its way is here."""
        if not subscription.wanted:
            return None
        subscription.wanted = False
        machine = self.machine
        if not machine.flowing:
            return None
        receipt = machine.next_receipt()
        return machine.request(RequestKind.CREDIT, receipt, _credit(subscription, 0, receipt.decode()), subscription.id)

    def give_up(self, request: Request, now: float) -> None:
        """The broker did not answer `want_no_more` in time."""
        self.machine.withdraw(request, CallTimeoutError("the broker is silent"), now)

    def take(self, subscription: Subscription) -> Delivery | None:
        """Hand over the next message; None = the browse is over. `Subscription.ready` must have been true."""
        if not subscription.buffer:
            return None
        delivery = subscription.buffer.popleft()
        if subscription.browses:
            delivery.settled = True
            if not subscription.finished and not delivery.number % subscription.stride:
                self.machine.write(_settling("ACK", delivery))  # room for the next; it takes nothing away
        elif self.transacted:
            if subscription.copies is not None and self.machine.is_at_gateway:
                subscription.copies.taken(delivery)
            transaction = self.current()
            if transaction.first.setdefault(subscription, delivery) is not delivery:
                self.machine.write(_settling("ACK", delivery, transaction.name))
        elif self.ack == ACK_AUTO:
            self.machine.write(_settling("ACK", delivery))
            delivery.settled = True
        return delivery

    def take_all(self, subscription: Subscription) -> list[Delivery]:
        """Hand over all that a browse has brought; [] = it is over. `Subscription.ready` must have been true."""
        deliveries = [*subscription.buffer]
        subscription.buffer.clear()
        for delivery in deliveries:
            delivery.settled = True
        if deliveries and not subscription.finished:
            self.machine.write(_settling("ACK", deliveries[-1]))
        return deliveries

    def settle(self, delivery: Delivery, command: str, wait: bool, requeue: bool = False) -> Request | None:
        """ACK or NACK a delivery; only the first time counts. A request, if any, ends when the broker has confirmed.
        `requeue`: a NACK after which the message comes again.

        Raises DeliveryLostError when the delivery is not the broker's business any more, CommandError where `wait`
        would wait for a receipt that nobody asked for.
        """
        if self.transacted:
            raise CommandError("the session is transacted: commit() acknowledges what was received")
        if self.ack == ACK_AUTO:
            if command == "NACK" or wait:
                raise CommandError("ack='auto' acknowledged the message when it was handed over: use client-individual")
            return None
        machine, subscription = self.machine, delivery.subscription
        if subscription.browses:
            return None
        if delivery.settled or delivery.number <= subscription.acknowledged:
            return _settled_before(delivery, command) if wait else None
        if subscription.ended or delivery.epoch != machine.epoch or machine.line is None:
            raise DeliveryLostError(
                "the message came by a connection or consumer that is gone: the broker delivers it again"
            )
        request = None
        if wait:
            receipt = machine.next_receipt()
            frame = _settling(command, delivery, receipt=receipt.decode(), requeue=requeue)
            request = delivery.settling = machine.request(RequestKind.ACK, receipt, frame, subscription.id)
        else:
            machine.write(_settling(command, delivery, requeue=requeue))
        delivery.settled = True
        if self.ack == ACK_CLIENT:
            subscription.acknowledged, subscription.settling = delivery.number, request
        if subscription.copies is not None and machine.is_at_gateway:
            subscription.copies.settle(delivery, self.ack == ACK_CLIENT, request)
        return request


class ProducerCore:
    """Builds SEND frames for one destination and keeps count of what is unconfirmed."""

    __slots__ = ("_heads", "destination", "owner", "session")

    def __init__(self, session: SessionCore, destination: str) -> None:
        if not destination:
            raise CommandError("a producer needs a destination: write /queue/NAME or /topic/NAME")
        self.session = session
        self.destination = destination
        self.owner = SendOwner(session, destination)
        head = f"SEND\ndestination:{escape(destination, VERSION)}\n"
        self._heads = {True: f"{head}persistent:true\n".encode(), False: f"{head}persistent:false\n".encode()}

    def send(
        self,
        body: bytes | str,
        headers: Mapping[str, object] | None,
        persistent: bool,
        priority: int,
        expires_ms: int,
        content_type: str,
        duplicate_id: str,
        wait: bool,
    ) -> Request | None:
        """Send; `SessionCore.may_send` must have been true. None in a transaction, whose commit tells how it ended.

        `wait` = the caller waits for this request; else `owner` counts it and keeps its failure for `flush`.
        """
        session = self.session
        machine = session.machine
        if not wait:
            machine.ledger.check_untold(session)
        parts = [self._heads[persistent], b"_AMQ_DUPL_ID:", escape(duplicate_id, VERSION).encode()]
        if isinstance(body, str):
            body = body.encode()
            if b"\0" in body:
                parts.append(b"\ncontent-length:%d" % len(body))
        else:
            body = as_bytes(body)
            parts.append(b"\ncontent-length:%d" % len(body))
        if headers or content_type or expires_ms or priority != DEFAULT_PRIORITY:
            parts.append(rare_headers(headers, priority, expires_ms, content_type))
        if len(body) > LARGE_BODY_BYTES:
            return self._send_large(parts, body, duplicate_id, None if wait else self.owner)
        if session.transacted:
            transaction = session.current()
            parts += (b"\ntransaction:", transaction.name.encode(), b"\n\n", body, b"\0")
            machine.write(b"".join(parts))
            return None
        receipt = machine.next_receipt()
        parts += (b"\nreceipt:", receipt, b"\n\n", body, b"\0")
        return machine.request(RequestKind.SEND, receipt, b"".join(parts), duplicate_id, None if wait else self.owner)

    def _send_large(
        self, parts: list[bytes], body: bytes, duplicate_id: str, owner: SendOwner | None
    ) -> Request | None:
        """Send the head and the body without joining them."""
        session = self.session
        machine = session.machine
        if session.transacted:
            parts += (b"\ntransaction:", session.current().name.encode(), b"\n\n")
            machine.write(b"".join(parts), body)
            return None
        receipt = machine.next_receipt()
        parts += (b"\nreceipt:", receipt, b"\n\n")
        return machine.request(RequestKind.SEND, receipt, b"".join(parts), duplicate_id, owner, body)


def timed_out(machine: Machine, what: str, timeout_s: float, duplicate_id: str = "") -> CallTimeoutError:
    """The error of a call that waited for `timeout_s`."""
    kind = CallTimeoutError if machine.reaches else FailoverTimeoutError
    where = "the broker did not answer" if machine.reaches else "no broker could be reached"
    causes = "" if machine.reaches else machine.why_not_connected()
    why = f"{what}: {where} within {timeout_s:.3g} s (timeout)"
    return kind(f"{why}: {causes}" if causes else why, duplicate_id=duplicate_id)


def commit_timed_out(timeout_s: float, outcome_id: str) -> AmqError:
    why = f"the broker did not say within {timeout_s:.3g} s what became of the commit {outcome_id}"
    return CommitOutcomeUnknownError(why, outcome_id=outcome_id)


def _credit(subscription: Subscription, credit: int, receipt: str = "") -> bytes:
    headers = [("id", subscription.id), ("credit", str(credit))]
    return encode("CREDIT", [*headers, ("receipt", receipt)] if receipt else headers)


def resolve_timed_out(timeout_s: float, what: str) -> AmqError:
    return TransactionRetryError(f"{what}: no broker answered within {timeout_s:.3g} s; ask again")


def prepare_timed_out(timeout_s: float, xid: str) -> AmqError:
    why = f"the broker did not say within {timeout_s:.3g} s whether {xid} is prepared: see Connection.recover"
    return CommitOutcomeUnknownError(why, outcome_id=xid)


def _settled_before(delivery: Delivery, command: str) -> Request:
    """The request by which `delivery` was settled. Raises CommandError where there was none, or it was no `command`."""
    request = delivery.settling or delivery.subscription.settling
    if request is None:
        raise CommandError(
            "the message was acknowledged or refused before, without wait=True: nothing tells how that ended. "
            "Give wait=True to the first call"
        )
    if not request.frame.startswith(command.encode()):
        before = "refused" if command == "ACK" else "acknowledged"
        raise CommandError(f"{command} of a message that was {before} before: only the first call counts")
    return request


def _settling(
    command: str, delivery: Delivery, transaction: str = "", receipt: str = "", requeue: bool = False
) -> bytes:
    headers = delivery.frame.headers
    lines = f"{command}\nid:{escape(headers.get('ack', ''), VERSION)}\n"
    if transaction:
        lines += f"transaction:{transaction}\n"
    if receipt:
        lines += f"receipt:{receipt}\n"
    if requeue:
        lines += "requeue:true\n"
    return f"{lines}\n\0".encode()


def as_bytes(body: object, cure: str = "bytes or str, json.dumps(…) for example") -> bytes:
    """`body` as bytes; bytes are not copied. Raises CommandError for a type that holds none: write `cure`."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise CommandError(f"a body of type {type(body).__name__} cannot be sent: write {cure}")


def rare_headers(headers: Mapping[str, object] | None, priority: int, expires_ms: int, content_type: str) -> bytes:
    if not isinstance(priority, int) or not 0 <= priority <= 9:
        raise CommandError(f"priority={priority!r}: write a number from 0 to 9")
    lines = []
    if priority != DEFAULT_PRIORITY:
        lines.append(f"\npriority:{priority}")
    if expires_ms:
        lines.append(f"\nexpires:{expires_ms}")
    if content_type:
        lines.append(f"\ncontent-type:{escape(content_type, VERSION)}")
    for name, value in (headers or {}).items():
        if not isinstance(name, str):
            raise CommandError(f"header {name!r}: write its name as a str")
        if name in RESERVED_HEADERS or not name:
            raise CommandError(f"header {name!r} is set by an argument of send or by the client: leave it out")
        lines.append(f"\n{escape(name, VERSION)}:{escape(str(value), VERSION)}")
    return "".join(lines).encode()
