"""Login: what a client shows, and whom that makes it. A `Way` turns the one into the other.

Each way is a separate module: passwords of the users file, certificates, tokens, a directory. The gate asks the first
one that knows what the client shows, and no other: a refusal is final. Invariant: a `Login` is made by a way alone,
after it has checked what was shown.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from amq.core.errors import AccessError, AmqError

ANONYMOUS: Final = "anonymous"  # the name of a client without a login; no user can have it
NAME_CHARS_MAX: Final = 256
ROLES_MAX: Final = 200  # of one login
ROLES_CHARS_MAX: Final = 8192  # of all their names together
Certificate = Mapping[str, Any]  # as `getpeercert` gives it


class User(NamedTuple):
    """Somebody who has logged in, "" = nobody. `roles` = those that the login itself brings: a token's, a directory's.
    The permissions file may give the name others."""

    name: str = ""
    roles: frozenset[str] = frozenset()


NO_USER: Final = User()


def owner_name(user: str) -> str:
    """The name of the user to whom something belongs that `user` has made, "" = it belongs to nobody: a client without
    a login is nobody in particular."""
    return "" if user == ANONYMOUS else user


class Login(NamedTuple):
    """A login that was found right. `shown` = by what, for the audit log; `ends_at_s` = when it counts no more, in
    seconds since 1970."""

    user: User
    shown: str
    ends_at_s: float = math.inf


def _welcome() -> None:
    """Nothing is known against its address."""


def _unheard(error: AmqError) -> None:
    """Nobody counts who guesses."""


class Exchange(Protocol):
    """A login in steps. The client began with `mechanism` and `response`, "" where it waits for a challenge. A way sets
    `login` as soon as it knows that name, for the log, and `last`: bytes that prove the broker to the client."""

    mechanism: str
    response: bytes
    login: str
    last: bytes

    async def ask(self, challenge: bytes) -> bytes:
        """The response of the client to `challenge`. Raises AmqError."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The proofs that a client shows. `loopback`: it is on this host; `certificate`: that of its TLS connection.
    `check` raises AccessError where its address has failed too often meanwhile: a way that is slow asks that before it
    begins, so that a stranger who guesses many times at once costs no more than one who guesses slowly. `missed` is
    told why a login is refused after its client has gone: a stranger who never waits for the answer guesses all the
    same. `exchange`: the client logs in by steps, and shows its login there."""

    login: str = ""
    passcode: str = field(default="", repr=False)
    loopback: bool = False
    certificate: Certificate | None = field(default=None, repr=False)
    check: Callable[[], None] = field(default=_welcome, repr=False)
    missed: Callable[[AmqError], None] = field(default=_unheard, repr=False)
    exchange: Exchange | None = field(default=None, repr=False)


Authenticate = Callable[[Claim], Awaitable[Login]]  # raises AmqError


class Way(Protocol):
    """One answer to: who is it? Lives on the event loop, which it never blocks."""

    def knows(self, claim: Claim) -> bool:
        """Is it for this way to answer?"""
        ...

    async def login(self, claim: Claim) -> Login:
        """Raises AccessError."""
        ...

    def close(self) -> None:
        """End its threads, and cancel the logins that wait for them."""
        ...


def is_name(name: object) -> bool:
    """Can a user have this name, when others than the users file say so?"""
    return (
        isinstance(name, str)
        and 0 < len(name) <= NAME_CHARS_MAX
        and name.isprintable()
        and name == name.strip()
        and name != ANONYMOUS
    )


def refusal(why: str = "the login or the passcode is wrong") -> AccessError:
    """The error for a wrong proof."""
    return AccessError(f"login refused: {why}", code="LOGIN_REFUSED")


def unavailable(why: str) -> AccessError:
    """The error where nobody can tell now whether a proof is right. The client may try again."""
    return AccessError(f"cannot check this login now: {why}; try again later", code="LOGIN_UNAVAILABLE")
