"""Authenticator: verifies the user of a connection.

Invariant: a login is accepted only if scrypt has verified its password against the present users file. A refusal does
not reveal, by words or by time, whether the name or the password was wrong.
scrypt is slow on purpose: `quick` answers from memory without delay where it can, and `verify` runs in a thread. A
storm of reconnecting clients costs one verification for each distinct login.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading

from amq.core.errors import AccessError
from amq.security.login import ANONYMOUS, NAME_CHARS_MAX, refusal
from amq.security.users import (
    COST_N,
    COST_P,
    COST_R,
    HASH_BYTES,
    PASSWORD_CHARS_MAX,
    SALT_BYTES,
    PasswordHash,
    Users,
)

ANONYMOUS_POLICIES = ("loopback", "yes", "no")
REFUSED_MAX = 1000  # remembered wrong logins, so that a client that repeats one is cheap
_NOBODY = PasswordHash(COST_N, COST_R, COST_P, bytes(SALT_BYTES), bytes(HASH_BYTES))


class Authenticator:
    """Checks logins against a users file and the rule for anonymous clients.

    `quick`, `replace`: any thread, never block on scrypt. `verify`, `authenticate`: any thread but the event loop's.
    Verifications run one at a time: they take 16 MiB and one core, however many clients ask.
    """

    def __init__(self, users: Users | None, anonymous: str = "loopback", cache_key: bytes | None = None) -> None:
        """`users` None = there is no users file: every client is anonymous, whatever login it sends.

        `anonymous` is one of ANONYMOUS_POLICIES. `cache_key` None = random.
        """
        self.replace(users, anonymous)
        self._key = secrets.token_bytes(32) if cache_key is None else cache_key
        self._verified: dict[str, bytes] = {}  # name → proof of its last verified login; at most one for each user
        self._refused: dict[bytes, None] = {}  # proofs of wrong logins, oldest first
        self._one_at_a_time = threading.Lock()

    def replace(self, users: Users | None, anonymous: str) -> None:
        """Use this users file and rule from now on. Connections that are logged in stay logged in."""
        assert anonymous in ANONYMOUS_POLICIES, anonymous
        self._rules = (users, anonymous)

    def know(self, users: Users | None) -> None:
        """Use these users from now on, with the same rule."""
        self.replace(users, self._rules[1])

    def rule(self, anonymous: str) -> None:
        """Use this rule for anonymous clients from now on, with the same users."""
        self.replace(self._rules[0], anonymous)

    def authenticate(self, login: str, passcode: str, peer_is_loopback: bool) -> str:
        """Returns the user's name, `anonymous` for a client without a login. Raises AccessError. May block."""
        user = self.quick(login, passcode, peer_is_loopback)
        return self.verify(login, passcode) if user is None else user

    def quick(self, login: str, passcode: str, peer_is_loopback: bool) -> str | None:
        """As `authenticate`, but returns None if only `verify` can decide. Never blocks."""
        users, anonymous = self._rules
        if users is None or not (login or passcode):
            if anonymous == "yes" or (anonymous == "loopback" and peer_is_loopback):
                return ANONYMOUS
            raise _login_required()
        if len(login) > NAME_CHARS_MAX or len(passcode) > PASSWORD_CHARS_MAX:
            raise refusal()
        return self._remembered(login, self._proof(users.get(login), login, passcode))

    def verify(self, login: str, passcode: str) -> str:
        """Check a login that `quick` left open. Raises AccessError if it is wrong. Takes about 50 ms; thread-safe."""
        users = self._rules[0]
        if users is None:  # the users file was taken out of use since `quick`
            raise refusal()
        record = users.get(login)
        proof = self._proof(record, login, passcode)
        with self._one_at_a_time:
            user = self._remembered(login, proof)  # another connection may have verified the same login meanwhile
            if user is not None:
                return user
            like = record or next(iter(users.values()), _NOBODY)
            checked = record or PasswordHash(like.n, like.r, like.p, _NOBODY.salt, _NOBODY.digest)
            if checked.matches(passcode) and record is not None:
                users = self._rules[0]
                if users is None or users.get(login) != record:  # its line has changed meanwhile
                    raise refusal()
                self._verified[login] = proof
                return login
            if len(self._refused) >= REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[proof] = None
        raise refusal()

    def _remembered(self, login: str, proof: bytes) -> str | None:
        if hmac.compare_digest(self._verified.get(login, b""), proof):
            return login
        if proof in self._refused:
            raise refusal()
        return None

    def _proof(self, record: PasswordHash | None, login: str, passcode: str) -> bytes:
        """Identifies a login against a line of the file: a changed line or password gives another proof."""
        line = "" if record is None else str(record)
        data = "\0".join((line, str(len(login)), login, passcode)).encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, data, hashlib.sha256)


def _login_required() -> AccessError:
    return AccessError(
        "login required: this broker does not accept anonymous clients from here; connect with login and passcode",
        code="LOGIN_REQUIRED",
    )
