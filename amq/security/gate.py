"""LoginGate: all ways to log in, in order, with the users file behind the last one.

Invariants: a client shows one thing, and one way alone decides on it; a users file that cannot be read changes no user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amq.core.errors import ConfigError
from amq.security.authentication import Authenticator
from amq.security.certificate_users import CertificateUsers
from amq.security.login import Claim, Login, Way
from amq.security.mechanisms import claim_of
from amq.security.passwords import Passwords
from amq.security.users import Users

_NO_USERS = Users({})


class LoginGate:
    """Asks certificates first, then the ways of `use`, then passwords.

    warnings  sentences about the users file's permissions
    """

    def __init__(self, users_file: str, anonymous: str, read: Callable[[str], Users] = Users.read) -> None:
        """`users_file` "" = none; `read` reads it. Raises ConfigError if the file cannot be used."""
        self._read = read
        self._users = read(users_file) if users_file else None
        self._authenticator = Authenticator(self._users, anonymous)
        self._certificates = CertificateUsers()
        self._others: tuple[Way, ...] = ()
        self._passwords = Passwords(self._authenticator)

    @property
    def warnings(self) -> tuple[str, ...]:
        return () if self._users is None else self._users.warnings

    async def authenticate(self, claim: Claim) -> Login:
        """Raises AccessError."""
        claim = await claim_of(claim)
        ways: tuple[Way, ...] = (self._certificates, *self._others, self._passwords)
        return await next(way for way in ways if way.knows(claim)).login(claim)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the users of the users file."""
        return tuple(self._users or ())

    def is_local(self, name: str) -> bool:
        """Is that a user of the users file?"""
        return self._users is not None and name in self._users

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
        self._users = users
        self._authenticator.replace(self._known(), anonymous)

    def _known(self) -> Users | None:
        """The known users. Without any way to check a login it is ignored; with one, an unknown login is wrong."""
        return _NO_USERS if self._users is None and self._others else self._users

    def use_certificates(self, certificates: CertificateUsers) -> None:
        """From now on these say which user a certificate names. Connections that are logged in stay logged in."""
        self._certificates = certificates

    def use(self, ways: Sequence[Way]) -> None:
        """From now on there are these ways between certificates and passwords, and no others. Connections that are
        logged in stay logged in."""
        before, self._others = self._others, tuple(ways)
        self._authenticator.know(self._known())
        for way in before:
            way.close()

    def close(self) -> None:
        """End all threads and cancel waiting logins."""
        for way in (*self._others, self._passwords):
            way.close()
