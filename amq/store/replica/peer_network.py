"""The network between the members of a group: each dials every other one, and keeps the connection.

The author of a message sends it on the connection that it dialled, and the answer comes back on the same one. Messages
may be lost, so that no sender ever waits: the machines repeat by tick. Invariants: nothing of a stranger passes the
hello, which is bounded in bytes, time and number; what waits for a member is bounded, and a slow member delays no
other; a connection that is half open is found by its silence.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from socket import AF_INET, AF_INET6, SHUT_RDWR, create_connection, create_server, socket
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from amq.core.errors import AmqError, ConfigError
from amq.core.proof import NONCE_BYTES, PROOF_BYTES
from amq.doors.threads import Thread, Threads
from amq.doors.tls import words
from amq.store.port import EventLoop
from amq.store.replica.peer_conversation import ConnectionEndError, Conversation, Loan
from amq.store.replica.peer_hello import HELLO_BYTES, NO_PROOF, MemberName, OtherMemberError, PeerHello
from amq.store.replica.peer_socket import PeerSocket
from amq.store.replica.peer_tls import PeerTls, certificate_refused
from amq.store.replica.port import Receive
from amq.store.replica.wire import (
    ANSWER_KINDS,
    BEAT_FRAME,
    ID,
    MEMBERS_MAX,
    TO_A_COPY_KINDS,
    Framer,
    PeerWireError,
)

STRANGERS_MAX: Final = 16  # connections that have not proved the secret; the oldest gives way
BACKLOG: Final = 128
BEAT_S: Final = 1.0
HELLO_TICKS: Final = 5  # beats, until a hello must be over
SILENCE_TICKS: Final = 10  # beats without a byte, after which a connection is taken for half open
TOLD_TICKS: Final = 10  # between two log lines about strangers
RENEW_TICKS: Final = 60  # between two looks at the certificates
DIAL_S: Final = 5.0
WAIT_MIN_S, WAIT_MAX_S = 0.05, 2.0  # between two tries
GONE_DIALS: Final = 2  # in vain, one after the other, since the connection ended: then the member is gone
HEARD_MIN: Final = 20  # reads, after which a connection that breaks is dialled anew at once
THREADS_MAX: Final = 3 * MEMBERS_MAX  # of these connections
JOIN_S: Final = 2.0
_log = structlog.get_logger("amq.replica")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """The name of this member, and how it talks with others.

    listen     host and port; port 0 = any
    announced  "HOST:PORT" that others dial, "" = `listen`
    secret     may be empty where there is TLS
    """

    me: str
    group: str
    listen: tuple[str, int]
    announced: str = ""
    secret: bytes = b""
    tls: PeerTls | None = None


@dataclass(frozen=True, slots=True)
class PeerState:
    """How the connection to a member is, for people. `waiting_bytes` are on their way to it, `dropped` = messages that
    found no room. `reason` = why it is not connected."""

    member: str
    address: str
    is_connected: bool
    waiting_bytes: int
    dropped: int
    reason: str


def parse_address(text: str) -> tuple[str, int]:
    """Raises ConfigError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.path or parts.query or parts.username:
        raise ConfigError(f"{text!r} is not HOST:PORT", code="STORE_URL_INVALID")
    return host, port


class PeerNetwork:
    """See `amq.store.replica.port.Peers`. `receive(member, message, answer)` takes a message to this copy in the thread
    of its author's connection, in the order in which it was sent, and may block; `answer` may be called from any
    thread, and does not wait. It takes the answers of other copies in the threads of their connections, or in the event
    loop of `hear_on`. It raises nothing."""

    def __init__(self, settings: PeerSettings, receive: Receive, threads: Threads, entropy: Random) -> None:
        for name in (settings.me, settings.group):
            if not ID.fullmatch(name):
                raise ConfigError(
                    f"{name!r} cannot name a member or a group: take letters, digits, '_', '.' and '-'",
                    code="STORE_URL_INVALID",
                )
        self.settings = settings
        self.receive = receive
        self.threads = threads
        self.entropy = entropy
        self.stop = threads.event()
        self._lock = Lock()
        self._framer = Framer()
        self._running: dict[int, Thread | None] = {}
        self._running_lock = Lock()
        self._numbers = count(1)
        self._listener: socket | None = None
        self._contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = None, None  # of diallers, of the listener
        self._diallers: dict[str, _Dialler] = {}
        self._left: dict[str, None] = {}  # members that were connected, and that the roster has no more
        self._authors: dict[str, PeerSocket] = {}  # connections that came in, by member
        self._hellos: dict[PeerSocket, int] = {}  # with the tick at which they began, of both sides
        self._strangers: dict[PeerSocket, None] = {}  # those of them that came in
        self._loop: EventLoop | None = None
        self._loans: tuple[Loan, ...] = ()
        self._ticks = 0
        self._refused = 0
        self._told_at = -TOLD_TICKS

    def start(self) -> None:
        """Listen. Raises OSError, ConfigError."""
        self._contexts = self._new_contexts()
        host, port = self.settings.listen
        family = AF_INET6 if ":" in host else AF_INET
        self._listener = create_server((host, port), family=family, backlog=BACKLOG)
        self.address = self.settings.announced or _shown(self._listener.getsockname())
        self._run("amq-peers-listener", self._listen, self._listener)
        self._run("amq-peers-beats", self._beat)

    def meet(self, addresses: Mapping[str, str]) -> None:
        """Those are the addresses of all members, by id. A member that is not among them is dialled no more once its
        connection has broken."""
        wanted = {each: addresses[each] for each in sorted(addresses) if each != self.settings.me}
        with self._lock:
            if self.stop.is_set():
                return
            for member in [*self._diallers]:
                if member not in wanted and self._diallers[member].sock is None:
                    dialler = self._diallers.pop(member)
                    if dialler.was_connected:
                        self._left[member] = None
                    dialler.end()
            while len(self._left) > MEMBERS_MAX:
                del self._left[next(iter(self._left))]
            for member, address in wanted.items():
                known = self._diallers.get(member)
                if known is not None:
                    known.look(address)
                elif len(self._diallers) < MEMBERS_MAX and ID.fullmatch(member):
                    self._left.pop(member, None)
                    self._diallers[member] = made = _Dialler(self, member, address)
                    self._run(f"amq-peer-{member}", made.run)

    def members(self) -> frozenset[str]:
        """The other members that can be reached now."""
        with self._lock:
            return frozenset(member for member, dialler in self._diallers.items() if dialler.sock is not None)

    def gone(self) -> frozenset[str]:
        """See `OtherCopies.gone`. A connection that only flaps is dialled anew at once, and a dial that succeeds makes
        the member one that is there."""
        with self._lock:
            return frozenset(self._left).union(member for member, each in self._diallers.items() if each.is_gone)

    def states(self) -> list[PeerState]:
        with self._lock:
            return [self._diallers[member].state() for member in sorted(self._diallers)]

    def send(self, member: str, message: Any) -> bool:
        """Send a message to the copy of `member`. Never waits; False = it was dropped."""
        dialler = self._diallers.get(member)
        sock = dialler.sock if dialler is not None else None
        return sock is not None and sock.send(self._framer.framed(message, not sock.is_encrypted))

    def hear_on(self, loop: EventLoop | None) -> None:
        """See `OtherCopies.hear_on`. The threads of connections notice when the next answer or beat comes."""
        self._loop = loop
        if loop is None:
            for loan in self._loans:
                loan.end()

    def hear(self) -> None:
        """See `OtherCopies.hear`."""
        for loan in self._loans:
            loan.hear()

    def close(self) -> None:
        """End all connections. Waits a little for their threads."""
        self.stop.set()
        with self._lock:
            listener, self._listener = self._listener, None
            open_now = [*self._authors.values(), *self._hellos]
            diallers = [*self._diallers.values()]
        with self._running_lock:
            running = [*filter(None, self._running.values())]
        for dialler in diallers:
            dialler.end()
        for sock in open_now:
            sock.cut()
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(SHUT_RDWR)
        for thread in running:
            thread.join(JOIN_S)
        if listener is not None:
            listener.close()

    # -- both sides ----------------------------------------------------------------------------------------------------

    def say_hello(self, raw: socket, wanted: str, server_name: str | None) -> tuple[PeerSocket, str]:
        """The hello on a new connection; `wanted` and `server_name` as for PeerHello and PeerSocket. Returns it with
        the other member's id. Raises PeerWireError, OSError, EOFError; then it is closed."""
        try:
            sock = PeerSocket(raw, self.threads, self._contexts[not wanted], server_name)
        except BaseException:
            raw.close()
            raise
        with self._lock:
            self._hellos[sock] = self._ticks
            if not wanted:
                self._strangers[sock] = None
                if len(self._strangers) > STRANGERS_MAX:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    oldest.cut("too many connections have not proved the secret")
        try:
            if self.stop.is_set():
                raise EOFError("this member stops")
            sock.shake_hands()
            settings = self.settings
            hello = PeerHello(
                MemberName(settings.group, settings.me), settings.secret, self.entropy.randbytes(NONCE_BYTES), wanted
            )
            return sock, self._dialled(sock, hello) if wanted else self._accepted(sock, hello)
        except (OSError, EOFError, PeerWireError) as error:
            cut = sock.reason
            sock.close()
            if cut and not isinstance(error, PeerWireError):
                raise PeerWireError(cut, code="PEER_REFUSED") from error
            raise
        except BaseException:
            sock.close()
            raise
        finally:
            with self._lock:
                self._hellos.pop(sock, None)
                self._strangers.pop(sock, None)

    def _dialled(self, sock: PeerSocket, hello: PeerHello) -> str:
        sock.send_bytes(hello.begin())
        hello.hear(sock.read_exactly(HELLO_BYTES))
        sock.send_bytes(hello.prove())
        hello.check(sock.read_exactly(PROOF_BYTES))
        assert hello.other is not None
        return hello.other.id

    def _accepted(self, sock: PeerSocket, hello: PeerHello) -> str:
        heard = sock.read_exactly(HELLO_BYTES)
        try:
            hello.hear(heard)
        except PeerWireError:
            if hello.is_of_a_member(heard):
                sock.send_bytes(hello.begin())
            raise
        sock.send_bytes(hello.begin())
        given = sock.read_exactly(PROOF_BYTES)
        try:
            hello.check(given)
        except PeerWireError:
            sock.send_bytes(NO_PROOF)
            raise
        sock.send_bytes(hello.prove())
        assert hello.other is not None
        return hello.other.id

    def hear_answers(self, sock: PeerSocket, member: str) -> None:
        """Take the answers of a member, here or in the event loop, until the connection ends. Raises PeerWireError,
        ConnectionEndError."""
        conversation = self._conversation(sock, member, ANSWER_KINDS)
        while True:
            loop = self._loop
            if loop is None or not self._lend(Loan(conversation, loop, self.threads)):
                conversation.hear()

    def _lend(self, loan: Loan) -> bool:
        """Wait until the loan is over. Returns False where the loop has ended. Raises as `hear_answers` does."""
        with self._lock:
            self._loans = (*self._loans, loan)
        try:
            loan.loop.call_soon_threadsafe(self._begin_loan, loan)
            while not loan.over.wait(BEAT_S):
                if self.stop.is_set():
                    raise ConnectionEndError("this member stops")
        except RuntimeError:
            return False
        finally:
            with self._lock:
                self._loans = tuple(each for each in self._loans if each is not loan)
        if loan.error is not None:
            raise loan.error
        return True

    def _begin_loan(self, loan: Loan) -> None:
        """In the event loop."""
        if self._loop is loan.loop and not self.stop.is_set():
            loan.begin()
        else:
            loan.over.set()

    def _conversation(self, sock: PeerSocket, member: str, kinds: dict[int, Any]) -> Conversation:
        def answer(message: Any) -> None:
            sock.send(self._framer.framed(message, not sock.is_encrypted))

        return Conversation(sock, kinds, lambda message: self.receive(member, message, answer))

    def _run(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Start a thread for which `close` waits."""
        number = next(self._numbers)
        with self._running_lock:
            self._running[number] = None

        def run() -> None:
            try:
                target(*args)
            finally:
                with self._running_lock:
                    del self._running[number]

        thread = self.threads.start(name, run)
        with self._running_lock:
            if number in self._running:
                self._running[number] = thread

    def _new_contexts(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        tls = self.settings.tls
        if tls is None:
            return None, None
        return tls.context(ssl.PROTOCOL_TLS_CLIENT), tls.context(ssl.PROTOCOL_TLS_SERVER)

    # -- connections that come in --------------------------------------------------------------------------------------

    def _listen(self, listener: socket) -> None:
        while not self.stop.is_set():
            try:
                raw, address = listener.accept()
            except OSError as error:
                if not self.stop.wait(WAIT_MAX_S):  # no descriptors: others may be closed meanwhile
                    _log.warning("cannot take a connection of a member", reason=words(error))
                continue
            with self._lock:
                is_room = len(self._running) < THREADS_MAX
            if is_room:
                self._run("amq-peers-author", self._welcome, raw, _shown(address))
            else:
                raw.close()

    def _welcome(self, raw: socket, address: str) -> None:
        try:
            sock, author = self.say_hello(raw, "", None)
        except (OSError, EOFError, PeerWireError) as error:
            self._tell_refused(address, error)
            return
        try:
            with self._lock:
                if author not in self._authors and len(self._authors) >= MEMBERS_MAX:
                    raise PeerWireError(f"the group has more than {MEMBERS_MAX} members", code="PEER_REFUSED")
                before, self._authors[author] = self._authors.get(author), sock
                dialler = self._diallers.get(author)
            if before is not None:
                before.cut("the member has connected anew")
            if dialler is not None:
                dialler.wake()  # it is there
            self._conversation(sock, author, TO_A_COPY_KINDS).run()
        except ConnectionEndError:
            pass  # its dialler tells why
        except PeerWireError as error:
            if not self.stop.is_set():
                self._tell_refused(f"{author} at {address}", error)
        finally:
            with self._lock:
                if self._authors.get(author) is sock:
                    del self._authors[author]
            sock.close()

    def _tell_refused(self, peer: str, error: Exception) -> None:
        """Log that a stranger was refused: one line in a while, since strangers can cause many."""
        with self._lock:
            self._refused += 1
            count, is_due = self._refused, self._ticks >= self._told_at + TOLD_TICKS
            if not is_due or self.stop.is_set() or isinstance(error, OtherMemberError):
                return
            self._told_at = self._ticks
        code = error.code if isinstance(error, AmqError) else "PEER_REFUSED"
        _log.warning("a member's connection was refused", peer=peer, code=code, reason=reason_of(error), count=count)

    # -- the thread that watches over connections ----------------------------------------------------------------------

    def _beat(self) -> None:
        seen: dict[PeerSocket, _Watched] = {}
        while not self.stop.wait(BEAT_S):
            self.hear()  # also where the event loop does not come to it
            with self._lock:
                self._ticks += 1
                late = [sock for sock, tick in self._hellos.items() if self._ticks - tick > HELLO_TICKS]
                proven = [*self._authors.values(), *filter(None, (each.sock for each in self._diallers.values()))]
            for sock in late:
                sock.cut(f"the hello was not over after {HELLO_TICKS * BEAT_S:.0f} s")
            seen = {sock: seen.get(sock) or _Watched() for sock in proven}
            for sock, watched in seen.items():
                watched.look(sock)
            if self.settings.tls is not None and self._ticks % RENEW_TICKS == 0:
                self._renew()

    def _renew(self) -> None:
        """Read the certificates anew: they may have been replaced."""
        try:
            self._contexts = self._new_contexts()
        except ConfigError as error:
            _log.warning("cannot read the certificates of a member anew", code=error.code, reason=str(error))


class _Watched:
    """A connection, as it was at the last beat."""

    def __init__(self) -> None:
        self._reads = self._sends = self._silent = 0

    def look(self, sock: PeerSocket) -> None:
        self._silent = 0 if sock.reads != self._reads or sock.is_busy else self._silent + 1
        if self._silent > SILENCE_TICKS:
            sock.cut(f"nothing was heard for {SILENCE_TICKS * BEAT_S:.0f} s")
        elif sock.sends == self._sends and not sock.waiting_bytes:
            sock.send(BEAT_FRAME)
        self._reads, self._sends = sock.reads, sock.sends


class _Dialler:
    """Dials one member, and keeps the connection. `sock` = it, once both ends have proved the secret."""

    def __init__(self, peers: PeerNetwork, member: str, address: str) -> None:
        self.sock: PeerSocket | None = None
        self._peers = peers
        self._member = member
        self._address = address
        self._is_over = False
        self._failed = 0  # dials in vain since it was connected
        self.was_connected = False
        self._again = peers.threads.event()
        self._reason = ""

    def look(self, address: str) -> None:
        """Use this address from now on."""
        if address != self._address:
            self._address = address
            self.wake()

    def wake(self) -> None:
        """Dial at once, without the pause."""
        self._again.set()

    def end(self) -> None:
        self._is_over = True
        self.wake()
        if (sock := self.sock) is not None:
            sock.cut()

    @property
    def is_gone(self) -> bool:
        return self.was_connected and self._failed >= GONE_DIALS

    def state(self) -> PeerState:
        sock = self.sock
        waiting, dropped = (sock.waiting_bytes, sock.dropped) if sock is not None else (0, 0)
        return PeerState(self._member, self._address, sock is not None, waiting, dropped, self._reason)

    def run(self) -> None:
        wait_s = WAIT_MIN_S
        while not self._is_over:
            self._again.clear()
            heard = 0
            try:
                sock = self._dial()
            except (OSError, EOFError, ValueError, AmqError) as error:  # ValueError: a host that cannot be one
                self._failed += 1
                self._tell(error)
            else:
                try:
                    self._connected(sock)
                    self._peers.hear_answers(sock, self._member)
                except (ConnectionEndError, PeerWireError) as error:
                    self._tell(error)
                finally:
                    self.sock = None
                    heard = sock.reads
                    sock.close()
            wait_s = WAIT_MIN_S if heard > HEARD_MIN else min(2 * wait_s, WAIT_MAX_S)
            self._again.wait(wait_s * (0.5 + self._peers.entropy.random()))

    def _dial(self) -> PeerSocket:
        host, port = parse_address(self._address)
        raw = create_connection((host, port), DIAL_S)
        try:
            return self._peers.say_hello(raw, self._member, host)[0]
        except ssl.SSLCertVerificationError as error:
            raise certificate_refused(self._address, error) from error

    def _connected(self, sock: PeerSocket) -> None:
        self._reason = ""
        self.was_connected, self._failed = True, 0
        self.sock = sock
        if self._is_over:
            sock.cut()
        _log.info("a member is connected", member=self._member, address=self._address)

    def _tell(self, error: Exception) -> None:
        """Log each reason once, until the member is connected again."""
        reason = reason_of(error)
        if self._is_over or reason == self._reason:
            return
        self._reason = reason
        code = error.code if isinstance(error, AmqError) else "PEER_UNREACHABLE"
        _log.warning("a member cannot be reached", member=self._member, address=self._address, code=code, reason=reason)


def reason_of(error: Exception) -> str:
    return words(error) if isinstance(error, OSError) else str(error)


def _shown(address: Any) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
