"""Changing the users file: add, replace, remove, list. For the command line; the broker only reads.

Invariant: a reader sees the file before or after a change, never between, also after a crash. An edit keeps comments,
order, mode and owner. Of two concurrent edits none is lost.
"""

from __future__ import annotations

import os
import stat

from amq.core.errors import ConfigError
from amq.security import files
from amq.security.users import check_name, entries, hash_password, parse_users, read_file

NEW_FILE_MODE = 0o600


def list_users(path: str) -> list[str]:
    """The names in the users file, in its order."""
    return list(parse_users(read_file(path)[0], path))


def add_user(path: str, name: str, password: str, *, replace: bool = False) -> None:
    """Add `name`; create the file (mode 600) if it is missing; with `replace` also change an existing password.

    Raises ConfigError if the name or password is unusable, the user exists, or the file is broken or not writable.
    """
    try:
        check_name(name)
    except ValueError as error:
        raise ConfigError(str(error), code="USER_NAME_UNUSABLE") from error
    line = f"{name}:{hash_password(password)}"
    with _Edit(path, create=True) as edit:
        if name in edit.numbers and not replace:
            raise ConfigError(f"{path}: the user {name} exists: remove it first, or replace it", code="USER_EXISTS")
        edit.put(name, line)


def remove_user(path: str, name: str) -> None:
    """Remove `name`. Raises ConfigError if there is no such user, or the file is broken or cannot be written."""
    with _Edit(path, create=False) as edit:
        if name not in edit.numbers:
            raise ConfigError(f"{path}: there is no such user; `amq user list` shows all users", code="USER_UNKNOWN")
        edit.put(name, None)


class _Edit:
    """One change of the file. The temporary file of the new content, created exclusively, is also the lock."""

    def __init__(self, path: str, create: bool) -> None:
        self._path = path
        try:
            self._target = os.path.realpath(path)  # a link stays a link
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        self._temporary = f"{self._target}.new"
        self._create = create
        self.lines: list[str] = []
        self.numbers: dict[str, int] = {}

    def put(self, name: str, line: str | None) -> None:
        """Give `name` this line, at its old place or at the end; None removes it."""
        number = self.numbers.get(name)
        if number is None:
            assert line is not None
            self.lines.append(line)
        else:
            self.lines[number - 1 : number] = [] if line is None else [line]

    def __enter__(self) -> _Edit:
        try:
            self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
        except FileExistsError as error:
            raise ConfigError(
                f"{self._temporary} exists: another edit is running, or one has crashed; after a crash delete the file",
                code="USERS_FILE_BUSY",
            ) from error
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        try:
            self._read()
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self._write()
        except OSError as problem:
            self._abandon()
            raise self._failed(problem) from problem
        except BaseException:
            self._abandon()
            raise

    def _read(self) -> None:
        if self._create and not os.path.lexists(self._target):
            return
        data, _mode = read_file(self._path)
        parse_users(data, self._path)
        self.numbers = {name: number for number, (name, _text) in entries(data, self._path)}
        self.lines = data.decode("utf-8-sig").removesuffix("\n").split("\n") if data else []

    def _write(self) -> None:
        data = "".join(f"{line}\n" for line in self.lines).encode()
        if os.path.exists(self._target):
            old = os.stat(self._target)
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.fstat(self._fd).st_gid):
                self._check_directory(old.st_uid)
                os.fchown(self._fd, old.st_uid, old.st_gid)  # root edits, the broker's user reads
            os.fchmod(self._fd, stat.S_IMODE(old.st_mode))
        with open(self._fd, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(self._fd)
        os.replace(self._temporary, self._target)
        os.close(self._fd)
        self._fd = -1
        directory = os.open(os.path.dirname(self._target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _check_directory(self, owner: int) -> None:
        """Only root and `owner` can have put the file there that decides who owns the new one. Raises ConfigError."""
        directory = os.path.dirname(self._target)
        found = os.stat(directory)
        if found.st_uid not in (0, owner) or found.st_mode & stat.S_IWOTH:
            raise ConfigError(
                f"{self._path} belongs to another user, and others may write to {directory}: root gives no passwords "
                "away; edit the file as its owner, or chmod o-w the directory",
                code="USERS_FILE_UNWRITABLE",
            )

    def _abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            os.unlink(self._temporary)

    def _failed(self, error: OSError | ValueError) -> ConfigError:
        return ConfigError(
            f"{self._path}: the users file cannot be changed: {files.why_not(error)}", code="USERS_FILE_UNWRITABLE"
        )
