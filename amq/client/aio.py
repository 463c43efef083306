"""The asyncio face: the same names, arguments and guarantees as the synchronous one, with `await`.

    from amq import aio

    async with await aio.connect("failover:(stomp://a:61613,stomp://b:61613)") as connection:
        async with connection.session() as session:
            await session.producer("/queue/orders").send("one pizza")
            async for message in await session.consumer("/queue/orders"):
                await message.ack()

Everything happens in the event loop that `connect` was awaited in: no thread, no lock. A call that is cancelled leaves
what it asked for under way; a consumer that is cancelled while it opens is closed. The promises and errors of each
method are at its namesake in `session` and `connection`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack

from amq.client import bulk, leases, whereabouts
from amq.client.aio_consumer import Browser, Consumer, Message
from amq.client.aio_driver import AsyncDriver, Listener
from amq.client.aio_lanes import AsyncLanes
from amq.client.columns import Columns
from amq.client.columns import send as send_columns
from amq.client.core import (
    EXACTLY_ONCE,
    PREFETCH_DEFAULT,
    ProducerCore,
    SessionCore,
    Subscription,
    commit_timed_out,
    prepare_timed_out,
    resolve_timed_out,
    timed_out,
)
from amq.client.delayed import DeliveryTimes, delayed, expires_ms
from amq.client.driver import seconds
from amq.client.durable import end_durable, named, unless_unknown
from amq.client.errors import ConnectionClosedError, FlushError, gathered
from amq.client.lanes import TEMPORARY
from amq.client.machine import EXIT_TIMEOUT_S, SEND_WINDOW_BYTES, SEND_WINDOW_MESSAGES, Machine
from amq.client.names import NAMES, Names
from amq.client.once import ATTEMPTS_MAX, Once
from amq.client.requests import Request, RequestKind, SendOwner
from amq.client.states import State
from amq.client.two_phase import (
    PREPARED_QUEUE,
    PreparedTransaction,
    abort_batch,
    commit_batch,
    finish,
    prepare_headers,
    rolled_back,
)
from amq.client.uri import BrokerUri, parse
from amq.core.errors import AmqError, TransactionRolledBackError
from amq.core.message import DEFAULT_PRIORITY
from amq.doors.clock import Clock, SystemClock

log = logging.getLogger("amq.client")
T = TypeVar("T")
C = TypeVar("C", bound="Consumer")


class Connection:
    """One connection to whichever broker of the URL is master. Made by `connect`; close it, or use `async with`."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._machine = driver.machine
        self._sessions: list[Session] = []
        self._closed = False
        self._lanes: AsyncLanes[Connection] | None = None  # direct connections to stores of a cluster

    def session(self, *, transacted: bool = False, ack: str = "client-individual") -> Session:
        """A new session."""
        self._machine.check_open()
        session = Session(self, SessionCore(self._machine, transacted, ack))
        self._sessions.append(session)
        return session

    async def commit_prepared(self, xid: str, timeout: float | None = None) -> None:
        """Second phase: commit the prepared transaction `xid`."""
        await self._ask(finish(self._machine, "COMMIT", xid), f"commit of {xid}", timeout)

    async def rollback_prepared(self, xid: str, timeout: float | None = None) -> None:
        """Roll the prepared transaction `xid` back."""
        await self._ask(finish(self._machine, "ABORT", xid), f"rollback of {xid}", timeout)

    async def commit_batch(
        self,
        owner: str,
        batch: int,
        xids: Iterable[str],
        timeout: float | None = None,
        *,
        content: tuple[int, int] | None = None,
    ) -> str:
        """Commit the prepared transactions `xids` together, once: "committed" or "duplicate"."""
        request = commit_batch(self._machine, owner, batch, xids, content)
        return (await self._ask(request, f"commit of batch {batch} of {owner}", timeout)).outcome

    async def rollback_batch(
        self, owner: str, batch: int | None = None, xids: Iterable[str] | None = None, timeout: float | None = None
    ) -> int:
        """Roll back what is prepared for `owner`, or only what belongs to `batch`, or only `xids`: how many."""
        request = abort_batch(self._machine, owner, batch, xids)
        return rolled_back((await self._ask(request, f"rollback of what {owner} prepared", timeout)).outcome)

    async def lease(
        self,
        destination: str,
        cursor: str,
        *,
        after: int = 0,
        messages: int = leases.MESSAGES_MAX,
        size: int = 0,
        lease_timeout: float = 0,
        take: bool = False,
        epoch: int = 0,
        places: bool = False,
        timeout: float | None = None,
    ) -> leases.MessageLease:
        """Set the next messages that wait at `destination` apart for `cursor`, or find the first beyond `after`."""
        words = (destination, cursor, after, messages, size, lease_timeout, take, epoch, places)
        request = leases.ask(self._machine, *words)
        return leases.MessageLease.parse(
            (await self._ask(request, f"lease of {destination} for {cursor}", timeout)).outcome
        )

    async def lease_many(
        self, wanted: Iterable[leases.LeaseRequest], timeout: float | None = None
    ) -> list[leases.MessageLease]:
        """The answers to several questions as `lease` asks them, all asked at once."""
        requests = [leases.ask(self._machine, *each) for each in wanted]
        answers = [await self._ask(request, f"lease for {request.subject}", timeout) for request in requests]
        return [leases.MessageLease.parse(answer.outcome) for answer in answers]

    async def settle(
        self,
        destination: str,
        cursor: str,
        through: int,
        *,
        acknowledge: bool = True,
        epoch: int = 0,
        timeout: float | None = None,
    ) -> None:
        """End all leases of `cursor` up to number `through`."""
        what = f"end of leases of {destination} for {cursor}"
        await self._ask(leases.settle(self._machine, acknowledge, destination, cursor, through, epoch), what, timeout)

    async def where(self, *destinations: str, timeout: float | None = None) -> whereabouts.Whereabouts | None:
        """In which stores of its cluster does each of `destinations` live, and where are their masters? None = the
        connection leads to no gateway of a cluster."""
        machine, timeout_s = self._machine, self._timeout_s(timeout)
        if not await self._driver.wait(machine.up_gate, machine.is_flowing, timeout_s):  # what is there is unknown
            raise timed_out(machine, "where", timeout_s)
        if not whereabouts.is_gateway(machine):
            return None
        request = await self._ask(whereabouts.ask(self._machine, destinations), "where", timeout)
        return whereabouts.answer(self._machine, request.outcome)

    async def recover(self, timeout: float | None = None) -> list[PreparedTransaction]:
        """List the prepared transactions of all clients, oldest first."""
        found: dict[bytes, PreparedTransaction] = {}  # a failover repeats some; several stores have parts of one xid
        timeout_s = self._timeout_s(timeout)
        async with self.session() as session:
            browser = await session.browser(PREPARED_QUEUE, timeout=timeout)
            while (message := await browser.receive(timeout_s)) is not None:
                found[message.body] = PreparedTransaction.parse(message.body)
            if not browser.finished:
                raise timed_out(self._machine, "list of prepared transactions", timeout_s)
        return list(found.values())

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until a broker has accepted us. Raises what `connect` raises, and then the connection is closed."""
        machine, timeout_s = self._machine, self._timeout_s(timeout)
        try:
            if not await self._driver.wait(machine.up_gate, machine.is_flowing, timeout_s):
                raise timed_out(machine, "connect", timeout_s)
        except BaseException:
            await self.abort()
            raise

    def on_event(self, listener: Listener) -> Listener:
        """Call `listener(event)`, a plain function, in the event loop. To do something that awaits, create a task."""
        self._driver.listeners.append(listener)
        for lane in self._all_lanes():
            lane.on_event(listener)
        return listener

    @property
    def uri(self) -> BrokerUri | None:
        """The broker that the connection talks to now; None while there is none."""
        link = self._machine.link
        return link.uri if link is not None and link.accepted else None

    @property
    def brokers(self) -> tuple[BrokerUri, ...]:
        """The brokers that the connection may try: those of the URL, then those that it has learned of."""
        return self._machine.members.uris

    @property
    def why_not_connected(self) -> str:
        """The address of every broker and why the last attempt there failed; "" = connected, or nothing failed yet."""
        return self._machine.why_not_connected()

    @property
    def unconfirmed(self) -> int:
        """Messages sent whose receipt has not arrived."""
        return self._machine.unconfirmed + sum(lane.unconfirmed for lane in self._all_lanes())

    @property
    def direct(self) -> dict[str, BrokerUri | None]:
        """With `redirect=true`: the stores to which there is a separate connection, and where it leads now."""
        return self._lanes.stores if self._lanes is not None else {}

    def _all_lanes(self) -> list[Connection]:
        return self._lanes.all if self._lanes is not None else []

    @property
    def closed(self) -> bool:
        """True when it cannot be used any more, closed by the application or by a DISCONNECT."""
        return self._closed or self._machine.state in (State.CLOSING, State.CLOSED)

    async def close(self, timeout: float | None = None) -> None:
        """Flush what is unconfirmed, close all sessions, disconnect. No task and no socket is left."""
        if self._closed:
            return
        failures: list[tuple[str, AmqError]] = []
        try:
            for session in list(self._sessions):
                with gathered(failures):
                    await session.close(timeout)
        finally:
            await self.abort()
        if failures:
            raise FlushError(failures)

    async def abort(self) -> None:
        """Disconnect without waiting for what is unconfirmed."""
        self._closed = True
        for lane in self._all_lanes():
            await lane.abort()
        if self._machine.unconfirmed:
            log.warning("%s closed with unconfirmed messages: %d", self._machine.url, self._machine.unconfirmed)
        await self._driver.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        elif not self._closed:
            await self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            if self._machine.state is not State.CLOSED:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._driver.abandon()

    def __repr__(self) -> str:
        return f"<aio.Connection {self._machine.url} {self._machine.state.value}>"

    # ---- for sessions

    def _timeout_s(self, timeout: float | None) -> float:
        return seconds(timeout, self._machine.url.options.timeout_ms)

    async def _ask(self, request: Request, what: str, timeout: float | None) -> Request:
        await self._await(request, what, timeout, resolve_timed_out(self._timeout_s(timeout), what))
        return request

    async def _await(
        self, request: Request | None, what: str, timeout: float | None, error: AmqError | None = None
    ) -> None:
        """Wait for the end of `request`. After the time withdraw it with `error`, unless it is an ACK."""
        if request is None:
            return
        timeout_s = self._timeout_s(timeout)
        if not await self._driver.wait(request.gate, lambda: request.done, timeout_s):
            duplicate_id = request.subject if request.owner is None else ""
            error = error or timed_out(self._machine, what, timeout_s, duplicate_id)
            if request.kind is RequestKind.ACK:
                raise error
            self._machine.withdraw(request, error, self._driver.clock.monotonic())
            self._driver.kick()
        if request.error is not None:
            raise request.error


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
        if self.connection._lanes is None or self._core.transacted:
            return Producer(self, ProducerCore(self._core, destination))
        return RedirectedProducer(self, ProducerCore(self._core, destination))

    async def _session_for(self, destination: str) -> Session | None:
        """The session on the lane of that destination, None = it has none. Raises AmqError."""
        lanes = self.connection._lanes
        if lanes is None or self._core.transacted:
            return None
        lane = await lanes.lane_of(destination)
        if lane is None:
            return None
        if lane not in self._direct:
            self._direct[lane] = lane.session(ack=self._core.ack)
        return self._direct[lane]

    async def consumer(
        self,
        destination: str,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        selector: str = "",
        subscription: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Consumer:
        """Subscribe to `/queue/NAME` or `/topic/NAME`; with `subscription`: to a durable one of that name."""
        if not subscription and (direct := await self._session_for(destination)) is not None:
            how: dict[str, Any] = {"prefetch": prefetch, "selector": selector, "headers": headers, "timeout": timeout}
            return await direct.consumer(destination, **how)
        made = self._core.subscribe(destination, prefetch, selector, named(headers, subscription))
        return await self._open(made, Consumer(self, made[0]), f"subscribe to {destination}", timeout)

    async def unsubscribe(self, name: str, timeout: float | None = None) -> None:
        """End the durable subscription `name` for good, with its messages. An unknown name is not an error."""
        with unless_unknown():
            await self.connection._await(end_durable(self._core, name), f"end of subscription {name}", timeout)

    async def browser(
        self,
        destination: str,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        selector: str = "",
        subscription: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Browser:
        """Look at the messages of `/queue/NAME`, or of the durable `subscription` to a topic, and take none."""
        made = self._core.subscribe(destination, prefetch, selector, named(headers, subscription), browses=True)
        return await self._open(made, Browser(self, made[0]), f"browse {destination}", timeout)

    async def lease_reader(
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
        """Read the messages of lease `number` of `cursor`, from position `start` up to before `stop`, each once."""
        headers = leases.reading(cursor, number, start, stop, epoch, runs)
        made = self._core.subscribe(destination, prefetch, "", headers, True, leases.LeaseSubscription)
        return await self._open(made, Browser(self, made[0]), f"read lease {number} of {destination}", timeout)

    async def _open(self, made: tuple[Subscription, Request], consumer: C, what: str, timeout: float | None) -> C:
        subscription, request = made
        try:
            await self.connection._await(request, what, timeout)
        except asyncio.CancelledError:
            if request.done:
                self._core.unsubscribe(subscription)
            else:
                cancelled = ConnectionClosedError("the call was cancelled")
                self._core.machine.withdraw(request, cancelled, self._driver.clock.monotonic())
            self._driver.kick()
            raise
        self._consumers.append(consumer)
        return consumer

    async def commit(self, timeout: float | None = None, *, outcome_id: str = "") -> None:
        """Publish what was sent and acknowledge what was received since the last commit, all or nothing."""
        outcome_id = outcome_id or self._core.machine.next_id()
        unknown = commit_timed_out(self.connection._timeout_s(timeout), outcome_id)
        await self.connection._await(self._core.start_commit(outcome_id), "commit", timeout, unknown)

    async def prepare(
        self,
        xid: str,
        *,
        prepared_timeout: float | None = None,
        owner: str = "",
        batch: int = 0,
        timeout: float | None = None,
    ) -> None:
        """First phase of a commit: see `amq.client.session.Session.prepare`."""
        headers = prepare_headers(xid, prepared_timeout, owner, batch)
        timeout_s, core = self.connection._timeout_s(timeout), self._core
        if core.transaction is None and not await self._driver.wait(core.machine.up_gate, core.may_write, timeout_s):
            raise timed_out(core.machine, f"prepare of {xid}", timeout_s)
        unknown = prepare_timed_out(timeout_s, xid)
        await self.connection._await(core.start_prepare(headers), f"prepare of {xid}", timeout, unknown)

    async def rollback(self, timeout: float | None = None) -> None:
        """Undo what was sent; what was received is delivered again, first of all."""
        await self.connection._await(self._core.start_rollback(), "rollback", timeout)

    @asynccontextmanager
    async def transaction(self, timeout: float | None = None, *, outcome_id: str = "") -> AsyncIterator[Session]:
        """Commit at the end of the block, as `commit` does; roll back and raise where it raises."""
        async with self._block("transaction()", timeout, outcome_id):
            yield self

    @asynccontextmanager
    async def _block(self, call: str, timeout: float | None, outcome_id: str) -> AsyncIterator[None]:
        self._core.enter_block(call)
        try:
            yield
        except BaseException:
            self._core.leave_block()
            if not self.connection.closed:
                await self.rollback(timeout)
            raise
        self._core.leave_block()
        await self.commit(timeout, outcome_id=outcome_id)

    async def exactly_once(
        self,
        work: Callable[[Session], Awaitable[T]],
        *,
        id: str = "",
        attempts: int = ATTEMPTS_MAX,
        timeout: float | None = None,
    ) -> T | None:
        """Await `work(session)` in a transaction and commit it, as often as it takes until that took place: once.
        Returns what `work` returned; None = it took place before this call (never without `id`)."""
        once = Once(self._core, id, attempts)
        while True:
            try:
                async with self._block(EXACTLY_ONCE, timeout, once.outcome_id):
                    result = await work(self)
            except TransactionRolledBackError as error:
                if not once.must_run_again(error):
                    return None
            else:
                return result

    async def close(self, timeout: float | None = None) -> None:
        """Flush producers, close consumers, roll an open transaction back. Again = nothing."""
        if self._core.closed:
            return
        failures: list[tuple[str, AmqError]] = []
        for direct in self._direct.values():
            with gathered(failures):
                await direct.close(timeout)
        try:
            for owner in self._core.machine.ledger.unflushed(self._core):
                with gathered(failures):
                    await self._flush(owner, timeout)
        finally:
            self._core.close([consumer._subscription for consumer in self._consumers])
            if self in self.connection._sessions:
                self.connection._sessions.remove(self)
            self._driver.kick()
        if failures:
            raise FlushError(failures)

    async def _flush(self, owner: SendOwner, timeout: float | None) -> None:
        machine, timeout_s = self._core.machine, self.connection._timeout_s(timeout)
        if not await self._driver.wait(owner.gate, lambda: not owner.unconfirmed, timeout_s):
            raise timed_out(machine, f"flush of {owner.unconfirmed} messages to {owner.destination}", timeout_s)
        failures = machine.ledger.take_failures(owner)
        if failures:
            raise FlushError(failures)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not self.connection.closed:
            await self.close()


class Producer:
    """Sends to one destination."""

    def __init__(self, session: Session, core: ProducerCore) -> None:
        self._session = session
        self._core = core
        self._driver = session._driver
        self.destination = core.destination

    async def send(
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
        """Send one message and return its duplicate id. With `wait=False` it awaits only room in the window."""
        connection, core = self._session.connection, self._session._core
        if schedule:
            headers = delayed(headers, **schedule)
        if not core.may_send():
            timeout_s = connection._timeout_s(timeout)
            if not await self._driver.wait(core.machine.room_gate, core.may_send, timeout_s):
                raise timed_out(connection._machine, f"send to {self.destination}", timeout_s, duplicate_id)
        duplicate_id = duplicate_id or core.machine.next_id()
        expires = expires_ms(time_to_live, self._driver.clock.wall_ms())
        request = self._core.send(body, headers, persistent, priority, expires, content_type, duplicate_id, wait)
        self._driver.kick()
        if wait:
            await connection._await(request, f"send to {self.destination}", timeout)
        return duplicate_id

    async def send_many(
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
        """Send a message for each of `bodies`, in order, in the session's transaction."""
        connection, core = self._session.connection, self._session._core
        timeout_s = connection._timeout_s(timeout)
        expires = expires_ms(time_to_live, self._driver.clock.wall_ms())
        bodies = bulk.checked(bodies, headers)
        for part in bulk.pieces(bodies):
            if not await self._driver.wait(core.machine.room_gate, core.may_send, timeout_s):
                raise timed_out(connection._machine, f"send to {self.destination}", timeout_s)
            extras = None if headers is None else headers[part]
            bulk.send(self._core, bodies[part], extras, text, persistent, priority, expires)
            self._driver.kick()

    async def send_columns(
        self,
        columns: Columns,
        *,
        persistent: bool = True,
        priority: int = DEFAULT_PRIORITY,
        time_to_live: float = 0.0,
        timeout: float | None = None,
    ) -> None:
        """The same of messages that are there by columns: in one frame, without a step for each message."""
        connection, core = self._session.connection, self._session._core
        columns.check()
        timeout_s = connection._timeout_s(timeout)
        expires = expires_ms(time_to_live, self._driver.clock.wall_ms())
        if not await self._driver.wait(core.machine.room_gate, core.may_send, timeout_s):
            raise timed_out(connection._machine, f"send to {self.destination}", timeout_s)
        send_columns(self._core, columns, persistent, priority, expires)
        self._driver.kick()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing sent with `wait=False` is unconfirmed; FlushError when some were refused."""
        await self._session._flush(self._core.owner, timeout)


class RedirectedProducer(Producer):
    """Sends by the lane of its destination, if it has one: see `amq.client.session.DirectProducer`."""

    def __init__(self, session: Session, core: ProducerCore) -> None:
        super().__init__(session, core)
        self._left: Producer | None = None  # the lane by which it sent before
        self._lane: Producer | None = None  # None = by the connection itself, or not decided yet
        self._is_decided = False
        self._deciding = asyncio.Lock()

    async def send(
        self,
        body: bytes | str,
        *,
        headers: Mapping[str, object] | None = None,
        timeout: float | None = None,
        **how: Any,
    ) -> str:
        """Send one message and return its duplicate id."""
        needs_connection = bool(headers) and str((headers or {}).get("reply-to", "")).startswith(TEMPORARY)
        if not self._is_decided or (needs_connection and self._lane is not None):
            async with self._deciding:
                await self._decide(needs_connection, timeout)
        send = super().send if self._lane is None else self._lane.send
        return await send(body, headers=headers, timeout=timeout, **how)

    async def _decide(self, needs_connection: bool, timeout: float | None) -> None:
        if not self._is_decided and not needs_connection:
            direct = await self._session._session_for(self.destination)
            if direct is not None:
                self._lane = Producer(direct, ProducerCore(direct._core, self.destination))
        self._is_decided = True
        if needs_connection and self._lane is not None:  # what is unconfirmed must not come behind what follows
            owner, connection = self._lane._core.owner, self._lane._session.connection
            timeout_s = connection._timeout_s(timeout)
            if not await self._lane._driver.wait(owner.gate, lambda: not owner.unconfirmed, timeout_s):
                raise timed_out(connection._machine, f"send to {self.destination}", timeout_s)
            self._left, self._lane = self._lane, None
            if (lanes := self._session.connection._lanes) is not None:
                lanes.leave(self.destination)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing sent with `wait=False` is unconfirmed; FlushError when some were refused."""
        failures: list[tuple[str, AmqError]] = []
        for each in (self._lane, self._left):
            if each is not None:
                with gathered(failures):
                    await each.flush(timeout)
        with gathered(failures):
            await super().flush(timeout)
        if failures:
            raise FlushError(failures)


async def connect(
    url: str,
    *,
    login: str = "",
    passcode: str = "",
    client_id: str = "",
    timeout: float | None = None,
    send_window_messages: int = SEND_WINDOW_MESSAGES,
    send_window_bytes: int = SEND_WINDOW_BYTES,
    exit_timeout: float = EXIT_TIMEOUT_S,
    on_event: Listener | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    names: Names = NAMES,
) -> Connection:
    """Connect to the master among the brokers of `url` and wait until it has accepted us. See `amq.connect`."""

    async def begin(to: str, client_id: str = "") -> Connection:
        machine = Machine(
            parse(to),
            rng or random.Random(),
            login=login,
            passcode=passcode,
            client_id=client_id,
            send_window_messages=send_window_messages,
            send_window_bytes=send_window_bytes,
            exit_timeout_s=exit_timeout,
        )
        made = Connection(AsyncDriver(machine, clock or SystemClock(), asyncio.get_running_loop(), names))
        if on_event is not None:
            made.on_event(on_event)
        try:
            await made._driver.start()
        except BaseException:
            await made.abort()
            raise
        return made

    async def lane(to: str) -> Connection:
        made = await begin(to)
        made._machine.falls_back = True
        return made

    connection = await begin(url, client_id)
    if connection._machine.url.options.redirect and not client_id:
        connection._lanes = AsyncLanes(connection, url, lane)
    await connection.wait_connected(timeout)
    return connection


__all__ = ["Browser", "Connection", "Consumer", "Message", "Producer", "Session", "connect"]
