"""Passwords, a `Way`: users of the users file, and clients without a login. It knows every claim, so it is asked last.

Invariants: the event loop never waits for scrypt, which runs in a thread, one verification at a time; the others wait
in line, and an address that has failed too often is sent away before its next verification.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from amq.security.authentication import Authenticator
from amq.security.login import ANONYMOUS, Claim, Login, User, unavailable
from amq.security.questions import Questions

WAITING_MAX: Final = 10_000


class Passwords:
    """The Authenticator as an event loop uses it; the thread is started when needed."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._executor = ThreadPoolExecutor(1, "amq-login")
        self._questions: Questions[str] = Questions(1, WAITING_MAX)

    def knows(self, claim: Claim) -> bool:  # noqa: ARG002
        return True

    async def login(self, claim: Claim) -> Login:
        """Raises AccessError."""
        name = self._authenticator.quick(claim.login, claim.passcode, claim.loopback)
        if name is None:
            key = claim.login, claim.passcode
            if self._questions.is_full_for(key):
                raise unavailable(f"{WAITING_MAX} logins wait to be checked")
            name = await self._questions.ask(key, claim.check, partial(self._verify, *key), claim.missed)
        return Login(User(name), "none" if name == ANONYMOUS else "password")

    async def _verify(self, login: str, passcode: str) -> str:
        verify = self._authenticator.verify
        return await asyncio.get_running_loop().run_in_executor(self._executor, verify, login, passcode)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)
