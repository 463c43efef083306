"""Session: what one connection may ask of the broker, and what it has outstanding.

Takes commands in order. Where there is no room, sends wait here (and what must stay behind them), while
acknowledgements, which make some, go on; a producer whose sends wait is not read from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from amq.broker.access import ASKED_ELSEWHERE
from amq.broker.broker import Broker
from amq.broker.events import Connected, Disconnected, Subscribed, Unsubscribed
from amq.broker.names import check_subscribed_to, is_gathered, is_stored, is_temporary, is_topic
from amq.broker.queues.browser import Browser
from amq.broker.queues.limits import EFFECT, Capacity
from amq.broker.queues.queue import Peer, Queue, Subscription
from amq.broker.scheduling.scheduler import SCHEDULING
from amq.broker.sessions.links import NOBODY, Client
from amq.broker.topics.wildcards import WildcardSubscription
from amq.broker.transactions import bulk
from amq.broker.transactions.transaction import Transaction, check_outcome_id, memory_bytes, tell_outcome
from amq.broker.waiters import Call, Reply, Unasked
from amq.errors import AmqError, CommandError, TransactionRolledBackError
from amq.journal.batch import Waiter
from amq.message import Message, Shared
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    Ack,
    Begin,
    Command,
    Commit,
    CommitBatch,
    Credit,
    Disconnect,
    Finish,
    Lease,
    Malformed,
    Nack,
    Prepare,
    Send,
    SendMany,
    SettleLeases,
    Subscribe,
    Unsubscribe,
)

STALLED_BYTES_MAX = 16 << 20  # sends that wait for memory on a connection that must be read on for its acknowledgements


class Session:
    """One connection's subscriptions, transactions and waiting commands."""

    def __init__(self, broker: Broker, peer: Peer, temporary: str = "", client: Client = NOBODY) -> None:
        """`temporary` = what the names of this connection's temporary destinations begin with, "" = it has none."""
        self._broker = broker
        self._peer = peer
        self._temporary = temporary
        self._client = client
        self._is_silent = bool(client.instance)  # has it still to say something?
        self._id = temporary.removesuffix(".")
        broker.links.open(self, client)
        if temporary:
            broker.temporaries.open(temporary)
        if Connected in broker.events.heard:
            broker.events.tell(Connected(self._id, client.user, client.id))
        self._subscriptions: dict[str, Subscription] = {}
        self._transactions: dict[str, Transaction] = {}
        self._stalled: deque[Command] = deque()
        self._stalled_bytes = 0
        self._room: Capacity | None = None  # the first of `_stalled` waits for it
        self._closed = False
        self._writable = True
        self._unasked = Unasked(peer)
        self._sendable = broker.access.sendable(client.user)

    def handle(self, commands: list[Command]) -> None:
        """Carry out `commands` in order. `Peer.fail` is told of each error, also of one that is our mistake."""
        if self._is_silent and commands:
            self._is_silent = False
            self._broker.links.claim(self, self._client)
        handlers = self._HANDLERS
        for command in commands:
            if self._closed:
                return
            try:
                if self._stalled and not (command.__class__ in (Ack, Nack) and not command.transaction):
                    self._stall(command)
                else:
                    if command.__class__ not in ASKED_ELSEWHERE:
                        self._broker.access.let_in(self._client.user, command)
                    handlers[command.__class__](self, command)
            except Exception as error:  # noqa: BLE001 (the peer hears of it, and decides what ends with it)
                if isinstance(error, AmqError):  # our own mistake ends the connection
                    self._spoil(command)
                self._peer.fail(error, command.receipt)
        self._broker.wake()

    def close(self) -> None:
        """The connection is gone: what it held goes back to the queues."""
        if self._closed:
            return
        self._closed = True
        if self._room is not None:
            self._broker.limits.forget(self, self._room)
        for transaction in list(self._transactions.values()):
            transaction.roll_back()
        self._transactions.clear()
        for subscription in list(self._subscriptions.values()):
            self._end(subscription)
        self._subscriptions.clear()
        self._broker.temporaries.close(self._temporary)
        self._broker.links.close(self, self._client)
        if Disconnected in self._broker.events.heard:
            self._broker.events.tell(Disconnected(self._id))
        self._stalled.clear()
        self._broker.wake()

    def steal(self, error: AmqError) -> None:
        """The client has another connection, in place of this one: what this one holds goes back to the queues."""
        self._peer.fail(error)

    def _spoil(self, command: Command) -> None:
        """`command` failed: a transaction of which it would have been a part never commits without it."""
        if isinstance(command, Send | SendMany | Ack) and command.transaction in self._transactions:
            self._transactions.pop(command.transaction).roll_back()

    def set_writable(self, writable: bool) -> None:
        """The socket has room (again), or has not: a slow consumer gets nothing until it reads."""
        if self._closed or writable == self._writable:
            return
        self._writable = writable
        for subscription in self._subscriptions.values():
            if writable:
                subscription.make_ready()
                self._broker.dirty[subscription.queue] = None
            else:
                subscription.make_unready()
        if writable:
            self._broker.wake()

    def expire_transactions(self, now: float) -> None:
        """Roll back what was not used for longer than the limit."""
        limit_s = self._broker.config.transaction_timeout_s
        for transaction in list(self._transactions.values()):
            if now - transaction.used_at > limit_s and not self._closed:
                del self._transactions[transaction.name]
                transaction.roll_back()
                self._peer.fail(
                    TransactionRolledBackError(
                        f"transaction {transaction.name} was idle for more than {limit_s:g} s and was rolled back",
                        code="TRANSACTION_TIMEOUT",
                    ),
                    "",
                )

    def unstall(self) -> None:
        """There is room again: go on where the producer was stopped."""
        stalled, self._stalled = self._stalled, deque()
        self._room = None
        self._stalled_bytes = 0
        self._peer.resume_reading()
        self.handle(list(stalled))

    def read_on(self) -> None:
        """No room yet; but what was delivered meanwhile may be acknowledged, and that makes some."""
        if self._may_read_on():
            self._peer.resume_reading()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _send(self, command: Send) -> None:
        broker, message = self._broker, command.message
        if message.destination not in self._sendable:
            broker.access.let_in(self._client.user, command)
        properties = message.properties
        if properties is not None and not SCHEDULING.isdisjoint(properties) and self._send_later(command):
            return
        queue = broker.state.queues.get(message.destination)
        if queue is None or queue.is_diverted:
            route = broker.routing.of(message.destination)
            if route != (message.destination,):
                self._send_to_many(command, route)
                return
            if not is_stored(message.destination):
                self._publish(command)
                return
        if (
            broker.memory.taken_bytes >= broker.memory.limit_bytes
            or (queue is not None and queue.stored_bytes + queue.pending_bytes >= queue.limit_bytes)
            or broker.journal.at_limit
        ):
            room = broker.limits.capacity_for(message, queue, bool(command.transaction))
            if room is not None:
                self._stall(command, room)
                return
        message.timestamp_ms = broker.clock.wall_ms()
        if command.transaction:
            self._add_to_transaction(command, [message])
        else:
            broker.store(message, Reply(self._peer, command.receipt) if command.receipt else self._unasked)

    def _send_many(self, command: SendMany) -> None:
        if not bulk.add(
            self._broker, self._broker.routing, self._transaction(command.transaction), command
        ):
            self.handle([Send(message, "", command.transaction) for message in command.messages])

    def _send_later(self, command: Send) -> bool:
        """A message for later, or one that manages such messages. False: it is neither after all."""
        if self._broker.scheduler.manage(command.message, self._asked(command)):
            return True
        messages = self._broker.scheduler.scheduled(command.message)
        if messages and not self._waits_for_memory(command):
            self._send_together(command, messages)
        return bool(messages)

    def _publish(self, command: Send) -> None:
        """To a topic: all its subscribers get it."""
        broker, message = self._broker, command.message
        if self._waits_for_memory(command):
            return
        message.timestamp_ms = broker.clock.wall_ms()
        message.shared = Shared(self._peer)
        if command.transaction:
            self._add_to_transaction(command, [message])
        elif (room := broker.routing.publish(message, self._waiter(command))) is not None:
            self._stall(command, room)

    def _send_to_many(self, command: Send, route: tuple[str, ...]) -> None:
        """To all destinations of `route`, or to none."""
        broker, message = self._broker, command.message
        if self._waits_for_memory(command):
            return
        message.timestamp_ms = broker.clock.wall_ms()
        self._send_together(command, broker.routing.copies(message, route, self._peer))

    def _send_together(self, command: Send, messages: list[Message]) -> None:
        """All of `messages`, which stand for the one of `command`, or none."""
        if command.transaction:
            self._add_to_transaction(command, messages)
        elif (room := self._broker.routing.send(messages, self._waiter(command))) is not None:
            self._stall(command, room)

    def _waits_for_memory(self, command: Send) -> bool:
        broker = self._broker
        if not broker.memory.is_full:
            return False
        room = broker.limits.capacity_for(command.message, None, in_transaction=True)
        if room is not None:
            self._stall(command, room)
        return room is not None

    def _stall(self, command: Command, room: Capacity | None = None) -> None:
        """`command` waits: for `room`, or only behind others that do."""
        self._stalled.append(command)
        if room is not None:
            self._room = room
            self._broker.limits.wait(self, room, bool(self._subscriptions))
        size = bulk.held_bytes(command)
        self._stalled_bytes += size
        if not self._may_read_on():
            self._peer.pause_reading()
        elif self._stalled_bytes > STALLED_BYTES_MAX:
            assert self._room is not None
            error = self._broker.limits.why_waiting(self._room)
            self._stalled.pop()  # what is rejected is not carried out later
            self._stalled_bytes -= size
            if not self._stalled:
                self._broker.limits.forget(self, self._room)
                self._room = None
            raise error

    def _ack(self, command: Ack) -> None:
        subscription = self._subscriptions.get(command.subscription) or self._holder(command)
        transaction = self._transaction(command.transaction) if command.transaction else None
        settled = subscription.settle(command.seq) if subscription is not None else []
        if subscription is None or not settled:
            self._settle_other(command, subscription)
            return
        if isinstance(subscription, WildcardSubscription):
            self._settle(command, subscription, settled, transaction)
            return
        broker, queue = self._broker, subscription.queue
        if transaction is not None:
            transaction.acks.extend((subscription, message) for message in settled)
            subscription.in_transactions += len(settled)
            self._confirm_now(command)
        else:
            for message in settled:
                broker.consumed(queue, message)
            if command.receipt:
                broker.journal.confirm(Reply(self._peer, command.receipt))
        if not subscription.is_ready and self._writable:
            subscription.make_ready()
        broker.dirty[queue] = None

    def _nack(self, command: Nack) -> None:
        subscription = self._subscriptions.get(command.subscription) or self._holder(command)
        transaction = self._transaction(command.transaction) if command.transaction else None
        settled = subscription.settle(command.seq) if subscription is not None else []
        if subscription is None or not settled:
            self._settle_other(command, subscription)
            return
        self._settle(command, subscription, settled, transaction)

    def _settle(
        self, command: Ack, subscription: Subscription, settled: list[Message], transaction: Transaction | None
    ) -> None:
        """A NACK, or an ACK of a message from any of several queues."""
        broker = self._broker
        for message in settled:
            holder = subscription.holder(message) if isinstance(subscription, WildcardSubscription) else subscription
            if transaction is not None:
                if isinstance(command, Nack):
                    (transaction.requeued if command.requeue else transaction.nacks).append((holder, message))
                else:
                    transaction.acks.append((holder, message))
                holder.in_transactions += 1
            elif isinstance(command, Nack):
                broker.redelivery.give_back(holder.queue, [message], [message.seq], refused=not command.requeue)
            else:
                broker.consumed(holder.queue, message)
            broker.dirty[holder.queue] = None
        if transaction is not None:
            self._confirm_now(command)
        elif command.receipt:
            # The body of a large message that moves to the dead-letter queue is read first.
            broker.pager.after_bodies(partial(broker.journal.confirm, Reply(self._peer, command.receipt)))
        if self._writable:
            subscription.make_ready()

    def _holder(self, command: Ack) -> Subscription | None:
        """Whichever subscription holds the message, where the command does not say (STOMP 1.0)."""
        if command.subscription:
            return None
        return next((each for each in self._subscriptions.values() if command.seq in each.unacked), None)

    def _settle_other(self, command: Ack, subscription: Subscription | None) -> None:
        """An acknowledgement of a message that no consumer holds: it was merely browsed, or is unknown."""
        if isinstance(subscription, Browser):
            if isinstance(command, Nack):
                raise CommandError("a browsed message cannot be refused: consume it", code="NOT_SUPPORTED")
            if subscription.seen(command.seq):
                self._broker.dirty[subscription.queue] = None
                self._confirm_now(command)
                return
        raise CommandError(
            f"{type(command).__name__.upper()} of a message that this connection does not hold: it was acknowledged "
            "before, its subscription ended or has ack mode auto, or it was delivered on an earlier connection",
            code="UNKNOWN_DELIVERY",
        )

    def _subscribe(self, command: Subscribe) -> None:
        broker = self._broker
        if not command.browser:
            check_subscribed_to(command.destination)
        if command.id in self._subscriptions:
            raise CommandError(f"this connection has a subscription {command.id!r} already: use another id")
        if command.browser:
            prefetch = command.prefetch or broker.config.prefetch_size
            subscription: Subscription = broker.leasing.browser(command, self._peer, prefetch, self._client.id)
            queue = subscription.queue
        elif is_gathered(command.destination) and not command.subscription_name:
            subscription = broker.wildcards.subscribe(command, self._peer)
            queue = subscription.queue
        else:
            queue = self._source(command)
            if queue.name in broker.replaying:
                self._stall(command, queue.name)
                return
            subscription = Subscription(command, queue, self._peer, command.prefetch or queue.options.prefetch_size)
            queue.join(subscription, broker)
        self._subscriptions[command.id] = subscription
        if Subscribed in broker.events.heard and not command.browser:
            broker.events.tell(Subscribed(self._id, command.id, command.destination))
        if self._writable:
            subscription.make_ready()
        broker.dirty[queue] = None
        if command.subscription_name and command.receipt:
            broker.journal.confirm(Reply(self._peer, command.receipt))
        else:
            self._confirm_now(command)

    def _source(self, command: Subscribe) -> Queue:
        """Where the messages of the subscription that `command` asks for will wait. Raises AmqError."""
        broker, name = self._broker, command.destination
        if command.subscription_name:
            return broker.durables.subscribe(command, self._client.id, self._peer)
        if is_temporary(name):
            broker.temporaries.check_consumer(name, self._temporary)
            queue = broker.temporaries.provide(name)
            return queue if queue is not None else broker.topics.subscribe(command)
        return broker.topics.subscribe(command) if is_topic(name) else broker.state.queue(name)

    def _credit(self, command: Credit) -> None:
        self._broker.pulling.grant(
            self._subscriptions.get(command.id), command, self._waiter(command), self._writable
        )

    def _unsubscribe(self, command: Unsubscribe) -> None:
        durables, subscription = self._broker.durables, self._subscriptions.get(command.id)
        if command.subscription_name:  # an error in it shows before the consumer ends
            record = durables.to_end(command.subscription_name, self._client.id, subscription)
            if subscription is not None:
                self._end(self._subscriptions.pop(command.id))
            durables.end(record, self._asked(command))
            return
        if subscription is None:
            raise CommandError(f"this connection has no subscription {command.id!r}")
        self._end(self._subscriptions.pop(command.id))
        if command.receipt:
            self._broker.journal.confirm(Reply(self._peer, command.receipt))

    def _begin(self, command: Begin) -> None:
        if command.transaction in self._transactions:
            raise CommandError(f"transaction {command.transaction!r} is open already")
        self._transactions[command.transaction] = self._broker.commits.begin(command.transaction)
        self._confirm_now(command)

    def _commit(self, command: Commit | Prepare) -> None:
        if isinstance(command, Commit) and command.outcome_id:
            check_outcome_id(command.outcome_id)
        transaction = self._transactions.get(command.transaction)
        if transaction is not None:
            if not self._broker.readying.is_ready(transaction, isinstance(command, Prepare)):
                self._stall(command, transaction)
                return
            try:
                room = self._broker.limits.capacity_to_commit(transaction, isinstance(command, Prepare))
            except TransactionRolledBackError:
                del self._transactions[command.transaction]
                transaction.roll_back()
                raise
            if room is not None:
                self._stall(command, room)
                return
            del self._transactions[command.transaction]
        if isinstance(command, Prepare):
            self._broker.two_phase.prepare(transaction, command, self._waiter(command))
        elif transaction is not None:
            self._broker.commits.commit(transaction, self._waiter(command), command.outcome_id)
        elif command.outcome_id:
            tell_outcome(self._broker, command.outcome_id, command.transaction, self._waiter(command))
        else:
            self._transaction(command.transaction)

    def _abort(self, command: Abort) -> None:
        self._transaction(command.transaction).roll_back()
        del self._transactions[command.transaction]
        self._confirm_now(command)

    def _disconnect(self, command: Disconnect) -> None:
        self.close()
        journal = self._broker.journal
        if command.receipt:
            journal.confirm(Call(partial(self._farewell, command.receipt), self._peer.fail))
        else:
            self._peer.close()

    def _farewell(self, receipt: str) -> None:
        """All before the DISCONNECT is committed."""
        self._peer.confirm(receipt)
        self._peer.close()

    def _malformed(self, command: Malformed) -> None:
        self._peer.fail(command.error, command.receipt)

    def _finish(self, command: Finish) -> None:
        self._broker.two_phase.finish(command, self._waiter(command))

    def _commit_batch(self, command: CommitBatch) -> None:
        self._broker.two_phase.commit_batch(command, self._waiter(command))

    def _abort_batch(self, command: AbortBatch) -> None:
        self._broker.two_phase.abort_batch(command, self._waiter(command))

    def _lease(self, command: Lease) -> None:
        if self._broker.is_taking_effect:  # it would get a part of what comes together
            self._stall(command, EFFECT)
            return
        self._broker.leasing.lease(command, self._waiter(command), self._client.id)

    def _settle_leases(self, command: SettleLeases) -> None:
        self._broker.leasing.settle(command, self._waiter(command), self._client.id)

    # One table for all sessions. With bound methods in it a session would refer to itself, and stay in memory when its
    # connection has ended: the garbage collector rarely looks at what is old.
    _HANDLERS: ClassVar[dict[type, Callable[[Session, Any], None]]] = {
        Send: _send,
        SendMany: _send_many,
        Ack: _ack,
        Nack: _nack,
        Subscribe: _subscribe,
        Credit: _credit,
        Unsubscribe: _unsubscribe,
        Begin: _begin,
        Commit: _commit,
        Abort: _abort,
        Prepare: _commit,
        Finish: _finish,
        CommitBatch: _commit_batch,
        AbortBatch: _abort_batch,
        Lease: _lease,
        SettleLeases: _settle_leases,
        Disconnect: _disconnect,
        Malformed: _malformed,
    }

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _transaction(self, name: str) -> Transaction:
        transaction = self._transactions.get(name)
        if transaction is None:
            raise CommandError(f"there is no open transaction {name!r} on this connection", code="UNKNOWN_TRANSACTION")
        transaction.used_at = self._broker.clock.monotonic()
        return transaction

    def _add_to_transaction(self, command: Send, messages: list[Message]) -> None:
        transaction = self._transaction(command.transaction)
        bulk.take_memory(self._broker, transaction, memory_bytes(messages))
        transaction.add(messages)
        self._confirm_now(command)

    def _holds_deliveries(self) -> bool:
        return any(subscription.unacked for subscription in self._subscriptions.values())

    def _may_read_on(self) -> bool:
        """May the client be read while its commands wait? Its acknowledgements may make the room that they wait for."""
        return not isinstance(self._room, Transaction) and self._holds_deliveries()

    def _asked(self, command: Command) -> Waiter | None:
        """The waiter for the answer to `command`, None = nobody asks for one."""
        return Reply(self._peer, command.receipt) if command.receipt else None

    def _waiter(self, command: Command) -> Waiter:
        """The waiter for what becomes of `command`: also where nobody asks, a failure is told."""
        return Reply(self._peer, command.receipt) if command.receipt else self._unasked

    def _confirm_now(self, command: Command) -> None:
        if command.receipt:
            self._peer.confirm(command.receipt)

    def _end(self, subscription: Subscription) -> None:
        """Give back what `subscription` holds. Only the oldest delivery counts as failed: a consumer works on one
        message at a time, and what was merely prefetched behind it must not end in the dead-letter queue.
        """
        if isinstance(subscription, Browser):
            subscription.end()
            return
        if isinstance(subscription, WildcardSubscription):
            subscription.make_unready()
            self._broker.wildcards.unsubscribe(subscription)
            oldest = next(iter(subscription.unacked), None)
            members = list(subscription.members.values())
            subscription.members.clear()  # they refer to it
            for member in members:
                self._leave(member, oldest)
        else:
            self._leave(subscription, next(iter(subscription.unacked), None))
        if Unsubscribed in self._broker.events.heard:
            self._broker.events.tell(Unsubscribed(self._id, subscription.id, subscription.queue.name))

    def _leave(self, subscription: Subscription, oldest: int | None) -> None:
        """`oldest` = seq of the delivery that counts as failed, if `subscription` holds it."""
        subscription.make_unready()
        self._broker.state.emptied[subscription.queue] = None
        held = list(subscription.unacked.values())
        subscription.unacked = {}
        subscription.ended = True
        subscription.queue.leave(subscription)
        self._broker.dirty[subscription.queue] = None
        if held:
            failed = [message.seq for message in held if message.seq == oldest]
            self._broker.redelivery.give_back(subscription.queue, held, failed)
