"""The synchronous face: `connect` and Connection. Blocking calls end by success or by a typed error.

    with amq.connect("failover:(stomp://a:61613,stomp://b:61613)") as connection, connection.session() as session:
        session.producer("/queue/orders").send("one pizza")
        message = session.consumer("/queue/orders").receive(timeout=5)

Safe to use from several threads; a session should be used by one at a time. Not usable in a forked child.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Callable, Iterable

from amq.client import leases, whereabouts
from amq.client.core import SessionCore, resolve_timed_out, timed_out
from amq.client.driver import Driver, Listener, seconds
from amq.client.errors import ConnectionClosedError, FlushError, gathered
from amq.client.lanes import Lanes
from amq.client.machine import EXIT_TIMEOUT_S, SEND_WINDOW_BYTES, SEND_WINDOW_MESSAGES, Machine
from amq.client.names import NAMES, Names
from amq.client.requests import Request, RequestKind
from amq.client.session import Session
from amq.client.states import State
from amq.client.two_phase import PREPARED_QUEUE, PreparedTransaction, abort_batch, commit_batch, finish, rolled_back
from amq.client.uri import BrokerUri, parse
from amq.core.errors import AmqError
from amq.doors.clock import Clock, SystemClock

log = logging.getLogger("amq.client")


class Connection:
    """One connection to whichever broker of the URL is master. Made by `connect`; close it, or use `with`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._machine = driver.machine
        self._sessions: list[Session] = []
        self._closed = False
        self._lanes: Lanes[Connection] | None = None  # direct connections to stores of a cluster

    def session(self, *, transacted: bool = False, ack: str = "client-individual") -> Session:
        """A new session. `ack`: client-individual, client (cumulative) or auto (acknowledged when handed over).

        In a transacted session `commit()` acknowledges what was received and publishes what was sent.
        """
        self._check_fork()
        with self._driver.lock:
            self._machine.check_open()
            session = Session(self, SessionCore(self._machine, transacted, ack))
            self._sessions.append(session)
        return session

    def commit_prepared(self, xid: str, timeout: float | None = None) -> None:
        """Second phase: commit the prepared transaction `xid` of any client. The call may be repeated.

        It survives a failover. Raises TransactionRolledBackError: somebody, or its timeout, rolled the transaction
        back; CommandError: the broker does not know it (UNKNOWN_TRANSACTION); TransactionRetryError: no answer in time.
        """
        self._ask(lambda: finish(self._machine, "COMMIT", xid), f"commit of {xid}", timeout)

    def rollback_prepared(self, xid: str, timeout: float | None = None) -> None:
        """Roll the prepared transaction `xid` back: the broker discards its messages and delivers again those that it
        received. Raises CommandError: it was committed (XID_COMMITTED), or the broker does not know it."""
        self._ask(lambda: finish(self._machine, "ABORT", xid), f"rollback of {xid}", timeout)

    def commit_batch(
        self,
        owner: str,
        batch: int,
        xids: Iterable[str],
        timeout: float | None = None,
        *,
        content: tuple[int, int] | None = None,
    ) -> str:
        """Commit the transactions `xids`, all prepared for `batch` of `owner`, together, once.

        Returns "committed", or "duplicate": that batch was committed before, and nothing was done. The broker rolls
        back everything else that is prepared for this or an older batch of the owner.

        `content` is the number of rows of the batch and a checksum of them, each below 2**64: the broker keeps both,
        and compares a batch that comes again. Raises CommandError: a newer batch is committed (BATCH_TOO_OLD), this one
        with other content (BATCH_DIFFERS), or an xid is not known or of another batch; TransactionRolledBackError: one
        was rolled back. Then nothing was done.
        """
        names = list(xids)
        what = f"commit of batch {batch} of {owner}"
        return self._ask(lambda: commit_batch(self._machine, owner, batch, names, content), what, timeout).outcome

    def rollback_batch(
        self, owner: str, batch: int | None = None, xids: Iterable[str] | None = None, timeout: float | None = None
    ) -> int:
        """Roll back what is prepared for `owner`: everything, or one `batch`, or only `xids` of that batch.

        Returns how many transactions were rolled back. Transactions that have ended stay as they are, so the
        call may be repeated.
        """
        names = None if xids is None else list(xids)
        what = f"rollback of what {owner} prepared"
        request = self._ask(lambda: abort_batch(self._machine, owner, batch, names), what, timeout)
        return rolled_back(request.outcome)

    def lease(
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
        """Set the next messages that wait at `destination` apart for `cursor`: at most `messages`, and about `size`
        bytes (0 = as many as the broker allows). They are read with `Session.lease_reader` and end with `settle`.

        If the cursor has leases beyond number `after`, the oldest of them is returned and nothing is set apart: so a
        program that comes back asks for what it had. `messages` 0 only asks. A lease that nobody settles stays, or is
        given back after `lease_timeout` seconds. A topic means the durable subscription with the cursor's name.

        With `take` the cursor belongs to this program from now on: the lease that is returned has its new `epoch`. Give
        that to all further calls: as soon as another program takes the cursor, they fail. Raises CommandError: another
        program took it (CURSOR_TAKEN), `after` is a number of another store (UNKNOWN_LEASE); TransactionRetryError: no
        answer.

        With `places` the lease says where in the files of the store its messages stand, if the broker's `directReads`
        names this user.
        """
        what = f"lease of {destination} for {cursor}"
        words = (destination, cursor, after, messages, size, lease_timeout, take, epoch, places)
        return leases.MessageLease.parse(self._ask(lambda: leases.ask(self._machine, *words), what, timeout).outcome)

    def lease_many(
        self, wanted: Iterable[leases.LeaseRequest], timeout: float | None = None
    ) -> list[leases.MessageLease]:
        """The answers to several questions as `lease` asks them, all asked at once. Raises what that raises, for the
        first that fails."""
        self._check_waits()
        with self._driver.lock:
            requests = [leases.ask(self._machine, *each) for each in wanted]
            for request in requests:
                what = f"lease for {request.subject}"
                self._await(request, what, timeout, resolve_timed_out(self._timeout_s(timeout), what))
        return [leases.MessageLease.parse(request.outcome) for request in requests]

    def settle(
        self,
        destination: str,
        cursor: str,
        through: int,
        *,
        acknowledge: bool = True,
        epoch: int = 0,
        timeout: float | None = None,
    ) -> None:
        """End all leases of `cursor` up to number `through`: acknowledge their messages, or give them back. The call
        may be repeated. Raises CommandError: another program took the cursor after `epoch` (CURSOR_TAKEN);
        TransactionRetryError: no answer in time, call again."""
        what = f"end of leases of {destination} for {cursor}"
        self._ask(lambda: leases.settle(self._machine, acknowledge, destination, cursor, through, epoch), what, timeout)

    def where(self, *destinations: str, timeout: float | None = None) -> whereabouts.Whereabouts | None:
        """In which stores of its cluster does each of `destinations` live, and where are their masters? None where the
        connection leads to a broker, which serves one store, and to no gateway of a cluster."""
        self._check_waits()
        with self._driver.lock:
            machine, timeout_s = self._machine, self._timeout_s(timeout)
            if not self._driver.wait(machine.up_gate, machine.is_flowing, timeout_s):  # what is there is unknown
                raise timed_out(machine, "where", timeout_s)
            if not whereabouts.is_gateway(machine):
                return None
        request = self._ask(lambda: whereabouts.ask(self._machine, destinations), "where", timeout)
        with self._driver.lock:
            return whereabouts.answer(self._machine, request.outcome)

    def recover(self, timeout: float | None = None) -> list[PreparedTransaction]:
        """List the prepared transactions of all clients, oldest first."""
        found: dict[bytes, PreparedTransaction] = {}  # a failover repeats some; several stores have parts of one xid
        timeout_s = self._timeout_s(timeout)
        with self.session() as session:
            browser = session.browser(PREPARED_QUEUE, timeout=timeout)
            while (message := browser.receive(timeout_s)) is not None:
                found[message.body] = PreparedTransaction.parse(message.body)
            if not browser.finished:
                raise timed_out(self._machine, "list of prepared transactions", timeout_s)
        return list(found.values())

    def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until a broker has accepted us. Raises what `connect` raises, and then the connection is closed."""
        machine = self._machine
        try:
            with self._driver.lock:
                timeout_s = self._timeout_s(timeout)
                if not self._driver.wait(machine.up_gate, machine.is_flowing, timeout_s):
                    raise timed_out(machine, "connect", timeout_s)
        except BaseException:
            self.abort()
            raise

    def on_event(self, listener: Listener) -> Listener:
        """Call `listener(event)` on INTERRUPTED, FAILOVER, REATTACHED and DISCONNECT, also when the client recovers by
        itself.

        It runs in the connection's own thread: it must not wait for this connection (that raises `CommandError`); it
        may close it, and may use others. Returns `listener`, so that it can stand before a function as a decorator.
        """
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
        with self._driver.lock:
            return self._machine.why_not_connected()

    @property
    def unconfirmed(self) -> int:
        """Messages sent whose receipt has not arrived."""
        return self._machine.unconfirmed + sum(lane.unconfirmed for lane in self._all_lanes())

    @property
    def direct(self) -> dict[str, BrokerUri | None]:
        """With `redirect=true`: the stores of the cluster to which there is a separate connection, and where it leads
        now, to the master or to a gateway."""
        return self._lanes.stores if self._lanes is not None else {}

    def _all_lanes(self) -> list[Connection]:
        return self._lanes.all if self._lanes is not None else []

    @property
    def closed(self) -> bool:
        """True when it cannot be used any more, closed by the application or by a DISCONNECT, or in a forked child."""
        return self._closed or self._driver.forked or self._machine.state in (State.CLOSING, State.CLOSED)

    def close(self, timeout: float | None = None) -> None:
        """Flush what is unconfirmed (`timeout` seconds; None = the URL's), close all sessions, disconnect.

        The thread has ended when this returns or raises. Raises what `flush` and `rollback` raise. Again = nothing. In
        a listener, which must not wait, it is `abort`.
        """
        if self._closed:
            return
        if self._driver.forked:
            self._closed = True
            self._driver.close_after_fork()
            return
        if self._driver.is_own_thread():
            self.abort()
            return
        failures: list[tuple[str, AmqError]] = []
        try:
            for session in list(self._sessions):
                with gathered(failures):
                    session.close(timeout)
        finally:
            self.abort()
        if failures:
            raise FlushError(failures)

    def abort(self) -> None:
        """Disconnect without waiting for what is unconfirmed. The thread has ended when this returns."""
        self._check_fork()
        self._closed = self._driver.settled = True
        for lane in self._all_lanes():
            lane.abort()
        with self._driver.lock:
            machine = self._machine
            if machine.unconfirmed:
                log.warning("%s closed with unconfirmed messages: %d", machine.url, machine.unconfirmed)
            if machine.state is not State.CLOSED:
                machine.close(self._driver.clock.monotonic())
                self._driver.kick()
        self._driver.join()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._driver.forked:
            self.close()
        elif not self._closed:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._driver.pid:
            if self._machine.state is not State.CLOSED:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._driver.abandon()

    def __repr__(self) -> str:
        return f"<Connection {self._machine.url} {self._machine.state.value}>"

    # ---- for sessions

    def _check_fork(self) -> None:
        if self._driver.forked:
            raise ConnectionClosedError("a connection cannot be used in a forked child: connect anew there")

    def _check_waits(self) -> None:
        """Before a call that waits has asked for anything. Raises CommandError where a listener makes it."""
        self._check_fork()
        self._driver.check_waits()

    def _timeout_s(self, timeout: float | None) -> float:
        return seconds(timeout, self._machine.url.options.timeout_ms)

    def _ask(self, ask: Callable[[], Request], what: str, timeout: float | None) -> Request:
        self._check_waits()
        with self._driver.lock:
            request = ask()
            self._await(request, what, timeout, resolve_timed_out(self._timeout_s(timeout), what))
        return request

    def _await(self, request: Request | None, what: str, timeout: float | None, error: AmqError | None = None) -> None:
        """Wait for the end of `request` with the lock held. After the time withdraw it with `error`, unless it is an
        ACK: that is on its way, and a second call may wait for it."""
        if request is None:
            return
        timeout_s = self._timeout_s(timeout)
        if not self._driver.wait(request.gate, lambda: request.done, timeout_s):
            duplicate_id = request.subject if request.owner is None else ""
            error = error or timed_out(self._machine, what, timeout_s, duplicate_id)
            if request.kind is RequestKind.ACK:
                raise error
            self._machine.withdraw(request, error, self._driver.clock.monotonic())
        if request.error is not None:
            raise request.error


def connect(
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
    """Connect to the master among the brokers of `url` (docs/failover-url.md) and wait until it has accepted us.

    timeout             seconds to wait; None = the URL's `timeout`
    send_window_messages, send_window_bytes
                        how much may be unconfirmed; `send` waits beyond that
    exit_timeout        seconds for which a program that ends, or drops the connection, without closing it waits until
                        its sends are confirmed; then a warning in the log tells how many are not
    on_event            a first listener, see `Connection.on_event`

    Raises UriError, AccessError (login refused: no further attempts), ConnectError (attempts used up) or
    FailoverTimeoutError.
    """
    connection = begin(
        url,
        login=login,
        passcode=passcode,
        client_id=client_id,
        send_window_messages=send_window_messages,
        send_window_bytes=send_window_bytes,
        exit_timeout=exit_timeout,
        on_event=on_event,
        clock=clock,
        rng=rng,
        names=names,
    )
    connection.wait_connected(timeout)
    return connection


def begin(
    url: str,
    *,
    login: str = "",
    passcode: str = "",
    client_id: str = "",
    send_window_messages: int = SEND_WINDOW_MESSAGES,
    send_window_bytes: int = SEND_WINDOW_BYTES,
    exit_timeout: float = EXIT_TIMEOUT_S,
    on_event: Listener | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    names: Names = NAMES,
) -> Connection:
    """Begin to connect and do not wait: see `Connection.wait_connected`. Raises UriError."""
    broker_url = parse(url)
    machine = Machine(
        broker_url,
        rng or random.Random(),
        login=login,
        passcode=passcode,
        client_id=client_id,
        send_window_messages=send_window_messages,
        send_window_bytes=send_window_bytes,
        exit_timeout_s=exit_timeout,
    )
    connection = Connection(Driver(machine, clock or SystemClock(), names))
    if on_event is not None:
        connection.on_event(on_event)
    if broker_url.options.redirect and not client_id:

        def lane(to: str) -> Connection:
            made = begin(
                to,
                login=login,
                passcode=passcode,
                send_window_messages=send_window_messages,
                send_window_bytes=send_window_bytes,
                exit_timeout=exit_timeout,
                clock=clock,
                rng=rng,
                names=names,
            )
            made._machine.falls_back = True
            made._driver.listeners += connection._driver.listeners
            return made

        connection._lanes = Lanes(connection, url, lane)
    connection._driver.start()
    return connection
