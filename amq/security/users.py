"""The users file: one line a user, `name:scrypt$n$r$p$salt$hash` (salt and hash in base64); `#` starts a comment line.

Invariant: a parsed file is safe to use: names are unambiguous, and no hash makes a login take unbounded time or memory.
Parsing ends in a `Users` or in a `ConfigError` with file and line; it never shows a salt, a hash or a password.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amq.core.errors import ConfigError
from amq.security import files
from amq.security.login import ANONYMOUS, NAME_CHARS_MAX

SALT_BYTES = 16
HASH_BYTES = 32
# The usual cost for interactive logins: 16 MiB and about 50 ms. Not more, as all users log in to a new master at once.
COST_N, COST_R, COST_P = 1 << 14, 8, 1
COST_N_MIN = 1 << 10
MEMORY_BYTES_MAX = 256 << 20
WORK_BYTES_MAX = 1 << 30
FILE_BYTES_MAX = 8 << 20
PASSWORD_CHARS_MAX = 1024
_HASH = re.compile(
    r"scrypt\$([0-9]{1,7})\$([0-9]{1,3})\$([0-9]{1,3})\$([A-Za-z0-9+/]{22,88}={0,2})\$([A-Za-z0-9+/]{43}=)"
)


@dataclass(frozen=True, slots=True, repr=False)
class PasswordHash:
    """A salted scrypt hash. `str()` gives the text of the users file."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def matches(self, password: str) -> bool:
        """Is this the password? Takes about 50 ms either way; releases the GIL."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.n, self.r, self.p), self.digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode("ascii") for part in (self.salt, self.digest))
        return f"scrypt${self.n}${self.r}${self.p}${salt}${digest}"

    def __repr__(self) -> str:
        return f"<PasswordHash scrypt n={self.n} r={self.r} p={self.p}>"

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Parse a hash. Raises ValueError, without the text, if amq would not make it or cannot afford to check it."""
        match = _HASH.fullmatch(text)
        if match is None:
            raise ValueError("the password is not hashed as scrypt$n$r$p$salt$hash: set it with `amq user add`")
        n, r, p = int(match[1]), int(match[2]), int(match[3])
        if n < COST_N_MIN or n & (n - 1) or r < 1 or p < 1 or n >= 1 << 16 * r:
            raise ValueError(
                f"the cost of the hash is wrong: n is a power of two from {COST_N_MIN} and less than 2^(16 r), r and p "
                "from 1"
            )
        if 128 * n * r > MEMORY_BYTES_MAX or 128 * n * r * p > WORK_BYTES_MAX:
            raise ValueError("the cost of the hash would stall the broker: set the password with `amq user add`")
        try:
            return cls(n, r, p, base64.b64decode(match[4], validate=True), base64.b64decode(match[5], validate=True))
        except ValueError as error:
            raise ValueError("the salt or the hash is not base64: set the password with `amq user add`") from error


class Users(Mapping[str, PasswordHash]):
    """The users of one file, in its order. Immutable.

    warnings  sentences about the file's permissions
    """

    def __init__(self, users: Mapping[str, PasswordHash], warnings: tuple[str, ...] = ()) -> None:
        self._users = dict(users)
        self.warnings = warnings

    def __getitem__(self, name: str) -> PasswordHash:
        return self._users[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)

    @classmethod
    def read(cls, path: str) -> Users:
        """Read the users file. Raises ConfigError if it cannot be read or a line is wrong."""
        data, mode = read_file(path)
        return cls(parse_users(data, path), _permission_warnings(path, mode))


def hash_password(password: str, salt: bytes | None = None) -> PasswordHash:
    """Hash a new password. `salt` None = random. Raises ConfigError if the password is empty or too long."""
    if not password:
        raise ConfigError("the password is empty: choose one", code="PASSWORD_UNUSABLE")
    if len(password) > PASSWORD_CHARS_MAX:
        raise ConfigError(f"the password is longer than {PASSWORD_CHARS_MAX} characters", code="PASSWORD_UNUSABLE")
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return PasswordHash(COST_N, COST_R, COST_P, salt, _scrypt(password, salt, COST_N, COST_R, COST_P))


def check_name(name: str) -> None:
    """Raises ValueError, with the cure, if the name cannot be used."""
    if not name:
        raise ValueError("the user name is empty")
    if len(name) > NAME_CHARS_MAX:
        raise ValueError(f"the user name is longer than {NAME_CHARS_MAX} characters")
    if not name.isprintable() or " " in name or ":" in name or name.startswith("#"):
        raise ValueError("the user name holds a space, a colon, a control character or a leading #: choose another")
    if name == ANONYMOUS:
        raise ValueError(f"the user name {ANONYMOUS} is reserved for clients without a login: choose another")


def parse_users(data: bytes, path: str) -> dict[str, PasswordHash]:
    """The users in `data`, the content of `path`. ConfigError names the line."""
    users: dict[str, PasswordHash] = {}
    for number, (name, text) in entries(data, path):
        try:
            check_name(name)
            if name in users:
                raise ValueError(f"the user {name} has two lines: keep one")
            users[name] = PasswordHash.parse(text)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: {error}", code="USERS_FILE_INVALID") from error
    return users


def entries(data: bytes, path: str) -> list[tuple[int, tuple[str, str]]]:
    """(line number, (name, hash text)) of every line that is neither blank nor a comment."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, so it is not a users file", code="USERS_FILE_INVALID") from error
    found = []
    for number, line in enumerate(lines, start=1):
        name, colon, text = line.strip().partition(":")
        if (not name and not colon) or name.startswith("#"):
            continue
        if not colon:
            raise ConfigError(f"{path}:{number}: the line has no colon: write name:hash", code="USERS_FILE_INVALID")
        found.append((number, (name, text)))
    return found


def read_file(path: str) -> tuple[bytes, int]:
    """Content and mode of the users file. Raises ConfigError if it cannot be read."""
    cure = "make it with `amq user add NAME --users FILE`"
    data, mode = files.read(path, f"users file {path}", cure, "USERS_FILE_UNREADABLE", FILE_BYTES_MAX)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes: not a users file", code="USERS_FILE_INVALID")
    return data, mode


def _permission_warnings(path: str, mode: int) -> tuple[str, ...]:
    if mode & stat.S_IWOTH:
        return (f"{path}: everybody on this host can write it, and so log in as anybody: chmod 640",)
    if mode & stat.S_IROTH:
        return (f"{path}: everybody on this host can read it, and so try passwords against its hashes: chmod 640",)
    return ()


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = 128 * r * (n + p + 2)
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=n, r=r, p=p, maxmem=memory + (1 << 20), dklen=HASH_BYTES)
