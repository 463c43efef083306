"""Directory, a `Way`: logins that an LDAP directory checks, with the user's groups as roles.

Invariants: the event loop never waits for the directory: threads ask it, at most `THREADS_MAX`, and each step ends
after the time-out; an empty password, which a directory takes for a login of nobody, is not sent; a password goes over
TLS, or stays on this host; a server that does not answer leaves the decision to the next one, a server that refuses
does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol

import ldap3
import structlog
from ldap3.core import exceptions as failures
from ldap3.utils.conv import escape_filter_chars
from ldap3.utils.dn import escape_rdn

from amq.core.errors import AccessError, ConfigError
from amq.doors.clock import Clock, SystemClock
from amq.doors.tls import read_password
from amq.security import files
from amq.security.login import ROLES_CHARS_MAX, ROLES_MAX, Claim, Login, User, is_name, refusal, unavailable
from amq.security.questions import Questions
from amq.security.trust import trusting
from amq.security.users import PASSWORD_CHARS_MAX

THREADS_MAX: Final = 4
PATIENCE: Final = 3.0  # time-outs that a login may take, however slowly the directory speaks
REMEMBER_S: Final = 60.0
REMEMBERED_MAX: Final = 10_000
NAMES_MEMBERS: Final = "memberuid"  # the attribute of groups that has names in place of DNs
SKIP_S: Final = 30.0  # a server that did not answer is asked last for so long
ANSWERS_BYTES_MAX: Final = 4 << 20  # on one connection
WAITING_MAX: Final = 1000  # questions
_log = structlog.get_logger("amq.security")


class DirectorySettings(Protocol):
    """The options; see `amq.config.schema`."""

    @property
    def ldap_urls(self) -> str: ...
    @property
    def ldap_start_tls(self) -> bool: ...
    @property
    def ldap_trust(self) -> str: ...
    @property
    def ldap_user_attribute(self) -> str: ...
    @property
    def ldap_user_base(self) -> str: ...
    @property
    def ldap_bind_user(self) -> str: ...
    @property
    def ldap_bind_password_file(self) -> str: ...
    @property
    def ldap_group_base(self) -> str: ...
    @property
    def ldap_group_member(self) -> str: ...
    @property
    def ldap_timeout_s(self) -> float: ...


class _Remembered(NamedTuple):
    user: User
    until: float  # monotonic


class LdapDirectory:
    """`is_local(name)`: the users file has that name, so this is not asked about it."""

    def __init__(
        self, settings: DirectorySettings, is_local: Callable[[str], bool], clock: Clock | None = None
    ) -> None:
        """Raises ConfigError where a file cannot be used."""
        self._is_local = is_local
        self._clock = clock or SystemClock()
        self._timeout_s = settings.ldap_timeout_s
        self._queries = Queries(settings)
        self._servers = settings.ldap_urls.replace(",", " ").split()
        self._failed_at: dict[str, float] = {}
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, _Remembered] = {}  # proofs of right logins, oldest first
        self._questions: Questions[User] = Questions(THREADS_MAX, WAITING_MAX)
        self._is_closed = False
        self._executor = ThreadPoolExecutor(THREADS_MAX, "amq-ldap")

    def knows(self, claim: Claim) -> bool:
        """The client sends a password, and is not in the users file."""
        return bool(claim.login and claim.passcode) and not self._is_local(claim.login)

    async def login(self, claim: Claim) -> Login:
        """Raises AccessError."""
        if not is_name(claim.login) or len(claim.passcode) > PASSWORD_CHARS_MAX:
            raise refusal()
        proof = self._proof(claim)
        known = self._remembered.get(proof)
        if known is not None and self._clock.monotonic() < known.until:
            return Login(known.user, "directory")
        if self._questions.is_full_for(proof):
            raise unavailable(f"{WAITING_MAX} logins wait for the directory")
        try:
            async with asyncio.timeout(PATIENCE * self._timeout_s * len(self._servers)):
                user = await self._questions.ask(proof, claim.check, lambda: self._answer(claim), claim.missed)
        except TimeoutError as error:
            raise unavailable("the directory is too slow") from error
        self._remember(proof, user)
        return Login(user, "directory")

    async def _answer(self, claim: Claim) -> User:
        if self._is_closed:
            raise unavailable("the directory is another one now")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._ask, claim.login, claim.passcode)

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _remember(self, proof: bytes, user: User) -> None:
        self._remembered.pop(proof, None)
        while len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[proof] = _Remembered(user, self._clock.monotonic() + REMEMBER_S)

    def _proof(self, claim: Claim) -> bytes:
        data = "\0".join((str(len(claim.login)), claim.login, claim.passcode)).encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, data, hashlib.sha256)

    def _ask(self, name: str, passcode: str) -> User:
        """Ask the directory, in a thread. Raises AccessError."""
        try:
            password = passcode.encode()  # as bytes, which the library does not prepare: the directory decides
        except UnicodeEncodeError as error:
            raise refusal() from error
        now = self._clock.monotonic()
        for server in sorted(self._servers, key=lambda each: self._failed_at.get(each, -math.inf) > now - SKIP_S):
            try:
                return self._queries.user(server, name, password)
            except AccessError:
                raise
            except Exception as error:  # noqa: BLE001 (a bent answer makes the library raise whatever it likes)
                self._failed_at[server] = self._clock.monotonic()
                _log.warning("the directory cannot be asked", server=server, reason=_words(error))
        raise unavailable("no server of the directory answers")


class _Tls(ldap3.Tls):  # type: ignore[misc]
    """Python's own check of names, in place of the library's, which Python has not any more."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context

    def wrap_socket(self, connection: ldap3.Connection, do_handshake: bool = False) -> None:  # noqa: ARG002
        host, found = connection.server.host.strip("[]"), connection.socket
        if isinstance(found, _Bounded):  # StartTLS: a new bound comes after it
            found = found.socket
        connection.socket = self._context.wrap_socket(found, server_hostname=host)


class _Bounded:
    """The socket of a connection to a directory, from which at most `ANSWERS_BYTES_MAX` are read, until `ends_s`: the
    library gathers whatever comes."""

    def __init__(self, socket: Any, clock: Clock, ends_s: float) -> None:
        self.socket = socket
        self._clock = clock
        self._ends_s = ends_s
        self._left_bytes = ANSWERS_BYTES_MAX

    def recv(self, size: int) -> bytes:
        """Raises OSError at either bound."""
        if self._left_bytes <= 0:
            raise OSError(f"the directory's answers have more than {ANSWERS_BYTES_MAX} bytes")
        if self._clock.monotonic() > self._ends_s:
            raise TimeoutError("the directory's answers take too long")
        data: bytes = self.socket.recv(size)
        self._left_bytes -= len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)


class Queries:
    """The questions to one server: who is it, and in which groups?"""

    def __init__(self, settings: DirectorySettings, clock: Clock | None = None) -> None:
        """Raises ConfigError where a file cannot be used."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._timeout_s = max(1, round(settings.ldap_timeout_s))
        self._password = b""
        if path := settings.ldap_bind_password_file:
            try:
                self._password = read_password(path)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"cannot read the password in {path}: {files.why_not(error)}; make it readable for the broker's "
                    "user",
                    code="CONFIG_INVALID",
                ) from error
        self._tls = _Tls(trusting(settings.ldap_trust))

    def user(self, server: str, name: str, password: bytes) -> User:
        """Raises AccessError where the password is wrong, LDAPException where the server does not say."""
        attribute, base, us = (
            self._settings.ldap_user_attribute,
            self._settings.ldap_user_base,
            self._settings.ldap_bind_user,
        )
        if not us:
            dn = f"{attribute}={escape_rdn(name)},{base}"
            with self._bound(server, dn, password) as connection:
                self._check_name(connection, dn, ldap3.BASE, "(objectClass=*)", name)
                return User(name, self._groups(connection, dn, name))
        with self._bound(server, us, self._password, ours=True) as connection:
            wanted = f"({attribute}={escape_filter_chars(name)})"
            dn = self._check_name(connection, base, ldap3.SUBTREE, wanted, name)
            with self._bound(server, dn, password):
                return User(name, self._groups(connection, dn, name))

    @contextmanager
    def _bound(self, url: str, dn: str, password: bytes, ours: bool = False) -> Iterator[ldap3.Connection]:
        """A connection that has logged in. `ours`: the broker's own account, so a refusal is not the client's fault."""
        server = ldap3.Server(url, tls=self._tls, get_info=ldap3.NONE, connect_timeout=self._timeout_s)
        connection = ldap3.Connection(
            server,
            dn,
            password,
            receive_timeout=self._timeout_s,
            auto_referrals=False,
            read_only=True,
            raise_exceptions=True,
        )
        try:
            connection.open(read_server_info=False)
            ends_s = self._clock.monotonic() + PATIENCE * self._timeout_s
            connection.socket = _Bounded(connection.socket, self._clock, ends_s)
            if self._settings.ldap_start_tls and not server.ssl:
                connection.start_tls(read_server_info=False)
                connection.socket = _Bounded(connection.socket, self._clock, ends_s)
            try:
                connection.bind(read_server_info=False)
            except (failures.LDAPInvalidCredentialsResult, failures.LDAPInvalidDNSyntaxResult) as error:
                if ours:
                    raise
                raise refusal() from error
            yield connection
        finally:
            with suppress(failures.LDAPException, OSError):
                connection.unbind()
            if connection.socket is not None:  # that of a failed beginning is left open
                connection.socket.close()

    def _check_name(self, connection: ldap3.Connection, base: str, scope: str, wanted: str, name: str) -> str:
        """The DN of the one entry, which must have the name letter by letter: a directory does not mind upper case,
        and permissions do. Raises AccessError."""
        found = self._search(connection, base, scope, wanted, self._settings.ldap_user_attribute, 2)
        if len(found) != 1 or name not in found[0][1]:
            raise refusal()
        return found[0][0]

    def _groups(self, connection: ldap3.Connection, dn: str, name: str) -> frozenset[str]:
        settings = self._settings
        if not settings.ldap_group_base:
            return frozenset()
        member = settings.ldap_group_member
        wanted = f"({member}={escape_filter_chars(name if member.lower() == NAMES_MEMBERS else dn)})"
        found = self._search(connection, settings.ldap_group_base, ldap3.SUBTREE, wanted, "cn", ROLES_MAX + 1)
        roles = frozenset(value for _, values in found for value in values)
        if len(roles) > ROLES_MAX or sum(map(len, roles)) > ROLES_CHARS_MAX:
            raise refusal(f"the user has more than {ROLES_MAX} groups below ldapGroupBase")
        return roles

    def _search(
        self, connection: ldap3.Connection, base: str, scope: str, wanted: str, attribute: str, most: int
    ) -> list[tuple[str, list[str]]]:
        """Entries: DN, and the values of `attribute`. Raises AccessError where there are more than `most`."""
        try:
            connection.search(
                base,
                wanted,
                scope,
                attributes=[attribute],
                size_limit=most,
                time_limit=self._timeout_s,
                dereference_aliases=ldap3.DEREF_NEVER,
            )
        except failures.LDAPNoSuchObjectResult:
            return []
        except failures.LDAPSizeLimitExceededResult as error:
            raise refusal(f"the directory knows more than {most} entries for the user below {base}") from error
        entries: list[dict[str, Any]] = [each for each in connection.response or () if each["type"] == "searchResEntry"]
        return [
            (str(each["dn"]), [raw.decode() for raw in _values(each["raw_attributes"], attribute)]) for each in entries
        ]


def _values(found: dict[str, list[bytes]], attribute: str) -> list[bytes]:
    """A server may write the attribute's name in other letters."""
    return next((values for name, values in found.items() if name.lower() == attribute.lower()), [])


def _words(error: Exception) -> str:
    """The text of `error`, without the bytes that were sent."""
    if isinstance(error, failures.LDAPOperationResult):
        return str(error.description)
    return str(error)[:300] if isinstance(error, failures.LDAPException) else repr(error)[:300]
