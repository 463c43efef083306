"""LoginGate: the Authenticator as an event loop uses it, with the users file behind it.

Invariant: the event loop never waits for scrypt, and a users file that cannot be read changes no user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from amq.errors import AccessError, ConfigError
from amq.security.authentication import Authenticator
from amq.security.certificate_users import Certificate, CertificateUsers
from amq.security.users import Users


class LoginGate:
    """Reads the users file and checks logins; a thread of its own, started when needed, does the slow part.

    warnings  sentences about the users file's permissions
    """

    def __init__(self, users_file: str, anonymous: str, read: Callable[[str], Users] = Users.read) -> None:
        """`users_file` "" = none; `read` reads it. Raises ConfigError if the file cannot be used."""
        self._read = read
        users = read(users_file) if users_file else None
        self.warnings: tuple[str, ...] = () if users is None else users.warnings
        self._authenticator = Authenticator(users, anonymous)
        self._certificates = CertificateUsers()
        self._executor = ThreadPoolExecutor(1, "amq-login")

    async def authenticate(
        self, login: str, passcode: str, loopback: bool, certificate: Certificate | None = None
    ) -> str:
        """Returns the user's name. Raises AccessError. `loopback`: the client is on this host.

        A certificate that names users is the login of a client that sends no passcode, and no login or its own. A
        passcode is checked whatever the certificate says.
        """
        if certificate is not None and not passcode and self._certificates.names_users:
            named = self._certificates.user(certificate)
            if login in ("", named):
                return named
            raise AccessError(
                "login refused: the client's certificate is of another user; leave the login out, or send its passcode",
                code="LOGIN_REFUSED",
            )
        user = self._authenticator.quick(login, passcode, loopback)
        if user is not None:
            return user
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._authenticator.verify, login, passcode)

    def reload(self, users_file: str, anonymous: str, wanted: Callable[[], bool] = lambda: True) -> None:
        """Read the file again, or another one. Raises ConfigError if it cannot be used: the old users stay, and the new
        rule for anonymous clients applies. The read may hang. If `wanted()` is false after it, nothing changes.
        """
        try:
            users = self._read(users_file) if users_file else None
        except ConfigError:
            if wanted():
                self._authenticator.rule(anonymous)
            raise
        if not wanted():
            return
        self.warnings = () if users is None else users.warnings
        self._authenticator.replace(users, anonymous)

    def use_certificates(self, certificates: CertificateUsers) -> None:
        """From now on these say which user a certificate names. Connections that are logged in stay logged in."""
        self._certificates = certificates

    def close(self) -> None:
        """End the thread and cancel waiting logins."""
        self._executor.shutdown(cancel_futures=True)
