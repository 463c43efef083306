"""Session: what a client may ask of the broker in one session, and what it has outstanding there.

Takes commands in order. Where there is no room, sends wait here (and what must stay behind them), while
acknowledgements, which make some, go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from amq.broker.actions import Action
from amq.broker.events import Subscribed, Unsubscribed
from amq.broker.names import check_subscribed_to, is_stored, is_temporary, is_topic
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import Queue, Subscription
from amq.broker.queues.rooms import EffectRoom, ReadyRoom, ReplayRoom, Room
from amq.broker.scheduling.scheduler import SCHEDULING
from amq.broker.sessions import permitted
from amq.broker.sessions.connected import SessionHost
from amq.broker.sessions.passed_on import PASSED_ON
from amq.broker.topics.wildcards import WildcardSubscription
from amq.broker.transactions import bulk, outcomes
from amq.broker.transactions.rights import Rights
from amq.broker.transactions.transaction import Transaction, memory_bytes
from amq.broker.waiters import Call, Replies, Reply, Unasked
from amq.core.destination import TEMPORARY_QUEUE_SCHEME, is_wildcard
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.message import Message, Sharing
from amq.core.ownership import owned
from amq.journal.batch import Waiter
from amq.journal.records.message import Run
from amq.protocols.commands import (
    NOT_HELD,
    Abort,
    Begin,
    CloseProducer,
    CloseSession,
    Command,
    Commit,
    Credit,
    Decide,
    DeleteDestination,
    Disconnect,
    Extend,
    Failure,
    GoOn,
    Invalid,
    LeaseMessages,
    Leave,
    ListPrepared,
    Locate,
    MakeSure,
    MakeTemporary,
    Malformed,
    Nothing,
    OpenProducer,
    OpenSession,
    Outcome,
    Prepare,
    PreparePart,
    RemoveTemporary,
    Scope,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    SettleAgain,
    SettleIfHeld,
    SettleRun,
    SettleSet,
    Subscribe,
    Transfer,
    Unsubscribe,
)

UNKNOWN_DELIVERY = "UNKNOWN_DELIVERY"  # code: the connection does not hold it
STALLED_BYTES_MAX = 16 << 20  # sends that wait for memory on a connection that must be read on for its acknowledgements


class Session:
    """Consumers, transactions and waiting commands. `number` is unique in its connection."""

    def __init__(self, connection: SessionHost[Session], number: int) -> None:
        self.number = number
        self.is_open = True
        self.is_held_up = False  # commands wait here, or it is not open: what comes is not carried out now
        self.peer = connection.peer
        self._stalled: deque[Command] = deque()
        self._connection = connection
        self._broker = connection.broker
        self._client = connection.client
        self._sendable = connection.sendable
        self._scope = owned(self.user, "")  # is before each id that the client gives to a message
        self._subscriptions: dict[str, Subscription] = {}
        self._transactions = connection.transactions
        self._stalled_bytes = 0
        self._room: Room | None = None  # the first of `_stalled` waits for it
        self._unasked = Unasked(self.peer, number)

    @property
    def user(self) -> str:
        """The name of the one who has logged in, "" = nobody."""
        return self._client.user.name

    @property
    def known_as(self) -> str:
        """A name that each store has for this session of a gateway's client, "" = it is in one store."""
        return f"{self._connection.temporary}{self.number}" if self._client.since_ms else ""

    def close(self) -> None:
        """Give back to the queues what it holds. Nothing more is carried out."""
        self.is_open = False
        self.is_held_up = True
        if self._room is not None:
            self._broker.limits.forget(self, self._room)
            self._room = None
        ending = {id(command) for command in self._stalled if isinstance(command, Commit | Prepare)}
        for transaction in list(self._transactions.values()):
            if transaction.session == self.number or id(transaction.ending) in ending:
                del self._transactions[transaction.name]
                transaction.roll_back()
        for subscription in list(self._subscriptions.values()):
            self._end(subscription)
        self._subscriptions.clear()
        self._stalled.clear()
        self._forget_stalled_bytes()
        if not self._connection.is_closed:
            self._connection.resume(self.number)
        self._broker.wake()

    def spoil(self, command: Command) -> None:
        """`command` failed: a transaction of which it would have been a part never commits without it."""
        if not isinstance(command, Send | SendMany | Settle | Invalid | Commit | Prepare):
            return
        transaction = self._transactions.get(command.transaction)
        if transaction is not None and isinstance(command, Commit | Prepare):
            transaction.let_go_on(command)
        elif transaction is not None and transaction.ending is None:
            del self._transactions[command.transaction]
            transaction.roll_back()

    def may(self, action: Action, name: str) -> bool:
        """May its user?"""
        return self._broker.access.may(self._client.user, action, name)

    def check_again(self) -> None:
        """There are other rules: consumers that they do not allow end."""
        broker, mine = self._broker, list(self._subscriptions.values())
        permitted.check_again(self, broker.access, broker.wildcards, self._client.user, mine)

    def end_with(self, subscription: Subscription, error: Exception) -> None:
        """That consumer cannot go on: it ends, and the client is told."""
        if self._subscriptions.get(subscription.id) is subscription:
            self._end(self._subscriptions.pop(subscription.id))
            self._peer_fails(error, Scope.CONSUMER, subscription.id)

    def _peer_fails(self, error: Exception, scope: Scope, consumer: str = "") -> None:
        self.peer.fail(Failure(error, scope, None, self.number, consumer))

    def set_writable(self, writable: bool) -> None:
        """The socket has room, or has not."""
        for subscription in self._subscriptions.values():
            if writable:
                subscription.make_ready()
                self._broker.dirty[subscription.queue] = None
            else:
                subscription.make_unready()

    def expire_transactions(self, now: float) -> None:
        """Roll back what was not used for longer than the limit."""
        limit_s = self._broker.config.transaction_timeout_s
        for transaction in [each for each in self._transactions.values() if each.session == self.number]:
            if now - transaction.used_at > limit_s and not self._connection.is_closed:
                del self._transactions[transaction.name]
                transaction.roll_back()
                self._peer_fails(
                    TransactionRolledBackError(
                        f"transaction {transaction.name} was idle for more than {limit_s:g} s and was rolled back",
                        code="TRANSACTION_TIMEOUT",
                    ),
                    Scope.COMMAND,
                )

    def may_pass(self, command: Command) -> bool:
        """May `command` be carried out while others wait here? An acknowledgement, which makes room, may, and so
        may the credit of a consumer."""
        if isinstance(command, Settle):
            return not command.transaction
        return isinstance(command, Credit | Extend) and command.id in self._subscriptions

    def unstall(self) -> None:
        """There is room again: go on where the producer was stopped."""
        stalled, self._stalled = self._stalled, deque()
        self.is_held_up = False
        self._room = None
        self._forget_stalled_bytes()
        self._connection.resume(self.number)
        self.carry_out(stalled)

    def carry_out(self, commands: Iterable[Command]) -> None:
        """In order, as if they came now."""
        self._connection.handle(list(commands), self)
        self._broker.wake()

    def _forget_stalled_bytes(self) -> None:
        self._connection.stalled_bytes -= self._stalled_bytes
        self._stalled_bytes = 0

    def read_on(self) -> None:
        """No room yet; but what was delivered meanwhile may be acknowledged, and that makes some."""
        if self._may_read_on():
            self._connection.resume(self.number)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _send(self, command: Send) -> None:
        broker, message = self._broker, command.message
        if message.destination not in self._sendable:
            broker.access.let_in(self._client.user, command)
        if message.duplicate_id and not message.duplicate_id.startswith(self._scope):
            message.duplicate_id = self._scope + message.duplicate_id
        properties = message.properties
        if (
            properties is not None
            and not SCHEDULING.isdisjoint(properties)
            and self._send_later(command, (message.destination,))
        ):
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
            room = broker.limits.room_for(message, queue, bool(command.transaction))
            if room is not None:
                self.stall(command, room)
                return
        connection = self._connection
        if not connection.now_ms:  # those that come in one read have one time
            connection.now_ms = broker.clock.wall_ms()
        message.timestamp_ms = connection.now_ms
        if command.transaction:
            self._add_to_transaction(command, [message])
        else:
            receipt = command.receipt
            broker.store(message, self._unasked if receipt is None else Reply(self.peer, receipt, self.number))

    def _send_run(self, command: SendRun) -> bool:
        """All of it at once where the queue is there and takes it. False: one by one, please."""
        broker, like, bodies = self._broker, command.like, command.bodies
        queue = broker.state.queues.get(like.destination)
        if queue is None or queue.is_diverted or like.destination not in self._sendable:
            return False
        if like.properties is not None and not SCHEDULING.isdisjoint(like.properties):
            return False
        like.timestamp_ms = self._now_ms()
        receipts = command.receipts if command.receipts is not None else [None] * len(bodies)
        run = Run(like, bodies, natives=command.natives)
        if not broker.store_run(run, Replies(self.peer, receipts, self.number)):
            return False
        self._connection.traffic.received += len(bodies)
        return True

    def _now_ms(self) -> int:
        """The wall clock: one time for all that comes in one read."""
        connection = self._connection
        if not connection.now_ms:
            connection.now_ms = self._broker.clock.wall_ms()
        return connection.now_ms

    def _send_to_all(self, command: SendToMany) -> None:
        message = command.message
        if message.duplicate_id and not message.duplicate_id.startswith(self._scope):
            message.duplicate_id = self._scope + message.duplicate_id
        properties = message.properties
        is_scheduled = properties is not None and not SCHEDULING.isdisjoint(properties)
        if is_scheduled and self._send_later(command, command.destinations):
            return
        self._send_to_many(command, self._broker.routing.of_all(command.destinations))

    def _send_many(self, command: SendMany) -> None:
        transaction = self._transaction(command.transaction)
        if bulk.add(self._broker, self._broker.routing, transaction, command):
            self._connection.traffic.received += len(command.bodies)
        else:
            self.carry_out([Send(message, None, command.transaction) for message in command.messages])

    def _send_later(self, command: Send, destinations: tuple[str, ...]) -> bool:
        """A message for later, or one that manages such messages. False: it is neither after all."""
        if self._broker.scheduler.manage(command.message, self._asked(command)):
            return True
        messages = self._broker.scheduler.scheduled(command.message, destinations)
        if messages and not self._waits_for_memory(command):
            self._send_together(command, messages)
        return bool(messages)

    def _publish(self, command: Send) -> None:
        """Send to a topic: all its subscribers get the message."""
        broker, message = self._broker, command.message
        if self._client.exclusive and is_temporary(message.destination):
            broker.temporaries.check_there(message.destination)
        if self._waits_for_memory(command):
            return
        message.timestamp_ms = broker.clock.wall_ms()
        message.shared = Sharing(self.peer)
        if command.transaction:
            self._add_to_transaction(command, [message])
        elif (room := broker.routing.publish(message, self._waiter(command))) is not None:
            self.stall(command, room)

    def _send_to_many(self, command: Send, route: tuple[str, ...]) -> None:
        """To all destinations of `route`, or to none."""
        broker, message = self._broker, command.message
        if self._waits_for_memory(command):
            return
        message.timestamp_ms = broker.clock.wall_ms()
        self._send_together(command, broker.routing.copies(message, route, self.peer))

    def _send_together(self, command: Send, messages: list[Message]) -> None:
        """All of `messages`, which stand for the one of `command`, or none."""
        if command.transaction:
            self._add_to_transaction(command, messages)
        elif (room := self._broker.routing.send(messages, self._waiter(command))) is not None:
            self.stall(command, room)

    def _waits_for_memory(self, command: Send) -> bool:
        broker = self._broker
        if not broker.memory.is_full:
            return False
        room = broker.limits.room_for(command.message, None, in_transaction=True)
        if room is not None:
            self.stall(command, room)
        return room is not None

    def stall(self, command: Command, room: Room | None = None) -> None:
        """`command` waits: for `room`, or only behind others that do. Raises CommandError where the session is not
        open."""
        if not self.is_open:
            raise CommandError(f"session {self.number} is not open", code="UNKNOWN_SESSION")
        connection = self._connection
        self._stalled.append(command)
        self.is_held_up = True
        if room is not None:
            self._room = room
            self._broker.limits.wait(self, room, bool(self._subscriptions))
        size = bulk.held_bytes(command)
        self._stalled_bytes += size
        connection.stalled_bytes += size
        if not self._may_read_on():
            connection.pause(self.number)
        elif connection.stalled_bytes > STALLED_BYTES_MAX:
            assert self._room is not None
            error = self._room.lacking()
            self._stalled.pop()  # what is rejected is not carried out later
            self._stalled_bytes -= size
            connection.stalled_bytes -= size
            if not self._stalled:
                self.is_held_up = False
                self._broker.limits.forget(self, self._room)
                self._room = None
            raise error

    def _settle(self, command: Settle) -> None:
        """One delivery, accepted, as nearly always: the hot path. All else goes the general way."""
        if command.first is not None or command.outcome is not Outcome.ACCEPTED:
            self._settle_several(command)
            return
        subscription = self._subscriptions.get(command.consumer) or self._holder(command)
        transaction = self._transaction(command.transaction) if command.transaction else None
        if subscription is None or subscription.__class__ is not Subscription:
            self._settle_together(command, subscription, [command.seq], transaction)
            return
        message = subscription.singles.pop(command.seq, None)
        if message is None and subscription.bundles:
            message = subscription.unacked.pop(command.seq, None)
        if message is None:
            raise self._unknown(command)
        self._connection.traffic.acknowledged += 1
        subscription.credit += subscription.refund
        broker, queue = self._broker, subscription.queue
        if transaction is not None:
            transaction.acks.append((subscription, message))
            subscription.in_transactions += 1
            self._confirm_now(command)
        else:
            broker.consumed(queue, message)
            if command.receipt is not None:
                broker.journal.open.confirms.append((Reply(self.peer, command.receipt, self.number), None))
        if not subscription.is_ready and self._connection.is_writable:
            subscription.make_ready()
        broker.dirty[queue] = None

    def _settle_run(self, command: SettleRun) -> bool:
        """All of it at once where the consumer holds each of them once. False: one by one, please."""
        subscription, seqs = self._subscriptions.get(command.consumer), command.seqs
        if subscription is None or subscription.__class__ is not Subscription:
            return False
        broker, queue = self._broker, subscription.queue
        together = None
        if subscription.bundles and len(seqs) > len(subscription.singles):
            together = subscription.settle_bundles(seqs)
        if together is not None:
            messages, bundles = together
        else:
            unacked, different = subscription.singles, set(seqs)
            if subscription.bundles and not unacked.keys() >= different:
                unacked = subscription.unacked
            if not unacked.keys() >= different or len(different) < len(seqs):
                return False
            messages, bundles = list(map(unacked.pop, seqs)), []
        self._connection.traffic.acknowledged += len(seqs)
        subscription.credit += subscription.refund * len(seqs)
        if messages:
            broker.consumed_all(queue, messages)
        if bundles:
            queue.settle_bundles(bundles, broker)
        if not subscription.is_ready and self._connection.is_writable:
            subscription.make_ready()
        broker.dirty[queue] = None
        return True

    def _settle_several(self, command: Settle) -> None:
        subscription = self._subscriptions.get(command.consumer) or self._holder(command)
        transaction = self._transaction(command.transaction) if command.transaction else None
        if isinstance(command, SettleSet):
            seqs = command.seqs
        elif command.first is None or subscription is None:
            seqs = [command.seq]
        else:
            seqs = subscription.between(command.first, command.seq)
        self._settle_together(command, subscription, seqs, transaction)

    def _settle_again(self, command: SettleAgain) -> None:
        subscription, broker = self._subscriptions.get(command.consumer), self._broker
        if subscription.__class__ is not Subscription:
            raise self._unknown(command)
        queue, seqs = subscription.queue, {command.seq}
        if command.seq in subscription.unacked:
            self._settle(command)
            return
        if not broker.has_left(queue, command.seq):
            waiting = queue.take_out(seqs) or broker.state.take_from_disk(queue, seqs)
            if not waiting:
                raise self._unknown(command)
            self._connection.traffic.acknowledged += 1
            broker.consumed_all(queue, waiting)
        broker.journal.confirm(self._waiter(command))

    def _settle_if_held(self, command: SettleIfHeld) -> None:
        try:
            self._settle(command)
        except CommandError as error:
            if error.code != UNKNOWN_DELIVERY:
                raise
            self.peer.confirm(command.receipt, NOT_HELD)

    def _settle_together(
        self, command: Settle, subscription: Subscription | None, seqs: Sequence[int], transaction: Transaction | None
    ) -> None:
        """All of `seqs`, or none."""
        broker, outcome = self._broker, command.outcome
        browses = isinstance(subscription, Browser)
        if transaction is not None and outcome in (Outcome.RETURNED, Outcome.EXPIRED):
            raise CommandError(f"{outcome.name} cannot be part of a transaction: send it outside", code="NOT_SUPPORTED")
        if browses and outcome in (Outcome.REJECTED, Outcome.FAILED):
            raise CommandError("a browsed message cannot be refused: consume it", code="NOT_SUPPORTED")
        settled = subscription.settle(seqs) if subscription is not None and seqs else []
        if subscription is None or not settled:
            raise self._unknown(command)
        if browses:  # it held nothing: there is room for more
            broker.dirty[subscription.queue] = None
            self._confirm_now(command)
            return
        if outcome is Outcome.ACCEPTED:
            self._connection.traffic.acknowledged += len(settled)
        by_holder: dict[Subscription, list[Message]] = {}
        for message in settled:
            holder = subscription.holder(message) if isinstance(subscription, WildcardSubscription) else subscription
            by_holder.setdefault(holder, []).append(message)
        for holder, messages in by_holder.items():
            if transaction is not None:
                transaction.settle(holder, messages, outcome)
            else:
                self._carry_out(holder, messages, outcome, command.reason)
            broker.dirty[holder.queue] = None
        if transaction is not None:
            self._confirm_now(command)
        elif command.receipt is not None:
            # The body of a large message that moves to the dead-letter queue is read first.
            broker.pager.after_bodies(partial(broker.journal.confirm, self._waiter(command)))
        if self._connection.is_writable:
            subscription.make_ready()

    def _carry_out(self, holder: Subscription, messages: list[Message], outcome: Outcome, reason: str) -> None:
        broker = self._broker
        if outcome is Outcome.ACCEPTED:
            broker.consumed_all(holder.queue, messages)
        elif outcome is Outcome.RELEASED:
            broker.redelivery.put_back(holder.queue, messages)
        elif outcome is Outcome.RETURNED:
            broker.redelivery.give_back(holder.queue, messages, ())
        elif outcome is Outcome.EXPIRED:
            broker.expire(holder.queue, [message for message in messages if message.seq in holder.queue.messages])
        else:
            refused = outcome is Outcome.REJECTED
            failed = () if holder.redelivers else [message.seq for message in messages]
            broker.redelivery.give_back(holder.queue, messages, failed, refused, reason)

    def _holder(self, command: Settle) -> Subscription | None:
        """Whichever subscription holds the message, where the command does not say."""
        if command.consumer:
            return None
        return next((each for each in self._subscriptions.values() if command.seq in each.unacked), None)

    @staticmethod
    def _unknown(command: Settle) -> CommandError:
        name = "acknowledgement" if command.outcome is Outcome.ACCEPTED else "refusal"
        return CommandError(
            f"{name} of a message that this connection does not hold: it was acknowledged before, its subscription "
            "ended or does not acknowledge, or it was delivered on an earlier connection",
            code=UNKNOWN_DELIVERY,
        )

    def _subscribe(self, command: Subscribe) -> None:
        broker = self._broker
        if command.browse is None:
            check_subscribed_to(command.sources)
        if command.id in self._subscriptions:
            raise CommandError(f"this connection has a subscription {command.id!r} already: use another id")
        # It is held until the subscription has it: an equal text is not compiled twice.
        selector = broker.quotas.check_subscription(self.user, self._client.id, command)
        if command.browse is not None:
            subscription: Subscription = self._browser(command)
            queue = subscription.queue
        elif is_wildcard(command.sources) and not command.subscription_name:
            subscription = broker.wildcards.subscribe(command, self)
            queue = subscription.queue
        else:
            queue = self._source(command)
            if queue.name in broker.replaying:
                self.stall(command, ReplayRoom(broker, queue.name))
                return
            prefetch = command.flow.prefetch or queue.options.prefetch_size
            subscription = Subscription(command, queue, self, prefetch, broker.message_id_prefix)
            queue.join(subscription, broker)
        self._subscriptions[command.id] = subscription
        broker.quotas.began(self.user, subscription.selector)
        del selector
        if Subscribed in broker.events.heard and command.browse is None:
            broker.events.tell(Subscribed(self._connection.id, command.id, command.sources, command.filter.selector))
        if self._connection.is_writable:
            subscription.make_ready()
        broker.dirty[queue] = None
        if command.subscription_name:
            self._confirm_durably(command)
        else:
            self._confirm_now(command)

    def _browser(self, command: Subscribe) -> Browser:
        broker, first = self._broker, command.sources[0]
        prefetch = command.flow.prefetch or broker.config.prefetch_size
        if isinstance(first, str) and first.startswith(TEMPORARY_QUEUE_SCHEME) and len(command.sources) == 1:
            broker.temporaries.check_consumer(first, self._connection.temporary)
            queue = broker.temporaries.provide(first)
            assert queue is not None
            return Browser(command, broker, self, prefetch, queue)
        return broker.leasing.browser(command, self, prefetch, self._client.id, self._client.user)

    def _source(self, command: Subscribe) -> Queue:
        """Where the messages of the subscription that `command` asks for will wait. Raises AmqError."""
        broker, first = self._broker, command.sources[0]
        if command.subscription_name:
            return broker.durables.subscribe(command, self._client.id, self)
        if isinstance(first, str) and is_temporary(first):
            broker.temporaries.check_consumer(first, self._connection.temporary)
            queue = broker.temporaries.provide(first)
            return queue if queue is not None else broker.topics.subscribe(command, command.sources)
        if is_topic(first):
            return broker.topics.subscribe(command, command.sources)
        return broker.state.queue(str(first))

    def _credit(self, command: Credit) -> None:
        self._broker.pulling.grant(
            self._subscriptions.get(command.id), command, self._waiter(command), self._connection.is_writable
        )

    def _extend(self, command: Extend) -> None:
        subscription = self._subscriptions.get(command.id)
        if subscription is None:
            raise CommandError(f"this connection has no subscription {command.id!r}", code="UNKNOWN_SUBSCRIPTION")
        subscription.extend(command.change)
        if subscription.credit <= 0:
            subscription.make_unready()
        elif self._connection.is_writable:
            subscription.make_ready()
        self._broker.dirty[subscription.queue] = None
        self._confirm_now(command)

    def _unsubscribe(self, command: Unsubscribe) -> None:
        durables, subscription = self._broker.durables, self._subscriptions.get(command.id)
        if command.subscription_name:  # an error in it shows before the consumer ends
            record = durables.to_end(command.subscription_name, self._client.id, subscription, self)
            if subscription is not None:
                self._end(self._subscriptions.pop(command.id))
            durables.end(record, self._asked(command))
            return
        if subscription is None:
            raise CommandError(f"this connection has no subscription {command.id!r}", code="UNKNOWN_SUBSCRIPTION")
        if subscription.redelivers:  # its client has said of all that it has seen what became of it
            self._put_back(subscription)
        self._end(self._subscriptions.pop(command.id))
        self._confirm_durably(command)

    def _begin(self, command: Begin) -> None:
        if command.transaction in self._transactions:
            raise CommandError(f"transaction {command.transaction!r} is open already")
        self._transactions[command.transaction] = self._broker.commits.begin(command.transaction, self.number)
        self._confirm_now(command)

    def _commit(self, command: Commit | Prepare) -> None:
        name = outcomes.name_of(self._broker, self.user, command.outcome_id) if isinstance(command, Commit) else ""
        is_repeated = bool(name) and outcomes.is_known(self._broker, name)
        transaction = self._transactions.get(command.transaction)
        if transaction is not None:
            if transaction.ending not in (None, command):
                raise self._is_ending(command.transaction)
            transaction.ending = command
            if not is_repeated and not self._is_ready(command, transaction):
                return
            del self._transactions[command.transaction]
        if isinstance(command, Prepare):
            self._broker.spanning.prepare(transaction, command, self._waiter(command), self.user)
        elif isinstance(command, Decide):
            self._broker.spanning.commit(transaction, command, self._waiter(command), name, self.user)
        elif transaction is not None:
            self._broker.commits.commit(transaction, self._waiter(command), name)
        elif name:
            outcomes.tell(self._broker, name, command.transaction, self._waiter(command))
        else:
            self._transaction(command.transaction)

    def _is_ready(self, command: Commit | Prepare, transaction: Transaction) -> bool:
        """May `transaction` end as `command` says? False: it waits. Raises TransactionRolledBackError."""
        if not self._broker.readying.is_ready(transaction, isinstance(command, Prepare)):
            self.stall(command, ReadyRoom(transaction))
            return False
        try:
            room = self._broker.limits.room_to_commit(transaction, isinstance(command, Prepare))
        except TransactionRolledBackError:
            del self._transactions[command.transaction]
            transaction.roll_back()
            raise
        if room is not None:
            self.stall(command, room)
        return room is None

    def _abort(self, command: Abort) -> None:
        """Messages that come back are delivered before the next command: the client may acknowledge them at once."""
        transaction = self._transaction(command.transaction)
        queues = dict.fromkeys(subscription.queue for subscription, _ in transaction.settled)
        transaction.roll_back()
        del self._transactions[command.transaction]
        self._broker.dispatch_some(queues)
        self._confirm_now(command)

    def _disconnect(self, command: Disconnect) -> None:
        waiting = self._connection.session_that_waits()
        if waiting is not None:  # the answer says that all before it is done, whichever session it was in
            waiting.stall(command)
            return
        self._connection.close()
        if command.receipt is not None:
            waiter = self._waiter(command)
            self._broker.journal.confirm(Call(partial(self._farewell, waiter), waiter.failed))
        else:
            self.peer.close()

    def _farewell(self, waiter: Waiter) -> None:
        """All before the end is committed."""
        waiter.done()
        self.peer.close()

    def _invalid(self, command: Invalid) -> None:
        raise command.error

    def _malformed(self, command: Malformed) -> None:
        self.peer.fail(Failure(command.error, Scope.CONNECTION, command.receipt))

    def _open_session(self, command: OpenSession) -> None:
        self._connection.open_session(command)
        self._confirm_now(command)

    def _close_session(self, command: CloseSession) -> None:
        self._connection.close_session(command)
        self._confirm_durably(command)

    def _open_producer(self, command: OpenProducer) -> None:
        self._connection.open_producer(command.id, command.destination)
        self._confirm_now(command)

    def _close_producer(self, command: CloseProducer) -> None:
        self._connection.close_producer(command.id)
        self._confirm_now(command)

    def _delete_destination(self, command: DeleteDestination) -> None:
        self._broker.delete(command.name, self._waiter(command))

    def _nothing(self, command: Nothing | Locate) -> None:
        self._confirm_now(command)

    def _is_leaving(self, command: Leave) -> None:
        self._connection.leave()
        self._confirm_now(command)

    def _make_sure(self, command: MakeSure) -> None:
        self._confirm_durably(command)

    def _list_prepared(self, command: ListPrepared) -> None:
        self._broker.two_phase.tell(Rights(self._broker.access, self._client.user), self._waiter(command))

    def _make_temporary(self, command: MakeTemporary) -> None:
        self._broker.temporaries.make(command.name, self._connection.temporary, self.user)
        self._confirm_now(command)

    def _remove_temporary(self, command: RemoveTemporary) -> None:
        self._broker.temporaries.remove(command.name, self._connection.temporary)
        self._confirm_now(command)

    def _lease(self, command: LeaseMessages) -> None:
        if self._broker.is_taking_effect:  # it would get a part of what comes together
            self.stall(command, EffectRoom(self._broker))
            return
        self._broker.leasing.lease(command, self._waiter(command), self._client.id, self._client.user)

    def _transfer(self, command: Transfer) -> None:
        if (room := self._broker.arrivals.take(command, self._waiter(command))) is not None:
            self.stall(command, room)

    def _pass_on(self, command: Command) -> None:
        PASSED_ON[command.__class__](self._broker, self._connection, command, self._waiter(command))

    # One table for all sessions. With bound methods in it a session would refer to itself, and stay in memory when its
    # connection has ended: the garbage collector rarely looks at what is old.
    HANDLERS: ClassVar[dict[type, Callable[[Session, Any], bool | None]]] = {
        **dict.fromkeys(PASSED_ON, _pass_on),
        Send: _send,
        SendToMany: _send_to_all,
        SendMany: _send_many,
        SendRun: _send_run,
        Settle: _settle,
        SettleRun: _settle_run,
        SettleSet: _settle_several,
        SettleAgain: _settle_again,
        SettleIfHeld: _settle_if_held,
        OpenSession: _open_session,
        CloseSession: _close_session,
        Subscribe: _subscribe,
        Credit: _credit,
        Extend: _extend,
        ListPrepared: _list_prepared,
        MakeTemporary: _make_temporary,
        RemoveTemporary: _remove_temporary,
        OpenProducer: _open_producer,
        CloseProducer: _close_producer,
        DeleteDestination: _delete_destination,
        Locate: _nothing,
        Nothing: _nothing,
        Leave: _is_leaving,
        GoOn: _nothing,
        MakeSure: _make_sure,
        Unsubscribe: _unsubscribe,
        Begin: _begin,
        Commit: _commit,
        Abort: _abort,
        Prepare: _commit,
        PreparePart: _commit,
        Decide: _commit,
        LeaseMessages: _lease,
        Transfer: _transfer,
        Disconnect: _disconnect,
        Invalid: _invalid,
        Malformed: _malformed,
    }

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _transaction(self, name: str) -> Transaction:
        transaction = self._transactions.get(name)
        if transaction is None:
            raise CommandError(f"there is no open transaction {name!r} on this connection", code="UNKNOWN_TRANSACTION")
        if transaction.ending is not None:
            raise self._is_ending(name)
        transaction.used_at = self._broker.clock.monotonic()
        return transaction

    @staticmethod
    def _is_ending(name: str) -> CommandError:
        return CommandError(
            f"transaction {name!r} is being committed by another session of this connection: begin another one",
            code="UNKNOWN_TRANSACTION",
        )

    def _add_to_transaction(self, command: Send, messages: list[Message]) -> None:
        transaction = self._transaction(command.transaction)
        bulk.take_memory(self._broker, transaction, memory_bytes(messages))
        transaction.add(messages)
        self._confirm_now(command)

    def consumers(self) -> Iterator[Subscription]:
        """The consumers that take messages."""
        return (each for each in self._subscriptions.values() if not isinstance(each, Browser))

    def holds_deliveries(self) -> bool:
        return any(subscription.singles or subscription.bundles for subscription in self._subscriptions.values())

    def _may_read_on(self) -> bool:
        """May the client be read while its commands wait? Its acknowledgements may make the room that they wait for."""
        return (self._room is None or self._room.by_consumers) and self._connection.holds_deliveries()

    def _asked(self, command: Command) -> Waiter | None:
        """The waiter for the answer to `command`, None = nobody asks for one."""
        return None if command.receipt is None else Reply(self.peer, command.receipt, self.number)

    def _waiter(self, command: Command) -> Waiter:
        """The waiter for what becomes of `command`: also where nobody asks, a failure is told."""
        return self._unasked if command.receipt is None else Reply(self.peer, command.receipt, self.number)

    def _confirm_durably(self, command: Command) -> None:
        """Confirm `command` when everything that was written before it is durable."""
        if command.receipt is not None:
            self._broker.journal.confirm(self._waiter(command))

    def _confirm_now(self, command: Command) -> None:
        if command.receipt is not None:
            self.peer.confirm(command.receipt)

    def _end(self, subscription: Subscription) -> None:
        """Give back what `subscription` holds. Only the oldest delivery counts as failed: a consumer works on one
        message at a time, and what was merely prefetched behind it must not end in the dead-letter queue.
        """
        self._broker.quotas.ended(self.user, subscription.selector)
        if isinstance(subscription, Browser):
            subscription.end()
            return
        if isinstance(subscription, WildcardSubscription):
            subscription.ended = True
            subscription.make_unready()
            self._broker.wildcards.unsubscribe(subscription)
            oldest = next(iter(subscription.unacked), None)
            branches = list(subscription.branches.values())
            subscription.branches.clear()  # they refer to it
            for branch in branches:
                self._leave(branch, oldest)
        else:
            self._leave(subscription, next(iter(subscription.unacked), None))
        if Unsubscribed in self._broker.events.heard:
            self._broker.events.tell(Unsubscribed(self._connection.id, subscription.id, subscription.sources))

    def _put_back(self, subscription: Subscription) -> None:
        """The messages that `subscription` holds wait again, as if they had not been delivered."""
        held = list(subscription.unacked)
        if held and not isinstance(subscription, Browser):
            self._settle_together(Settle(held[-1], subscription.id, outcome=Outcome.RELEASED), subscription, held, None)

    def _leave(self, subscription: Subscription, oldest: int | None) -> None:
        """`oldest` = seq of the delivery that counts as failed, if `subscription` holds it."""
        subscription.make_unready()
        self._broker.state.emptied[subscription.queue] = None
        held = list(subscription.unacked.values())
        subscription.unacked = {}
        subscription.ended = True
        subscription.queue.leave(subscription)
        self._broker.dirty[subscription.queue] = None
        if held and subscription.redelivers:
            self._broker.redelivery.lose(subscription.queue, held)
        elif held:
            failed = [message.seq for message in held if message.seq == oldest]
            self._broker.redelivery.give_back(subscription.queue, held, failed)
