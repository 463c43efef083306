"""Sessions: users of the pages, from login to logout, by a cookie that no script can read.

Invariant: a session ends with its login, and `IDLE_S` after its last request; at most `SESSIONS_MAX` are known, and the
one that was used longest ago goes first. Every form has the session's own token.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from dataclasses import dataclass, field
from typing import Final

from amq.doors.clock import Clock
from amq.security.login import User

IDLE_S: Final = 1800.0
SESSIONS_MAX: Final = 1000


@dataclass(slots=True)
class LoginSession:
    """`csrf` = the token of its forms; `told` = what the next page says; `ends_s` = when its login does."""

    user: User
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    told: str = ""
    used_s: float = 0.0
    ends_s: float = math.inf

    def is_own(self, token: str) -> bool:
        """Did that token come from a form of this session?"""
        return hmac.compare_digest(token.encode(), self.csrf.encode())


class LoginSessions:
    """Sessions by the value of their cookie."""

    def __init__(self, clock: Clock, url: str = "") -> None:
        """`url` = where people reach this console. A browser sends a cookie to every port of a host, so consoles at two
        ports, or of two hosts behind tunnels to one, need two names. No request says which: a stranger writes it."""
        self._clock = clock
        place = hashlib.sha256(f"{os.uname().nodename} {url}".encode()).hexdigest()
        self.cookie_name = f"amq-session-{place[:8]}"
        self._known: dict[str, LoginSession] = {}

    def __len__(self) -> int:
        return len(self._known)

    def open(self, user: User, valid_s: float = math.inf) -> str:
        """A new session of a login that counts for this many seconds. Returns its cookie."""
        if len(self._known) >= SESSIONS_MAX:
            del self._known[next(iter(self._known))]
        cookie = secrets.token_urlsafe(32)
        now = self._clock.monotonic()
        self._known[cookie] = LoginSession(user, used_s=now, ends_s=now + valid_s)
        return cookie

    def get(self, cookie: str) -> LoginSession | None:
        """The session of `cookie`; None = there is none, or it has ended."""
        session = self._known.pop(cookie, None)
        now = self._clock.monotonic()
        if session is None or now > min(session.used_s + IDLE_S, session.ends_s):
            return None
        session.used_s = now
        self._known[cookie] = session  # the latest last
        return session

    def close(self, cookie: str) -> None:
        self._known.pop(cookie, None)
