"""Doorkeeper: how many connections an address and a user may have, how often an address may guess, and the audit log.

Addresses count as `amq.transports.hosts.counted` says: those of IPv6 by their network, a /64.

Invariants: what a stranger can make us hold is bounded (`ADDRESSES_MAX`); an address that has failed too often is told
so without a look at its password, so that guessing costs the broker nothing; what a user sends over all connections is
bounded by `throttleMessages` and `throttleSize`; the audit log has no password, and strangers cannot fill it: more
than `LINES_MAX` lines in `LINES_S` are counted instead.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from amq.core.errors import AccessError, AmqError
from amq.doors.clock import Clock
from amq.transports.bucket import Bucket
from amq.transports.hosts import counted

MINUTE_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000  # or networks, that have failed to log in, or connect often
TOO_MANY: Final = "TOO_MANY"
KEPT_S: Final = 2.0  # a client that comes back at once is held back so long: it came 60 times a second
KEPT_MAX: Final = 64  # connections that were refused, and stay open for a while
USERS_MAX: Final = 10_000  # that are throttled
LINES_MAX: Final = 50
LINES_S: Final = 10.0
NAME_CHARS_MAX: Final = 64
RIGHT: Final = "ok"
WRONG_LOGIN: Final = "LOGIN_REFUSED"
_log = structlog.get_logger("amq.audit")


def _named(address: str) -> str:
    return f"the network {address}" if "/" in address else "this address"


class DoorLimits(Protocol):
    """Options; see `amq.config.schema`."""

    @property
    def max_connections_per_address(self) -> int: ...
    @property
    def max_connections_per_user(self) -> int: ...
    @property
    def failed_logins_per_minute(self) -> int: ...
    @property
    def new_connections_per_minute(self) -> int: ...
    @property
    def throttle_messages(self) -> int: ...
    @property
    def throttle_size_bytes(self) -> int: ...
    @property
    def audit_log(self) -> str: ...


class Doorkeeper:
    """Connections are known by their numbers, their hosts by their addresses, "" = one that has none."""

    def __init__(self, clock: Clock, limits: Callable[[], DoorLimits]) -> None:
        self._clock = clock
        self._limits = limits
        self.address_of: dict[int, str] = {}
        self.user_of: dict[int, str] = {}
        self.addresses: Counter[str] = Counter()
        self.users: Counter[str] = Counter()
        self.failures: dict[str, deque[float]] = {}  # when an address failed, in the last minute; the oldest first
        self.arrivals: dict[str, Bucket] = {}  # by address, the latest last
        self._sent: dict[str, tuple[Bucket, Bucket]] = {}  # by user: messages, bytes; the latest last
        self._lines: deque[float] = deque()  # when the latest ones were written
        self._untold = 0
        self._kept: set[int] = set()  # connections that were refused, and are still open
        self.logins: Counter[str] = Counter()  # how many ended so: `RIGHT`, or with that error
        self.turned_away: Counter[str] = Counter()  # connections, by the option that allows no more

    # -- how many ------------------------------------------------------------------------------------------------------

    def enter(self, number: int, address: str) -> None:
        """A connection begins. Raises AccessError where its address has as many as it may."""
        limit, address = self._limits().max_connections_per_address, counted(address)
        if limit and address and self.addresses[address] >= limit:
            raise self.too_many(
                "maxConnectionsPerAddress",
                f"{_named(address)} has {limit} connections already",
                "close some, or use one for several sessions",
            )
        self.address_of[number] = address
        self.addresses[address] += 1

    def arrive(self, address: str) -> None:
        """A socket was accepted; nothing is done for it yet. Raises AccessError where its address opens too many."""
        limit = self._limits().new_connections_per_minute
        if not limit or not address:
            self.arrivals.clear()
            return
        now, address = self._clock.monotonic(), counted(address)
        bucket = self.arrivals.pop(address, None) or Bucket(limit, now)
        self.arrivals[address] = bucket
        if len(self.arrivals) > ADDRESSES_MAX:
            del self.arrivals[next(iter(self.arrivals))]
        if not bucket.take_whole(1, limit / MINUTE_S, limit, now):
            raise self.too_many(
                "newConnectionsPerMinute",
                f"{_named(address)} has opened {limit} connections within a minute",
                "keep a connection for many messages, and try again later",
            )

    def let_in(self, number: int, user: str) -> None:
        """It has logged in. Raises AccessError where its user has as many as it may."""
        limit = self._limits().max_connections_per_user
        if limit and self.users[user] >= limit:
            raise self.too_many(
                "maxConnectionsPerUser",
                f"user {user!r} has {limit} connections already",
                "close some, or use one for several sessions",
            )
        self.user_of[number] = user
        self.users[user] += 1

    def too_many(self, option: str, told: str, cure: str) -> AccessError:
        """A connection is turned away, and counted: `option` allows no more."""
        self.turned_away[option] += 1
        return AccessError(f"{told} ({option}): {cure}", code=TOO_MANY)

    def keep(self, number: int, refusal: AccessError) -> float:
        """For how long this connection stays open after `refusal`, seconds. Only some do: strangers make them."""
        if len(self._kept) >= KEPT_MAX or refusal.code == TOO_MANY:
            return 0.0
        self._kept.add(number)
        return KEPT_S

    def leave(self, number: int) -> None:
        """It has ended, or has no socket. May be called again."""
        self._kept.discard(number)
        for known, counts in ((self.address_of, self.addresses), (self.user_of, self.users)):
            name = known.pop(number, None)
            if name is not None:
                counts[name] -= 1
                if counts[name] <= 0:
                    del counts[name]

    def come_back(self, number: int, address: str, user: str) -> None:
        """It has a socket again, in place of another connection that has left: no limit is asked."""
        self.leave(number)
        address = counted(address)
        self.address_of[number], self.user_of[number] = address, user
        self.addresses[address] += 1
        self.users[user] += 1

    # -- how much ------------------------------------------------------------------------------------------------------

    def wait_s(self, user: str, messages: int, size: int) -> float:
        """`user` has sent these messages, and bytes in all. For how many seconds nothing more is to be read?"""
        limits = self._limits()
        now = self._clock.monotonic()
        found = self._sent.pop(user, None)
        if found is None:
            found = Bucket(limits.throttle_messages, now), Bucket(limits.throttle_size_bytes, now)
        self._sent[user] = found
        if len(self._sent) > USERS_MAX:
            del self._sent[next(iter(self._sent))]
        pairs = zip(found, (messages, size), (limits.throttle_messages, limits.throttle_size_bytes), strict=True)
        return max((bucket.take(amount, rate, rate, now) for bucket, amount, rate in pairs if rate), default=0.0)

    # -- who guesses ---------------------------------------------------------------------------------------------------

    def check(self, address: str) -> None:
        """Somebody wants to log in. Raises AccessError where the address has failed too often."""
        limit, address = self._limits().failed_logins_per_minute, counted(address)
        failures = self.failures.get(address)
        if not limit or failures is None:
            return
        self._forget_old(address, failures)
        if len(failures) >= limit:
            raise AccessError(
                f"{limit} logins of {_named(address)} failed within a minute (failedLoginsPerMinute): correct the "
                "login, and try again later",
                code="TOO_MANY_FAILED_LOGINS",
            )

    def _failed(self, address: str) -> None:
        limit = self._limits().failed_logins_per_minute
        if not limit:
            return
        failures = self.failures.pop(address, None)
        if failures is None or failures.maxlen != limit:
            failures = deque(failures or (), maxlen=limit)
        failures.append(self._clock.monotonic())
        self.failures[address] = failures  # the latest last
        if len(self.failures) > ADDRESSES_MAX:
            del self.failures[next(iter(self.failures))]

    def _forget_old(self, address: str, failures: deque[float]) -> None:
        before = self._clock.monotonic() - MINUTE_S
        while failures and failures[0] < before:
            failures.popleft()
        if not failures:
            del self.failures[address]

    # -- the audit log -------------------------------------------------------------------------------------------------

    def logged_in(self, user: str, client_id: str, peer: str, shown: str) -> None:
        """`shown` = by what: see `amq.security.login.Login`."""
        self.logins[RIGHT] += 1
        if self._limits().audit_log == "all":
            _log.info("login", user=user, client_id=client_id[:NAME_CHARS_MAX], peer=peer, shown=shown)

    def refused(self, login: str, address: str, peer: str, error: AmqError) -> None:
        """A login failed."""
        self.logins[error.code] += 1
        if error.code == WRONG_LOGIN:
            self._failed(counted(address))
        self._tell("login refused", user=login[:NAME_CHARS_MAX], peer=peer, code=error.code)

    def denied(self, user: str, peer: str, error: AmqError) -> None:
        """The permissions do not allow it."""
        self._tell("not permitted", user=user, peer=peer, reason=str(error))

    def ended(self, number: int, peer: str, error: AmqError) -> None:
        """That connection ends for a refusal."""
        self._write("connection refused", connection=number, peer=peer, code=error.code, reason=str(error))

    def _tell(self, event: str, **facts: str) -> None:
        if self._limits().audit_log != "none":
            self._write(event, **facts)

    def _write(self, event: str, **facts: object) -> None:
        now = self._clock.monotonic()
        while self._lines and self._lines[0] < now - LINES_S:
            self._lines.popleft()
        if len(self._lines) >= LINES_MAX:
            self._untold += 1
            return
        self._lines.append(now)
        _log.info(event, **facts, **({"others_since": self._untold} if self._untold else {}))
        self._untold = 0
