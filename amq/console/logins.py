"""Logins: users of the console are those of the broker, which checks their passwords.

A password that was right is believed for a minute without asking, because the broker takes long on purpose to check
one. Invariant: what is remembered is bounded, and a keyed hash: nobody can read a password there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import secrets
from typing import Final

from amq.console.link import Link
from amq.core.errors import AccessError
from amq.doors.clock import Clock
from amq.management.listing import Row
from amq.security.login import User

BELIEVED_S: Final = 60.0
REMEMBERED_MAX: Final = 1000
CHECKS_MAX: Final = 4  # under way at the same time


class Logins:
    """Finds the user of a request by its login."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, tuple[User, float]] = {}
        self._checks = 0

    async def user(self, header: str, address: str, loopback: bool) -> User:
        """The user of a request from `address` with this Authorization header ("" = it has none). `loopback`: it comes
        from this host. Raises AccessError, AmqError."""
        login, passcode = parse_basic(header)
        digest = hmac.digest(self._key, f"{login}\0{passcode}\0{loopback}".encode(), hashlib.sha256)
        known = self._known.get(digest)
        now = self._clock.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        if self._checks >= CHECKS_MAX:
            raise AccessError("too many logins at the same time: try again", code="LOGIN_BUSY")
        self._checks += 1
        try:
            body = {"login": login, "passcode": passcode, "loopback": loopback, "address": address}
            found = await self._link.ask("POST", "/login", body)
        finally:
            self._checks -= 1
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        user = user_of(found)
        self._known[digest] = user, now + min(BELIEVED_S, valid_s(found))
        return user


def user_of(found: Row) -> User:
    """The user whom the broker's answer to a login names."""
    return User(str(found["user"]), frozenset(found["roles"]))


def valid_s(found: Row) -> float:
    """For how many seconds that login counts."""
    return math.inf if found["valid_s"] is None else float(found["valid_s"])


def parse_basic(header: str) -> tuple[str, str]:
    """Login and passcode. Raises AccessError where it is something else."""
    if not header:
        return "", ""
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        scheme = text = ""
    login, separator, passcode = text.partition(":")
    if scheme.lower() != "basic" or not separator:
        raise AccessError("log in with HTTP Basic: user and password of the broker", code="LOGIN_REFUSED")
    return login, passcode
