"""LoginGate: the Authenticator as an event loop uses it, with the users file behind it.

Invariant: the event loop never waits for scrypt, and a users file that cannot be read changes no user.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from amq.errors import ConfigError
from amq.security.authentication import Authenticator
from amq.security.users import Users


class LoginGate:
    """Reads the users file, checks logins, and does the slow part in a thread of its own (started when first needed).

    warnings  sentences about the users file's permissions
    """

    def __init__(self, users_file: str, anonymous: str) -> None:
        """`users_file` "" = none. ConfigError where the file cannot be used."""
        users = Users.read(users_file) if users_file else None
        self.warnings: tuple[str, ...] = () if users is None else users.warnings
        self._authenticator = Authenticator(users, anonymous)
        self._executor = ThreadPoolExecutor(1, "amq-login")

    async def authenticate(self, login: str, passcode: str, loopback: bool) -> str:
        """The user's name. AccessError where refused. `loopback`: the client is on this host."""
        user = self._authenticator.quick(login, passcode, loopback)
        if user is not None:
            return user
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._authenticator.verify, login, passcode)

    def reload(self, users_file: str, anonymous: str) -> None:
        """Read the file again, or another one. ConfigError where it cannot be used: the old users then stay, and the
        rule for anonymous clients is the new one.
        """
        try:
            users = Users.read(users_file) if users_file else None
        except ConfigError:
            self._authenticator.rule(anonymous)
            raise
        self.warnings = () if users is None else users.warnings
        self._authenticator.replace(users, anonymous)

    def close(self) -> None:
        """End the thread; logins that still wait are cancelled."""
        self._executor.shutdown(cancel_futures=True)
