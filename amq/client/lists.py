"""Lists of brokers, read and kept in threads of their own: a file or a web server may take long, or hang.

Invariants: nobody waits for a list; a reading takes a bounded part of it; a file is replaced as a whole, so its reader
never sees a half, and of several writes to one file the last one stays; no file is followed that any other user of the
host could have put there. A program that ends waits for its writes, for
`EXIT_S` at most.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote, urlsplit

BYTES_MAX = 65_536
HTTP_TIMEOUT_S = 5.0
EXIT_S = 2.0

log = logging.getLogger("amq.client")
Found = str | OSError | ValueError  # the list, or why there is none
Take = Callable[[Found], None]  # from any thread


class Lists:
    """The lists of brokers of all connections of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unwritten: dict[str, str] = {}  # by path: what is to be written
        self._writing: set[str] = set()  # a thread of each
        self._troubles: dict[str, str] = {}

    def fetch(self, source: str, take: Take) -> None:
        """Call `take` with the content of `source`, a path or a URL, later."""
        _start(f"amq-list {source}", lambda: take(_read(source)), take)

    def keep(self, path: str, text: str) -> None:
        """Write `text` to the file `path`, soon. Nothing depends on it: an error is logged, once."""
        with self._changed:
            self._unwritten[path] = text
            if path in self._writing:
                return
            self._writing.add(path)
        _start(f"amq-list {path}", lambda: self._write(path), lambda why: self._end(path, why))

    def finish(self, timeout_s: float = EXIT_S) -> bool:
        """Wait until everything is written. False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writing, timeout_s)

    def _write(self, path: str) -> None:
        why: OSError | ValueError | None = None
        while True:
            with self._changed:
                text = self._unwritten.pop(path, None)
                if text is None:
                    self._end(path, why)
                    return
            try:
                _replace(path, text)
                why = None
            except (OSError, ValueError) as error:
                why = error

    def _end(self, path: str, why: Found | None) -> None:
        with self._changed:
            self._writing.discard(path)
            self._changed.notify_all()
            trouble = "" if why is None else str(why)
            before, self._troubles[path] = self._troubles.get(path, ""), trouble
        if trouble and trouble != before:
            log.warning("cannot keep the list of brokers in %s (knownBrokersFile): %s", path, trouble)


def _start(name: str, work: Callable[[], None], failed: Take) -> None:
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:  # the host has no more threads, or the program ends
        failed(OSError(str(error)))


def _read(source: str) -> Found:
    try:
        parts = urlsplit(source)
        if parts.scheme in ("http", "https"):
            from urllib.request import urlopen  # not for all others: it takes as long as the rest of the client

            with urlopen(source, timeout=HTTP_TIMEOUT_S) as answer:
                data: bytes = answer.read(BYTES_MAX + 1)
        else:
            path = unquote(parts.path) if parts.scheme == "file" else source
            path = os.path.expanduser(path)
            _check_link(path)
            with open(path, "rb") as file:
                _check_file(path, os.fstat(file.fileno()))
                data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            return ValueError(f"it has more than {BYTES_MAX} bytes, so it is not a list of brokers")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        return error


def _check_file(path: str, found: os.stat_result) -> None:
    """Raises PermissionError where every user of the host may have written the file `path`: a program sends its login
    to the brokers that a list names."""
    if not stat.S_ISREG(found.st_mode):
        return
    if found.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "every user can write to it; chmod o-w", path)
    if _is_foreign(found) and _is_open(os.path.realpath(path)):
        raise PermissionError(errno.EPERM, "another user has put it where everybody can write", path)


def _check_link(path: str) -> None:
    """Raises PermissionError where `path` is a link that any user of the host may have made."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode) and _is_foreign(found) and _is_open(os.path.abspath(path)):
        raise PermissionError(errno.EPERM, "it is a link that another user has put there", path)


def _is_foreign(found: os.stat_result) -> bool:
    """Does it belong to somebody else than this user and root?"""
    return os.name == "posix" and found.st_uid not in (os.geteuid(), 0)


def _is_open(path: str) -> bool:
    """May every user of the host make files where `path` is?"""
    return bool(os.stat(os.path.dirname(path)).st_mode & stat.S_IWOTH)


def _not_for_all(path: str, flags: int) -> int:
    return os.open(path, flags, 0o664)  # whatever the umask is


def _replace(path: str, text: str) -> None:
    """Write a new file beside `path` and move it there. A program that is killed meanwhile may leave that one."""
    _check_link(os.path.expanduser(path))
    target = os.path.realpath(os.path.expanduser(path))
    fresh = f"{target}.{os.getpid()}.new"
    with suppress(FileNotFoundError):
        os.unlink(fresh)
    try:
        # "x": never through a link that somebody else has put there.
        with open(fresh, "x", encoding="utf-8", opener=_not_for_all) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise


LISTS = Lists()
atexit.register(LISTS.finish)
