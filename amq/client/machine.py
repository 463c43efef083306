"""The failover client as a pure state machine: no socket, no clock, no thread, no randomness of its own.

A driver tells it what happened (`start`, `opened`, `received`, `failed`, `tick`, `close`), then carries out `actions`,
writes each link's output, tells listeners `events`, and calls `tick` no later than `deadline()`. Sessions ask it for
`request`s. Invariants: the state changes by the table of `states` only; each request ends exactly once, by its receipt,
by a typed error, or when the machine closes; unanswered sends are replayed in their order and with their ids.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque

from amq.client.core import Subscription, Transaction
from amq.client.errors import (
    CommitOutcomeUnknownError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    DeliveryLostError,
    IllegalEventError,
    UriError,
    commit_unknown,
    error_of,
    final_error,
    is_final,
    is_refusal,
    is_transient,
    transaction_refused,
)
from amq.client.ledger import Ledger
from amq.client.link import (
    BROKERS_RECEIPT,
    VERSION,
    Action,
    Close,
    Fetch,
    Keep,
    Link,
    OpenLink,
    connect_frame,
    with_headers,
)
from amq.client.members import Members, shown
from amq.client.reconnect import Reconnector
from amq.client.requests import ConnectionEvent, EventKind, Gate, Request, RequestKind, SendOwner, open_gate
from amq.client.states import Event, Lifecycle, State
from amq.client.uri import SCHEME, TLS_SCHEME, BrokerUri, BrokerUrl
from amq.core.errors import AmqError, CommandError, ProtocolError, StoreFullError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode
from amq.protocols.stomp.reattaching import RECEIVED
from amq.protocols.stomp.runs import MESSAGES

SEND_WINDOW_MESSAGES = 1000
SEND_WINDOW_BYTES = 16 * 1024 * 1024
DISCONNECT_S_MAX = 2.0
PRIORITY_PROBE_EVERY_S = 2.0
EXIT_TIMEOUT_S = 5.0
HOME_CODES = ("MOVED", "MOVING")  # the destination lives in another store, or is on its way there
TLS_ALERT = b"\x15\x03"
_PORT_DOUBTS = {
    SCHEME: "is it a STOMP port, and one without TLS?",
    TLS_SCHEME: "is it a STOMP port, and does it want a certificate of this client (certificate=FILE)?",
}
LIST_EVERY_S = 5.0  # between two readings of updateURIsURL while there is no connection
LIST_PATIENCE_S = 5.0  # so long a client that would give up waits for a list that might name a broker that lives
LIST_ROUND_S = 0.05  # and tries meanwhile
REFUSALS_MAX = 3  # a login refused so often since the last success is refused for good


class Machine:
    """One client connection.

    flowing      requests go straight to the link: it is up and everything is restored
    line         takes frames: `link` when it is up, or the one that broke while the broker may keep its connection
    epoch        counts sessions of a broker; deliveries and transactions are valid in the one they name
    error        why the machine closed, if not by the application's wish
    falls_back   the connection prefers the master of one store, and has gateways besides: see `amq.client.lanes`
    """

    def __init__(
        self,
        url: BrokerUrl,
        rng: random.Random,
        *,
        login: str = "",
        passcode: str = "",
        client_id: str = "",
        send_window_messages: int = SEND_WINDOW_MESSAGES,
        send_window_bytes: int = SEND_WINDOW_BYTES,
        exit_timeout_s: float = EXIT_TIMEOUT_S,
    ) -> None:
        if not exit_timeout_s >= 0:
            raise CommandError(f"exit_timeout={exit_timeout_s}: write seconds, 0 or more")
        self.url = url
        self.exit_timeout_s = exit_timeout_s
        self.id_prefix = f"{rng.getrandbits(96):024x}-"
        self.link: Link | None = None
        self.line: Link | None = None
        self.epoch = 0
        self.flowing = False
        self.error: AmqError | None = None
        self.falls_back = False
        self.is_at_gateway = False
        self._stays = False  # falls_back: a destination has moved, so it goes on by gateways
        self.actions: list[Action] = []
        self.events: list[ConnectionEvent] = []
        self.logs: list[tuple[int, str]] = []
        self.up_gate: Gate = []  # opened when `flowing` becomes true, and at the end
        self.subscriptions: dict[str, Subscription] = {}
        self.transactions: set[Transaction] = set()
        self._life = Lifecycle()
        self.members = Members(url)
        self._route = Reconnector(self.members, rng)
        self._fetching: dict[str, float] = {}  # lists that are being read, and until when that may delay an end
        self._list_at = -math.inf
        self._list_trouble = ""  # as last reported
        self._kept = ""  # the content of knownBrokersFile
        self._probe: Link | None = None
        self._next_at: float | None = None  # WAITING: next round; CLOSING: patience; CONNECTED: next priority probe
        self.ledger = Ledger(send_window_messages, send_window_bytes)
        self.logs += [(logging.WARNING, warning) for warning in url.warnings]
        self.room_gate = self.ledger.room_gate  # opened when one may send again, and at the end
        self._unsent: deque[Request] = deque()  # to be written on this link when their turn comes
        self._barrier: Request | None = None  # nothing further is written before this one is answered
        self._careful = False  # one request at a time, to find out which one the broker refuses
        self._interrupted: tuple[BrokerUri, float] | None = None  # (old broker, since)
        self._lost: Link | None = None  # it broke, and the broker may keep what it held
        self._lost_until = 0.0
        self._refusals = 0
        self._counter = 0
        self._leave_at: float | None = None  # abandoned: then it closes, whatever is unconfirmed
        self._identity = login, passcode, client_id, self.id_prefix, url.learns
        try:
            for uri in url.uris:
                connect_frame(uri, *self._identity)
        except ValueError as error:
            raise UriError(f"login, passcode or client id: {error}") from None

    # ---- what the faces may ask

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def unconfirmed(self) -> int:
        """Sends that wait for their receipt."""
        return self.ledger.unconfirmed

    def at_stake(self) -> str:
        """Messages that may be lost without anybody knowing, in words; "" = none."""
        counts = ((self.unconfirmed, "unconfirmed"), (self.ledger.untold, "rejected"))
        words = " and ".join(f"{count} {state}" for count, state in counts if count)
        plural = "s" * (self.unconfirmed + self.ledger.untold != 1)
        return words and (
            f"{self.url}: the program left the connection with {words} message{plural}: call flush() of the producer, "
            "or close() of the connection, before the program ends"
        )

    def has_room(self) -> bool:
        """True when one more message may be sent. Raises when there is no connection any more."""
        self.check_open()
        line = self.line
        return self.ledger.has_room and (line is None or not (line.congested or line.dropped))

    def is_flowing(self) -> bool:
        """True when connected and restored. Raises when there is no connection any more."""
        self.check_open()
        return self.reaches

    @property
    def reaches(self) -> bool:
        """Is a request on its way to a broker? Not while it waits until the broker gives the connection back."""
        return self.flowing and self._lost is None

    def check_open(self) -> None:
        """Raises the typed error with which the connection ended."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.state in (State.CLOSED, State.CLOSING):
            raise ConnectionClosedError("the connection was closed")

    def why_not_connected(self) -> str:
        """Every address that failed since the last success, with its cause; "" = none."""
        return self._route.causes()

    def next_id(self) -> str:
        """An id that no other client connection gives, ever."""
        self._counter += 1
        return f"{self.id_prefix}{self._counter}"

    def next_receipt(self) -> bytes:
        self._counter += 1
        return b"%d" % self._counter

    # ---- requests

    def request(
        self,
        kind: RequestKind,
        receipt: bytes,
        frame: bytes,
        subject: str,
        owner: SendOwner | None = None,
        body: bytes = b"",
    ) -> Request:
        """Send `frame`, which asks for `receipt`, now or as soon as there is a broker again. A large `body` follows."""
        self.check_open()
        request = Request(kind, receipt, frame, subject, owner, body)
        self.ledger.enter(request)
        line = self.line
        if self.flowing:
            assert line is not None
            line.put(frame, body)
        elif line is not None:
            self._unsent.append(request)
        return request

    def write(self, frame: bytes, body: bytes = b"") -> None:
        """Write a frame without receipt on the line. A large `body` follows."""
        assert self.line is not None
        self.line.put(frame, body)

    def withdraw(self, request: Request, error: AmqError, now: float) -> None:
        """The caller waits no longer: `request` ends with `error` and is not replayed. Its late receipt is ignored."""
        if not request.done:
            if request.kind is RequestKind.SUBSCRIBE and self.line is not None and request not in self._unsent:
                self.write(encode("UNSUBSCRIBE", [("id", request.subject)]))
            self._end(request, error)
            self._pump(now)

    def _end(self, request: Request, error: AmqError | None = None) -> None:
        if request is self._barrier:
            self._barrier = None
        if request.kind is RequestKind.SUBSCRIBE and error is not None:
            subscription = self.subscriptions.pop(request.subject, None)
            if subscription is not None:
                subscription.end(error)
        self.ledger.end(request, error)

    # ---- what the driver reports

    def start(self, now: float) -> None:
        """Begin to connect."""
        self._life.on(Event.START)
        if path := self.url.options.known_brokers_file:
            self._fetch(path, now)
        self._route.start_round()
        self._dial(now)

    def opened(self, link: Link, now: float) -> None:
        """The TCP connection of `link` is established."""
        if link.dropped:
            return
        if link is not self._probe:
            self._expect(link)
            self._life.on(Event.OPENED)
        link.deadline = now + link.uri.options.connect_timeout_ms / 1000
        frame, options = connect_frame(link.uri, *self._identity), self.url.options
        if options.reconnect_window_ms and options.confirmation_window_size > 0:
            lost = self._lost if link is self.link else None
            window_ms, window_bytes = options.reconnect_window_ms, options.confirmation_window_size
            frame = with_headers(frame, link.ask(window_ms, window_bytes, lost))
        link.out.append(frame)

    def failed(self, link: Link, error: AmqError, now: float) -> None:
        """`link` could not be opened, or its socket was closed or broke."""
        if link.dropped:
            return
        if link is self._probe:
            self._drop_probe(now)
            return
        self._expect(link)
        if self.state is State.HANDSHAKE and isinstance(error, ConnectionLostError):
            text = f"{error} before it answered CONNECT: {_PORT_DOUBTS[link.uri.scheme]}"
            error = ConnectionLostError(text)
        keeps = link.token != "" and (isinstance(error, ConnectionLostError) or error.code == "HEART_BEAT_MISSED")
        self._broken(error, now, keeps=keeps)

    def received(self, link: Link, data: bytes, now: float) -> None:
        """Bytes arrived on `link`."""
        if link.dropped:
            return
        if link is not self._probe:
            self._expect(link)
        try:
            for frame in link.receive(data, now):
                if isinstance(frame, bytes):
                    self._on_receipt(frame, now)
                else:
                    self._on_frame(link, frame, now)
                if link is not self.link and link is not self._probe:  # dropped by what the frame said
                    return
        except ProtocolError as error:
            if link.accepted:
                self.failed(link, error, now)
                return
            alert = data.startswith(TLS_ALERT) and "it answers with a TLS alert: write stomp+ssl://"
            foreign = ConnectError(f"{link.uri} does not speak STOMP {VERSION}: {alert or error}")
            foreign.__cause__ = error
            self.failed(link, foreign, now)

    def fetched(self, source: str, found: str | OSError | ValueError) -> None:
        """A list of brokers was read, or cannot be."""
        del self._fetching[source]
        options, members = self.url.options, self.members
        before, is_file = members.uris, source == options.known_brokers_file
        if isinstance(found, str):
            if is_file:
                members.remembered(found)
                self._kept = self._kept or found
            else:
                members.listed(found)
            trouble = "; ".join(members.refused)
        else:
            trouble = "" if is_file and isinstance(found, FileNotFoundError) else str(found)
        if trouble and trouble != self._list_trouble:
            what = f"the list of brokers {source} ({'knownBrokersFile' if is_file else 'updateURIsURL'})"
            self.logs.append((logging.WARNING, f"{what} cannot be used, or not all of it: {trouble}"))
        self._list_trouble = trouble
        self._joined(before)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for link in (self._probe, self.link):
            if link is None or link.dropped:
                continue
            if link.accepted:
                try:
                    link.beat(now)
                except ProtocolError as error:
                    self.failed(link, error, now)
            elif link.deadline is not None and now >= link.deadline:
                limit_ms = link.uri.options.connect_timeout_ms
                why = f"{link.uri} did not answer within {limit_ms} ms"
                if link.looks_up:
                    why = f"{link.uri}: the look-up of the host name takes longer than {limit_ms} ms (connectTimeout)"
                self.failed(link, ConnectError(why), now)
        self._leave(now)
        if self._lost is not None and self.state is not State.HANDSHAKE and now >= self._lost_until:
            self._forget(ConnectionLostError(f"{self._lost.uri} keeps the connection no longer (reconnectWindow)"))
        if self._next_at is None or now < self._next_at:
            return
        if self.state is State.WAITING:
            self._retry(now)
        elif self.state is State.CLOSING:
            self._life.on(Event.DONE)
            self._finish(None, now)
        elif self.state is State.CONNECTED:
            self._start_probe(now)

    def deadline(self) -> float | None:
        """Monotonic seconds at which `tick` must be called; None = never."""
        times = [self._next_at, None if self.state in (State.CLOSING, State.CLOSED) else self._leave_at]
        if self._lost is not None and self.state is not State.HANDSHAKE:  # whose end comes first
            times.append(self._lost_until)
        times += [link.next_deadline() for link in (self.link, self._probe) if link is not None]
        return min((time for time in times if time is not None), default=None)

    def close(self, now: float) -> None:
        """The application wants no more: unanswered requests end with `ConnectionClosedError`. Again = abruptly."""
        self._life.on(Event.CLOSE)
        self.flowing = False
        self.line = None
        if self.state is State.CLOSED:
            self._finish(None, now)
            return
        self._end_all(ConnectionClosedError("the connection was closed before the broker answered"))
        receipt = self.next_receipt()
        frame = encode("DISCONNECT", [("receipt", receipt.decode())])
        self.ledger.enter(Request(RequestKind.DISCONNECT, receipt, frame, ""))
        assert self.link is not None
        self.link.out.append(frame)
        self._next_at = now + DISCONNECT_S_MAX

    def abandon(self, now: float) -> None:
        """Nobody uses the connection any more, and nobody closed it: it closes when all sends are confirmed, or after
        `exit_timeout_s`."""
        if self._leave_at is None:
            self._leave_at = now + self.exit_timeout_s
            self._leave(now)

    def _leave(self, now: float) -> None:
        state = self.state
        if self._leave_at is None or state in (State.CLOSING, State.CLOSED):
            return
        late = self.unconfirmed > 0
        if late and now < self._leave_at:
            return
        if text := self.at_stake():
            self.logs.append((logging.WARNING, text))
        self.close(now)
        if late and self.state is State.CLOSING:
            self.close(now)  # the broker had its time

    # ---- connecting

    def _expect(self, link: Link) -> None:
        if link is not self.link:
            raise IllegalEventError(f"{link.uri}: this machine did not open that link")

    def _dial(self, now: float) -> None:
        self._fetch_list(now)
        uri = self._route.next()
        assert uri is not None, "a round begins with at least one broker"
        self._next_at = None
        self.link = Link(uri, now + uri.options.connect_timeout_ms / 1000)
        self.actions.append(OpenLink(self.link))

    def _retry(self, now: float) -> None:
        self._life.on(Event.RETRY)
        self._dial(now)

    def _dismiss(self, link: Link) -> None:
        """Its broker shall not wait for us."""
        if link.token:
            link.out.append(encode("DISCONNECT", []))
        self._drop(link)

    def _drop(self, link: Link) -> None:
        link.dropped = True
        self.actions.append(Close(link))

    def _broken(
        self, error: AmqError, now: float, *, broker_lives: bool = False, at_once: bool = False, keeps: bool = False
    ) -> None:
        """The link is of no use any more: drop it, then wait for the next attempt, or give up. `keeps`: the broker may
        keep what the link held."""
        link = self.link
        assert link is not None
        self._drop(link)
        self.link = None
        if self.state is State.CLOSING:
            self._life.on(Event.FAILED)
            self._finish(None, now)
            return
        if self.state is State.CONNECTED:
            wait_s = None if is_final(error) else self._route.lost(now)
            if wait_s is not None and at_once:
                wait_s = 0.0
            self._interrupt(link.uri, error, now)
            if keeps and wait_s is not None:
                self._lost, self._lost_until = link, now + link.kept_s
            else:
                self._forget(error)
            self._route.start_round(link.uri, same_first=broker_lives or self._lost is not None)
        else:
            self.logs.append((logging.DEBUG, str(error)))
            self._route.failed(link.uri, error)
            wait_s = self._after_failed_attempt(link.uri, error, now)
        if wait_s is None:
            refused = is_final(error) or (self.state is not State.CONNECTED and self._is_refusal(link.uri, error))
            lost_for_good = self.epoch > 0 and self.url.options.max_reconnect_attempts == 0
            causes, limit = self._route.causes(), self._route.limit if self.url.failover else ""
            given_up = final_error(str(self.url), error, failover=not lost_for_good, causes=causes, limit=limit)
            final = error if refused else given_up
            self._life.on(Event.GIVE_UP)
            self._finish(final, now)
            return
        self._life.on(Event.FAILED)
        self._next_at = now + wait_s
        if not wait_s:
            self._retry(now)

    def _is_refusal(self, uri: BrokerUri, error: AmqError) -> bool:
        """Will `uri` refuse us again? A broker that was learned of, perhaps long ago, ends no connection by that."""
        return is_refusal(error) and uri in self.url.uris

    def _after_failed_attempt(self, uri: BrokerUri, error: AmqError, now: float) -> float | None:
        """Seconds to wait; 0 = the next broker of this round follows at once; None = give up."""
        if self._is_refusal(uri, error):
            self._refusals += 1
            if not self.epoch or self._refusals >= REFUSALS_MAX:
                return None
        if self._route.has_next:
            return 0.0
        if not self.epoch and any(now < until for until in self._fetching.values()):
            self._route.start_round(uri)
            return LIST_ROUND_S  # a list may name more: this round is not over
        wait_s = self._route.round_failed()
        if self._route.must_warn:
            limit = self._route.limit
            text = f"{self.url}: {self._route.rounds_failed} rounds of attempts failed: {self._route.causes()}; "
            text += f"the client gives up after {limit}" if limit else "the client goes on"
            self.logs.append((logging.WARNING, text))
        self._route.start_round(uri)
        return wait_s

    def _interrupt(self, uri: BrokerUri, error: AmqError, now: float) -> None:
        """The link is gone: listeners are told."""
        if self._probe is not None:
            self._drop(self._probe)
            self._probe = None
        if self._interrupted is None:
            self._interrupted = (uri, now)
            self.events.append(ConnectionEvent(EventKind.INTERRUPTED, uri, error=error))

    def _forget(self, error: AmqError) -> None:
        """No broker keeps what the line held: what was delivered on it is invalid, what was asked on it is decided or
        waits."""
        self.flowing = False
        self.line = self._lost = None
        for transaction in self.transactions:
            transaction.doomed = transaction.doomed or error
        for subscription in self.subscriptions.values():
            subscription.interrupt()
        self._unsent.clear()
        self._barrier = None
        self.ledger.link_lost(error)
        open_gate(self.room_gate)

    # ---- members that the URL does not name

    def _fetch(self, source: str, now: float) -> None:
        if source and source not in self._fetching:
            self._fetching[source] = now + LIST_PATIENCE_S
            self.actions.append(Fetch(source))

    def _fetch_list(self, now: float) -> None:
        """Read `updateURIsURL` where the last time was long ago."""
        if self.url.options.update_uris_url and now >= self._list_at:
            self._list_at = now + LIST_EVERY_S
            self._fetch(self.url.options.update_uris_url, now)

    def _learn(self, frame: Frame, teller: BrokerUri) -> None:
        """The broker at `teller` tells where its group is, if it does."""
        text = frame.headers.get("brokers", "")
        if not text or not self.url.learns:
            return
        before = self.members.uris
        self.members.told(text, teller)
        told = f"{teller} tells of a broker that is not used"
        self.logs += [(logging.DEBUG, f"{told}: {why}") for why in self.members.refused]
        self._joined(before)
        path, kept = self.url.options.known_brokers_file, self.members.text()
        if path and kept != self._kept:
            self._kept = kept
            self.actions.append(Keep(path, kept))

    def _joined(self, before: tuple[BrokerUri, ...]) -> None:
        """The members were `before`."""
        if self.members.uris != before:
            self._route.learned(before)
            self.logs.append((logging.INFO, f"{self.url}: brokers of the group: {shown(self.members.uris)}"))

    # ---- connected

    def _accept(self, link: Link, connected: Frame, now: float) -> None:
        try:
            goes_on = link.accept(connected, now, None if link is self._probe else self._lost)
        except ProtocolError as error:
            if self._lost is not None:
                self._forget(error)
            raise
        if goes_on:
            self._reattach(link, connected, now)
            return
        if link is self._probe:
            if self.transactions or not self.flowing or (self.falls_back and (self.subscriptions or self._stays)):
                self._drop_probe(now)  # later: a move would roll these transactions back
                return
            self._life.on(Event.SWITCH)
            assert self.link is not None
            old, self._probe = self.link, None
            self._dismiss(old)
            moving = ConnectionLostError(f"moving to the preferred broker {link.uri}")
            self._interrupt(old.uri, moving, now)
            self._forget(moving)
            self.link = link
        else:
            self._life.on(Event.ACCEPTED)
        if self._lost is not None:
            self._forget(ConnectionLostError(f"{link.uri} has not kept the connection that broke"))
        self.line = link
        self.epoch += 1
        self._accepted(link, connected, now)
        self._restore()
        self._pump(now)

    def _accepted(self, link: Link, connected: Frame, now: float) -> None:
        self._route.accepted(now)
        self._learn(connected, link.uri)
        self.is_at_gateway = bool(link.cluster)
        self._refusals = 0
        preferred = [] if self._stays else self._route.priority
        self._next_at = now + PRIORITY_PROBE_EVERY_S if preferred and link.uri not in preferred else None

    def _reattach(self, link: Link, connected: Frame, now: float) -> None:
        """The broker has kept what the lost link held: all goes on where it was."""
        self._life.on(Event.ACCEPTED)
        self._lost, self.line = None, link
        self._accepted(link, connected, now)
        if self.flowing and self._interrupted is not None:
            old, since = self._interrupted
            self._interrupted = None
            self.events.append(ConnectionEvent(EventKind.REATTACHED, old, link.uri, now - since))
            open_gate(self.up_gate)
        open_gate(self.room_gate)
        self._pump(now)

    def _restore(self) -> None:
        """Queue what the new link must hear: questions about commits first, then subscriptions, then sends."""
        pending = self.ledger.all()
        asked = {request.subject: request for request in pending if request.kind is RequestKind.SUBSCRIBE}
        for id, request in asked.items():
            if id not in self.subscriptions:
                self._end(request)  # its consumer was closed meanwhile
        restored = [s.request(self) for s in self.subscriptions.values() if s.id not in asked]
        self._unsent = deque(
            request for request in pending if request.kind in (RequestKind.COMMIT, RequestKind.RESOLVE)
        )
        self._unsent.extend([*asked.values(), *restored])
        self._unsent.extend(request for request in pending if request.kind in (RequestKind.END, RequestKind.SEND))

    def _pump(self, now: float) -> None:
        """Write queued requests as far as the barrier allows; when all are written, the connection is restored."""
        if self.flowing or self.state is not State.CONNECTED:
            return
        assert self.link is not None
        while self._unsent and self._barrier is None:
            request = self._unsent.popleft()
            if request.done:
                continue
            self.link.put(request.frame, request.body)
            if self._careful or request.kind is RequestKind.COMMIT:
                self._barrier = request
        if self._barrier is not None or self._unsent:
            return
        self._careful = False
        self.flowing = True
        if self._interrupted is not None:
            old, since = self._interrupted
            self._interrupted = None
            self.events.append(ConnectionEvent(EventKind.FAILOVER, old, self.link.uri, now - since))
        open_gate(self.up_gate)
        open_gate(self.room_gate)
        for subscription in self.subscriptions.values():
            subscription.resume(self)

    def _on_receipt(self, receipt: bytes, now: float, outcome: str = "") -> None:
        request = self.ledger.find(receipt)
        if request is None:  # withdrawn
            return
        request.outcome = outcome
        barrier = self._barrier
        self._end(request)
        if request.kind is RequestKind.DISCONNECT:
            self._life.on(Event.DONE)
            self._finish(None, now)
        elif request is barrier:
            self._pump(now)

    def _on_frame(self, link: Link, frame: Frame, now: float) -> None:
        command = frame.command
        if not link.accepted:
            if command == "CONNECTED":
                self._accept(link, frame, now)
            elif command == "ERROR":
                self.failed(link, error_of(frame), now)
            else:
                raise ProtocolError(f"{link.uri} answered CONNECT with {command}: is it a STOMP broker?")
        elif command in ("MESSAGE", MESSAGES):
            subscription = self.subscriptions.get(frame.headers.get("subscription", ""))
            if subscription is not None:  # else: on its way while the consumer was closed; the broker requeues it
                subscription.deliver(frame, self.epoch)
        elif command == "RECEIPT" and frame.headers.get("receipt-id") == BROKERS_RECEIPT:
            self._learn(frame, link.uri)
        elif command == "RECEIPT":
            outcome = frame.headers.get("outcome", "") or frame.body.decode("utf-8", "replace")
            self._on_receipt(frame.headers.get("receipt-id", "").encode(), now, outcome)
        elif command == "ERROR":
            self._on_error(frame, now)
        elif command == RECEIVED:
            link.confirmed(frame)
        else:
            raise ProtocolError(f"{link.uri} sent {command}, which a broker does not send")

    def _on_error(self, frame: Frame, now: float) -> None:
        """The broker refuses something and closes: end the request that it names, or find out which it is."""
        error = error_of(frame)
        is_moved = error.code in HOME_CODES and self.falls_back and self.link is not None and not self.link.cluster
        self._stays = self._stays or is_moved
        if is_transient(error) or is_moved:  # a gateway finds its new home
            self._broken(error, now)
            return
        request = self.ledger.find(frame.headers.get("receipt-id", "").encode()) or self._barrier
        if request is not None:
            if (
                request.kind is RequestKind.COMMIT
                and request.replayed
                and not isinstance(error, TransactionRolledBackError)
            ):
                unknown = CommitOutcomeUnknownError(
                    f"the broker does not know what became of the commit: {error}", outcome_id=request.outcome_id
                )
                unknown.__cause__ = error
                error = unknown
            elif request.refused is not None and error.code == TransactionRolledBackError.code:
                error = transaction_refused(request.refused)
            refused = [request]
            if isinstance(error, StoreFullError) and request.kind is RequestKind.COMMIT:
                error = TransactionRolledBackError(error.description, code=error.code)
            elif isinstance(error, StoreFullError):  # and so were those behind it: do not try them one by one
                pending = self.ledger.all()
                behind = (r for r in pending[pending.index(request) + 1 :] if r.kind is RequestKind.SEND)
                refused += (r for r in behind if r.owner is request.owner or error.code != "QUEUE_FULL")
            for one in refused:
                self._end(one, error)
        else:
            self._blame(error)
            self._careful = self._careful or bool(self.ledger)
        self._broken(error, now, broker_lives=True, at_once=request is not None)

    def _blame(self, error: AmqError) -> None:
        """The broker refused something for which no receipt was asked, such as a SEND in a transaction. Where several
        transactions are open nothing says which one is meant: none is blamed, and all run again."""
        if isinstance(error, DeliveryLostError):
            return
        commits = [request for request in self.ledger.all() if request.kind is RequestKind.COMMIT]
        found: list[Transaction | Request] = [*self.transactions, *commits]
        if len(found) == 1:
            found[0].refused = error

    # ---- a preferred broker

    def _start_probe(self, now: float) -> None:
        preferred = self._route.priority
        uri = preferred[self._counter % len(preferred)]
        self._counter += 1
        self._next_at = None
        self._probe = Link(uri, now + uri.options.connect_timeout_ms / 1000)
        self.actions.append(OpenLink(self._probe))

    def _drop_probe(self, now: float) -> None:
        assert self._probe is not None
        self._dismiss(self._probe)
        self._probe = None
        if self.state is State.CONNECTED:
            self._next_at = now + PRIORITY_PROBE_EVERY_S

    # ---- the end

    def _finish(self, error: AmqError | None, now: float) -> None:
        """The state is CLOSED: whoever waits is told."""
        self._next_at = None
        for link in (self.link, self._probe):
            if link is not None and not link.dropped:
                self._drop(link)
        self.link = self._probe = self.line = self._lost = None
        self.flowing = False
        if self.error is None:
            self.error = error
        if error is not None and self._interrupted is not None:
            old, since = self._interrupted
            self.events.append(ConnectionEvent(EventKind.DISCONNECT, old, None, now - since, error))
        self._interrupted = None
        self._end_all(error or ConnectionClosedError("the connection was closed before the broker answered"))

    def _end_all(self, error: AmqError) -> None:
        self._unsent.clear()
        for request in self.ledger.all():
            if request.kind is RequestKind.DISCONNECT:
                self._end(request)
            elif request.kind is RequestKind.COMMIT and request.outcome_id:
                self._end(request, commit_unknown(error, request.outcome_id))
            else:
                self._end(request, error)
        for subscription in list(self.subscriptions.values()):
            subscription.end(error)
        self.subscriptions.clear()
        for transaction in self.transactions:
            transaction.doomed = transaction.doomed or error
        open_gate(self.up_gate)
        open_gate(self.room_gate)
