"""The synchronous face: Session, Producer, Consumer, Message.

Each call takes the connection's lock, asks the core, and waits where it must. `timeout` is in seconds everywhere; None
means the URL's `timeout` except for `receive`, where it means to wait until there is a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import getpid as _getpid
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from amq.client import bulk
from amq.client.columns import Columns
from amq.client.columns import send as send_columns
from amq.client.core import (
    EXACTLY_ONCE,
    PREFETCH_DEFAULT,
    PULL_ANSWER_S_MAX,
    Delivery,
    ProducerCore,
    SessionCore,
    Subscription,
    commit_timed_out,
    prepare_timed_out,
    timed_out,
)
from amq.client.delayed import DeliveryTimes, delayed, expires_ms
from amq.client.durable import end_durable, named, unless_unknown
from amq.client.errors import ConnectionClosedError, FlushError, gathered
from amq.client.lanes import TEMPORARY
from amq.client.leases import LeaseSubscription, reading
from amq.client.message import ReceivedMessage
from amq.client.once import ATTEMPTS_MAX, Once
from amq.client.requests import SendOwner
from amq.client.two_phase import prepare_headers
from amq.core.errors import AmqError, TransactionRolledBackError
from amq.core.message import DEFAULT_PRIORITY
from amq.protocols.stomp.runs import MESSAGES, Run, read_run

if TYPE_CHECKING:
    from amq.client.connection import Connection

T = TypeVar("T")


class Session:
    """Producers and consumers that share an acknowledgement mode, or a sequence of transactions."""

    def __init__(self, connection: Connection, core: SessionCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection._driver
        self._consumers: list[Consumer] = []
        self._direct: dict[Connection, Session] = {}  # sessions on lanes of the connection

    def producer(self, destination: str) -> Producer:
        """A producer for `/queue/NAME` or `/topic/NAME`."""
        direct = self._session_for(destination)
        if direct is not None:
            return DirectProducer(direct, self, destination)
        return Producer(self, ProducerCore(self._core, destination))

    def _session_for(self, destination: str) -> Session | None:
        """The session on the lane of that destination, None = it has none. Raises AmqError."""
        lanes = self.connection._lanes
        if lanes is None or self._core.transacted:
            return None
        lane = lanes.lane_of(destination)
        if lane is None:
            return None
        if lane not in self._direct:
            self._direct[lane] = lane.session(ack=self._core.ack)
        return self._direct[lane]

    def consumer(
        self,
        destination: str,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        selector: str = "",
        subscription: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Consumer:
        """Subscribe to `/queue/NAME` or `/topic/NAME` and wait until the broker has accepted that.

        prefetch   messages that the broker may deliver ahead of their acknowledgement; 0 = none: each `receive` asks
                   for one (of an amq broker)
        selector   SQL-92 condition over the headers
        subscription   name of a durable subscription to a topic, of this connection's `client_id`
        headers    further headers of SUBSCRIBE
        """
        self.connection._check_waits()
        if not subscription and (direct := self._session_for(destination)) is not None:
            return direct.consumer(destination, prefetch=prefetch, selector=selector, headers=headers, timeout=timeout)
        with self._driver.lock:
            made, request = self._core.subscribe(destination, prefetch, selector, named(headers, subscription))
            self.connection._await(request, f"subscribe to {destination}", timeout)
        consumer = Consumer(self, made)
        self._consumers.append(consumer)
        return consumer

    def unsubscribe(self, name: str, timeout: float | None = None) -> None:
        """End the durable subscription `name` of this connection's `client_id`, and what waits in it, for good.

        Afterwards there is none, also where there was none before: so a call may be repeated, and a connection that
        breaks meanwhile is survived. Close its consumers first. Raises CommandError: it has a consumer
        (SUBSCRIPTION_IN_USE).
        """
        self.connection._check_waits()
        with self._driver.lock, unless_unknown():
            self.connection._await(end_durable(self._core, name), f"end of subscription {name}", timeout)

    def browser(
        self,
        destination: str,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        selector: str = "",
        subscription: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Browser:
        """Look at the messages of `/queue/NAME`, or of all queues of a pattern such as `/queue/DLQ.>`, or at what waits
        for the durable `subscription` to a topic, in the order of delivery. Nothing is taken, and nothing need be
        acknowledged. Raises CommandError (UNKNOWN_SUBSCRIPTION).
        """
        self.connection._check_waits()
        with self._driver.lock:
            made, request = self._core.subscribe(destination, prefetch, selector, named(headers, subscription), True)
            self.connection._await(request, f"browse {destination}", timeout)
        browser = Browser(self, made)
        self._consumers.append(browser)
        return browser

    def lease_reader(
        self,
        destination: str,
        cursor: str,
        number: int,
        *,
        start: int = 0,
        stop: int | None = None,
        prefetch: int = PREFETCH_DEFAULT,
        epoch: int = 0,
        runs: bool = False,
        timeout: float | None = None,
    ) -> Browser:
        """Read what lease `number` of `cursor` holds, from position `start` up to before `stop`, always in the same
        order. A connection that breaks meanwhile is survived: each comes once. Nothing need be acknowledged. Raises
        CommandError, also while it is read: the lease is over (UNKNOWN_LEASE), or another program took the cursor after
        `epoch` (CURSOR_TAKEN). `runs`: use `Browser.receive_runs`.
        """
        self.connection._check_waits()
        with self._driver.lock:
            headers = reading(cursor, number, start, stop, epoch, runs)
            subscription, request = self._core.subscribe(destination, prefetch, "", headers, True, LeaseSubscription)
            self.connection._await(request, f"read lease {number} of {destination}", timeout)
        browser = Browser(self, subscription)
        self._consumers.append(browser)
        return browser

    def commit(self, timeout: float | None = None, *, outcome_id: str = "") -> None:
        """Publish what was sent and acknowledge what was received since the last commit, all or nothing.

        outcome_id   names this commit for ever; a second one of that name is rolled back with code ALREADY_COMMITTED

        A connection that breaks meanwhile is survived: the next broker is asked for the outcome. Raises
        TransactionRolledBackError: nothing of it took place, run it again; CommitOutcomeUnknownError: no answer in
        time, or the broker cannot tell. The session is usable again in each case.
        """
        self.connection._check_waits()
        with self._driver.lock:
            outcome_id = outcome_id or self._core.machine.next_id()
            unknown = commit_timed_out(self.connection._timeout_s(timeout), outcome_id)
            self.connection._await(self._core.start_commit(outcome_id), "commit", timeout, unknown)

    def prepare(
        self,
        xid: str,
        *,
        prepared_timeout: float | None = None,
        owner: str = "",
        batch: int = 0,
        timeout: float | None = None,
    ) -> None:
        """First phase of a commit: what was sent and received since the last one becomes transaction `xid`, which
        survives this connection and the master, until `Connection.commit_prepared` or `rollback_prepared` of anybody.

        xid               its name, used once: printable characters, no comma
        prepared_timeout  seconds after which the broker rolls it back, 0 = never; None = as it is configured
        owner, batch      the pipeline's batch of which it is a part, see `Connection.commit_batch`

        A connection that breaks meanwhile is survived, as by `commit`. Raises TransactionRolledBackError: nothing of
        it is prepared (XID_IN_USE, BATCH_COMMITTED, DUPLICATE_ID: and will not be so); CommandError: it has messages
        that are not persistent or not of queues; CommitOutcomeUnknownError: ask by `Connection.recover`.
        """
        self._begin_prepare(xid, prepared_timeout=prepared_timeout, owner=owner, batch=batch, timeout=timeout)(timeout)

    def _begin_prepare(
        self,
        xid: str,
        *,
        prepared_timeout: float | None = None,
        owner: str = "",
        batch: int = 0,
        timeout: float | None = None,
    ) -> Callable[[float | None], None]:
        """Ask for what `prepare` does, and return a function that waits for the answer: call it once, with its timeout,
        before anything else is done in this session. It raises what `prepare` raises."""
        self.connection._check_waits()
        headers = prepare_headers(xid, prepared_timeout, owner, batch)
        with self._driver.lock:
            timeout_s = self.connection._timeout_s(timeout)
            if self._core.transaction is None and not self._driver.wait(
                self._core.machine.up_gate, self._core.may_write, timeout_s
            ):
                raise timed_out(self._core.machine, f"prepare of {xid}", timeout_s)
            request = self._core.start_prepare(headers)
            self._driver.flush()

        def wait(timeout: float | None) -> None:
            with self._driver.lock:
                unknown = prepare_timed_out(self.connection._timeout_s(timeout), xid)
                self.connection._await(request, f"prepare of {xid}", timeout, unknown)

        return wait

    def rollback(self, timeout: float | None = None) -> None:
        """Undo what was sent; what was received is delivered again, first of all."""
        self.connection._check_waits()
        with self._driver.lock:
            self.connection._await(self._core.start_rollback(), "rollback", timeout)

    @contextmanager
    def transaction(self, timeout: float | None = None, *, outcome_id: str = "") -> Iterator[Session]:
        """Commit at the end of the block, as `commit` does; roll back and raise where it raises."""
        with self._block("transaction()", timeout, outcome_id):
            yield self

    @contextmanager
    def _block(self, call: str, timeout: float | None, outcome_id: str) -> Iterator[None]:
        self._core.enter_block(call)
        try:
            yield
        except BaseException:
            self._core.leave_block()
            if not self.connection.closed:
                self.rollback(timeout)
            raise
        self._core.leave_block()
        self.commit(timeout, outcome_id=outcome_id)

    def exactly_once(
        self, work: Callable[[Session], T], *, id: str = "", attempts: int = ATTEMPTS_MAX, timeout: float | None = None
    ) -> T | None:
        """Call `work(session)` in a transaction and commit it, as often as it takes until that took place: once.
        Returns what `work` returned; None = it took place before this call (never without `id`).

        id         names the work for ever: a call with the `id` of one that took place changes nothing, from whatever
                   process. Its run is rolled back. The broker remembers the last `outcomeWindow` commits
        attempts   runs after which the error of the last one is raised

        It runs again where a failover, or the broker's timeout, rolled it back. Raises what `work` raises, having
        rolled back; TransactionRolledBackError where the broker refuses the commit (a queue or the store is full, a
        message's duplicate id is taken: DUPLICATE_ID); CommitOutcomeUnknownError: call again with its `outcome_id`
        as `id`.
        """
        once = Once(self._core, id, attempts)
        while True:
            try:
                with self._block(EXACTLY_ONCE, timeout, once.outcome_id):
                    result = work(self)
            except TransactionRolledBackError as error:
                if not once.must_run_again(error):
                    return None
            else:
                return result

    def close(self, timeout: float | None = None) -> None:
        """Flush producers, close consumers, roll an open transaction back. Again = nothing; so in a forked child."""
        core = self._core
        if core.closed or self._driver.forked:
            return
        failures: list[tuple[str, AmqError]] = []
        for direct in self._direct.values():
            with gathered(failures):
                direct.close(timeout)
        try:
            with self._driver.lock:
                owners = core.machine.ledger.unflushed(core)
            for owner in owners:
                with gathered(failures):
                    self._flush(owner, timeout)
        finally:
            with self._driver.lock:
                core.close([consumer._subscription for consumer in self._consumers])
                if self in self.connection._sessions:
                    self.connection._sessions.remove(self)
                self._driver.kick()
        if failures:
            raise FlushError(failures)

    def _flush(self, owner: SendOwner, timeout: float | None) -> None:
        machine = self._core.machine
        with self._driver.lock:
            timeout_s = self.connection._timeout_s(timeout)
            if not self._driver.wait(owner.gate, lambda: not owner.unconfirmed, timeout_s):
                raise timed_out(machine, f"flush of {owner.unconfirmed} messages to {owner.destination}", timeout_s)
            failures = machine.ledger.take_failures(owner)
        if failures:
            raise FlushError(failures)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not self.connection.closed:
            self.close()


class Producer:
    """Sends to one destination. Messages are persistent unless said otherwise, and confirmed before `send` returns."""

    def __init__(self, session: Session, core: ProducerCore) -> None:
        self._session = session
        self._core = core
        self._driver = session._driver
        self._machine = session._core.machine
        self._may_send = session._core.may_send
        self.destination = core.destination

    def send(
        self,
        body: bytes | str,
        *,
        headers: Mapping[str, object] | None = None,
        persistent: bool = True,
        priority: int = DEFAULT_PRIORITY,
        time_to_live: float = 0.0,
        content_type: str = "",
        duplicate_id: str = "",
        wait: bool = True,
        timeout: float | None = None,
        **schedule: Unpack[DeliveryTimes],
    ) -> str:
        """Send one message and return its duplicate id (given, or made here).

        wait           until the broker has confirmed that it is stored. With False only while the window of
                       unconfirmed messages is full; `flush` waits for them all and tells which failed
        time_to_live   seconds, by the clock of this host, after which the message expires; 0 = never
        duplicate_id   the broker stores one message with this id, however often it is sent
        delay, period  seconds before it is delivered, and from one delivery to the next; 0 = at once, and once
        repeat         how often it comes again after the first delivery, -1 = for ever; needs a period
        cron           times at which it is delivered, "30 8 * * 1-5", UTC: see docs/messaging.md

        In a transacted session it becomes visible at commit, and there is nothing to wait for before.
        Raises StoreFullError, AccessError and other refusals, CallTimeoutError, FailoverTimeoutError,
        TransactionRolledBackError (in a rollback-only transaction), ConnectionClosedError.
        """
        connection = self._session.connection
        driver = self._driver
        if driver.pid != _getpid():
            connection._check_fork()
        if wait and not self._session._core.transacted:
            connection._check_waits()
        if schedule:
            headers = delayed(headers, **schedule)
        with driver.lock:
            if not self._may_send():
                timeout_s = connection._timeout_s(timeout)
                if not driver.wait(self._machine.room_gate, self._may_send, timeout_s):
                    raise timed_out(connection._machine, f"send to {self.destination}", timeout_s, duplicate_id)
            duplicate_id = duplicate_id or self._machine.next_id()
            expires = expires_ms(time_to_live, driver.clock.wall_ms())
            request = self._core.send(body, headers, persistent, priority, expires, content_type, duplicate_id, wait)
            if wait:
                connection._await(request, f"send to {self.destination}", timeout)
            if request is None or not wait:
                driver.after_send()
        return duplicate_id

    def send_many(
        self,
        bodies: Sequence[bytes],
        *,
        headers: Sequence[Mapping[str, object] | None] | None = None,
        text: bool = False,
        persistent: bool = True,
        priority: int = DEFAULT_PRIORITY,
        time_to_live: float = 0.0,
        timeout: float | None = None,
    ) -> None:
        """Send a message for each of `bodies`, in order, in the session's transaction: many times as fast as `send`.

        headers   of each message; None = none has any
        text      the bodies are UTF-8 text to their receivers, not bytes

        They get no duplicate ids, since a transaction takes place once. Raises CommandError where the session is not
        transacted, and else what `send` raises.
        """
        connection, driver = self._session.connection, self._driver
        connection._check_fork()
        timeout_s = connection._timeout_s(timeout)
        with driver.lock:
            expires = expires_ms(time_to_live, driver.clock.wall_ms())
            bodies = bulk.checked(bodies, headers)
            for part in bulk.pieces(bodies):
                if not driver.wait(self._machine.room_gate, self._may_send, timeout_s):
                    raise timed_out(connection._machine, f"send to {self.destination}", timeout_s)
                extras = None if headers is None else headers[part]
                bulk.send(self._core, bodies[part], extras, text, persistent, priority, expires)
                driver.flush()

    def send_columns(
        self,
        columns: Columns,
        *,
        persistent: bool = True,
        priority: int = DEFAULT_PRIORITY,
        time_to_live: float = 0.0,
        timeout: float | None = None,
    ) -> None:
        """The same of messages that are there by columns: in one frame, without a step for each message. Raises
        CommandError, and else what `send` raises."""
        connection, driver = self._session.connection, self._driver
        connection._check_fork()
        columns.check()
        timeout_s = connection._timeout_s(timeout)
        with driver.lock:
            if not driver.wait(self._machine.room_gate, self._may_send, timeout_s):
                raise timed_out(connection._machine, f"send to {self.destination}", timeout_s)
            send_columns(self._core, columns, persistent, priority, expires_ms(time_to_live, driver.clock.wall_ms()))
            driver.flush()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing sent with `wait=False` is unconfirmed.

        Raises FlushError when some were refused, each told once; CallTimeoutError or FailoverTimeoutError when the
        time is over: they stay unconfirmed and are still tried.
        """
        self._session.connection._check_fork()
        self._session._flush(self._core.owner, timeout)


class DirectProducer(Producer):
    """Sends to the master of the store in which its destination lives. A message whose answers shall come to a
    temporary destination of the connection needs the connection itself: from the first such message on the producer
    sends by that, when all before are confirmed."""

    def __init__(self, direct: Session, session: Session, destination: str) -> None:
        super().__init__(direct, ProducerCore(direct._core, destination))
        self._by_gateway = Producer(session, ProducerCore(session._core, destination))
        self._is_direct = True

    def send(
        self,
        body: bytes | str,
        *,
        headers: Mapping[str, object] | None = None,
        timeout: float | None = None,
        **how: Any,
    ) -> str:
        """See `Producer.send`."""
        if self._is_direct and headers and str(headers.get("reply-to", "")).startswith(TEMPORARY):
            self._leave(timeout)
        send = super().send if self._is_direct else self._by_gateway.send
        return send(body, headers=headers, timeout=timeout, **how)

    def flush(self, timeout: float | None = None) -> None:
        """See `Producer.flush`."""
        failures: list[tuple[str, AmqError]] = []
        with gathered(failures):
            super().flush(timeout)
        with gathered(failures):
            self._by_gateway.flush(timeout)
        if failures:
            raise FlushError(failures)

    def _leave(self, timeout: float | None) -> None:
        """Wait until all is confirmed: it must not come behind what is sent from now on. Raises CallTimeoutError."""
        connection, owner = self._session.connection, self._core.owner
        timeout_s = connection._timeout_s(timeout)
        with self._driver.lock:
            if not self._driver.wait(owner.gate, lambda: not owner.unconfirmed, timeout_s):
                raise timed_out(self._machine, f"send to {self.destination}", timeout_s)
        self._is_direct = False
        if (lanes := self._by_gateway._session.connection._lanes) is not None:
            lanes.leave(self.destination)


class Consumer:
    """Receives from one destination. Iterate over it, or call `receive`. After a failover it goes on by itself."""

    def __init__(self, session: Session, subscription: Subscription) -> None:
        self._session = session
        self._subscription = subscription
        self._driver = session._driver
        self._core = session._core

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there was none for `timeout` seconds (None = wait for one, 0 = do not wait).

        With `prefetch=0` it asks the broker, and returns 2 s after its time at the latest if the broker is silent.
        Raises TransactionRolledBackError when the session's transaction became rollback-only, ConnectionClosedError
        when the consumer, session or connection was closed, or the error with which the connection ended.
        """
        driver, subscription = self._driver, self._subscription
        if driver.pid != _getpid():
            self._session.connection._check_fork()
        with driver.lock:
            if not subscription.ready():
                self._core.want(subscription)
                limit_s = math.inf if timeout is None else timeout
                if not driver.wait(subscription.gate, subscription.ready, limit_s) and not self._was_late():
                    return None
            delivery = self._core.take(subscription)
            if delivery is None:
                return None
            if self._core.transacted or delivery.settled:
                driver.after_send()
        return Message(self._session, delivery)

    def _was_late(self) -> bool:
        """The time is over: is there a message after all, that was asked for and on its way? A broker that does not
        answer this soon may bring one later, for the next call."""
        request, driver = self._core.want_no_more(self._subscription), self._driver
        if request is None:
            return False
        if not driver.wait(request.gate, lambda: request.done, PULL_ANSWER_S_MAX):
            self._core.give_up(request, driver.clock.monotonic())
        return self._subscription.ready()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """Messages, until there is none for `timeout` seconds (None = for ever) or the consumer is closed."""
        while True:
            try:
                message = self.receive(timeout)
            except ConnectionClosedError:
                self._session.connection._check_fork()  # which is an error, and no end
                return
            if message is None:
                return
            yield message

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def close(self, timeout: float | None = None) -> None:
        """Unsubscribe; what was delivered and not acknowledged goes back to the queue."""
        self._session.connection._check_waits()
        with self._driver.lock:
            request = self._core.unsubscribe(self._subscription)
            self._session.connection._await(request, "unsubscribe", timeout)
        if self in self._session._consumers:
            self._session._consumers.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._session.connection.closed:
            self.close()


class Browser(Consumer):
    """Looks at messages and takes none. `receive` gives None at the end too: then `finished` is true. After a failover
    the browse begins anew, so that messages may be shown again (by their `id`).
    """

    def receive_many(self, timeout: float | None = None) -> list[Message]:
        """All messages that have arrived, in order; [] where `receive` gives None. Raises what that raises."""
        return [Message(self._session, delivery) for delivery in self._take_all(timeout)]

    def receive_runs(self, timeout: float | None = None) -> list[Run | Message]:
        """The same of a lease reader with `runs`, or of a browse with the header `amq-runs: 1`: most messages come in a
        `Run`, many together as the journal has them; others, and all of a broker that does not know runs, one by one.
        """
        return [
            read_run(delivery.frame) if delivery.frame.command == MESSAGES else Message(self._session, delivery)
            for delivery in self._take_all(timeout)
        ]

    def _take_all(self, timeout: float | None) -> list[Delivery]:
        driver, subscription = self._driver, self._subscription
        self._session.connection._check_fork()
        with driver.lock:
            limit_s = math.inf if timeout is None else timeout
            if not driver.wait(subscription.gate, subscription.ready, limit_s):
                return []
            deliveries = self._core.take_all(subscription)
            driver.flush()
        return deliveries

    @property
    def finished(self) -> bool:
        """Everything that was there when the browse began has been received."""
        return self._subscription.finished and not self._subscription.buffer


class Message(ReceivedMessage["Session"]):
    """A received message that can be acknowledged."""

    __slots__ = ()

    def ack(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Done with it: the broker forgets it. In mode `client` this and every earlier one of the consumer.

        `wait` until the broker has confirmed: then it never comes back. Without, a connection that breaks in the
        next moment brings it back. Raises DeliveryLostError when it was delivered before a failover (the broker
        delivers it again), or when the connection broke before the confirmation.

        Only the first call for a message counts. A later one with `wait` waits for the outcome of the first, also
        where that gave up after its `timeout`. It raises CommandError where the first one did not ask for a
        confirmation, because it had no `wait`, or because mode `auto` made it.
        """
        self._settle("ACK", wait, timeout)

    def nack(self, *, requeue: bool = False, wait: bool = False, timeout: float | None = None) -> None:
        """Refuse it: it goes to the dead letters. With `requeue` it comes again, after `redeliveryDelay`, as often as
        `maximumRedeliveries` allows."""
        self._settle("NACK", wait, timeout, requeue)

    def _settle(self, command: str, wait: bool, timeout: float | None, requeue: bool = False) -> None:
        connection = self._session.connection
        if wait:
            connection._check_waits()
        else:
            connection._check_fork()
        with self._session._driver.lock:
            request = self._session._core.settle(self._delivery, command, wait, requeue)
            connection._await(request, command, timeout)
            if request is None:
                self._session._driver.after_send()
