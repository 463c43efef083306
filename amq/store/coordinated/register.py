"""A coordinator over a register: a small directory that all hosts share, or the tables of a database.

Each change of an entry is a document of its own, `entries/KEY.NUMBER`; the number is the revision, and the newest one
counts. It says which document it replaces. Invariants: a document of one name is written once, whole or not at all; the
newest document of a key is never removed. A writer that was overtaken may find its number free again, because what was
there is replaced and removed: then a newer document is there that does not name the one of this writer.

An entry of a session is bound to a seat of the board, which is a lock of the file system or of the database. So it ends
with its process at once, and a session has no time to live.
"""

from __future__ import annotations

import errno
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from amq.core.errors import CorruptError, StoreError
from amq.store.board import Seat, SeatTakenError
from amq.store.coordinator import ABSENT, KeyEntry
from amq.store.host import Host
from amq.store.register import Register

ENTRIES: Final = "entries"
READS_MAX: Final = 100  # of an entry that others change meanwhile
POLL_S: Final = 0.2
DURABLE, HELD, GONE = "durable", "held", "gone"
_DIGITS = 20
_writers = itertools.count(1)  # of this process


class _Version(NamedTuple):
    """The newest document of a key. `id` is its own, "" = there is none; `kind` says whether it is an entry."""

    number: int
    id: str
    kind: str
    value: bytes

    def entry(self, key: str) -> KeyEntry | None:
        return KeyEntry(key, self.value, self.number) if self.kind != GONE else None


class RegisterCoordinator:
    """See `amq.store.coordinator.Coordinator`. `makes` = the place of `register` is made where it is missing."""

    session_s = 1.0
    call_s = 10.0  # it is the file system, or the database, that takes its time

    def __init__(self, register: Register, url: str, host: Host, *, makes: bool = True) -> None:
        self.url = url
        self.register = register
        self._makes = makes
        self._writer = f"w{host.boot_id()[:8]}-{host.pid()}-{host.pid_start()}-{next(_writers)}"
        self._writes = itertools.count(1)
        self._is_made = False

    # -- entries ------------------------------------------------------------------------------------------------------

    def read(self, key: str) -> KeyEntry | None:
        return self.newest(key).entry(key)

    def read_all(self, *keys: str) -> dict[str, KeyEntry]:
        documents = self.documents()
        directories = tuple(key for key in keys if key.endswith("/"))
        wanted = [key for key in documents if key in keys or key.startswith(directories)]
        versions = {key: self._newest_of(key, documents[key]) for key in wanted}
        are_held = any(version is not None and version.kind == HELD for version in versions.values())
        held = {each.name for each in self.register.board.seats(held=True)} if are_held else set()
        found = {}
        for key, version in versions.items():
            if version is None:  # replaced meanwhile
                entry = self.read(key)
            else:
                is_over = version.kind == HELD and _document(key, version.number) not in held
                entry = None if is_over else version.entry(key)
            if entry is not None:
                found[key] = entry
        return found

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        keys = [key for key in self.documents() if key.startswith(prefix)]
        return sorted({key.removeprefix(prefix).partition("/")[0] for key in keys if self.read(key) is not None})

    def compare_and_set(self, key: str, value: bytes, seen: int, first: tuple[str, bytes] | None = None) -> int | None:
        if first is not None and (old := self.newest(first[0])).kind == GONE:
            self.append(first[0], old, DURABLE, first[1])  # or another writer is quicker
        newest = self.newest(key)
        found = newest.entry(key)
        if (found.revision if found is not None else ABSENT) == seen:
            return self.append(key, newest, DURABLE, value)
        return found.revision if found is not None and found.value == value else None

    def remove(self, key: str, seen: int) -> bool:
        newest = self.newest(key)
        found = newest.entry(key)
        if found is None or found.revision != seen:
            return False
        return self.append(key, newest, GONE, b"") is not None

    # -- sessions and watches -----------------------------------------------------------------------------------------

    def open_session(self, lasts_s: float = 0.0) -> RegisterSession:  # noqa: ARG002 (it ends with its process)
        return RegisterSession(self)

    @contextmanager
    def watch(self, key: str) -> Iterator[RegisterWatch]:
        yield RegisterWatch(self, key)

    def servers(self) -> list[tuple[str, str]]:
        place = self.register.place(ENTRIES)
        try:
            self.documents()
        except (OSError, StoreError) as error:
            return [(place, str(error))]
        return [(place, "")]

    def close(self) -> None:
        """Nothing is held open."""

    # -- documents ----------------------------------------------------------------------------------------------------

    def documents(self) -> dict[str, list[int]]:
        """The numbers of all documents, by key, the oldest first."""
        self._make()
        found: dict[str, list[int]] = {}
        for name in self.register.names(ENTRIES, f".{self._writer}-{next(self._writes)}"):
            key, _, number = name.rpartition(".")
            if len(number) == _DIGITS and number.isdecimal():
                found.setdefault(unquote(key), []).append(int(number))
        return {key: sorted(numbers) for key, numbers in found.items()}

    def newest(self, key: str) -> _Version:
        """The newest version of `key`. Where its session is over, it is gone."""
        for _ in range(READS_MAX):
            numbers = self.documents().get(key)
            if numbers is None:
                return _Version(ABSENT, "", GONE, b"")
            version = self._newest_of(key, numbers)
            if version is not None:
                is_there = version.kind != HELD or self._is_held(key, version.number)
                return version if is_there else version._replace(kind=GONE)
        raise OSError(errno.EAGAIN, f"others have changed it {READS_MAX} times meanwhile", f"{self.url}: {key}")

    def _newest_of(self, key: str, numbers: list[int]) -> _Version | None:
        """The last of these documents, whether its session goes on or not; None = it was replaced meanwhile."""
        with suppress(FileNotFoundError):
            head, value = self._load(key, numbers[-1])
            return _Version(numbers[-1], head["id"], head["kind"], value)
        return None

    def append(self, key: str, newest: _Version, kind: str, value: bytes) -> int | None:
        """Replace the version `newest`. The number of the new one; None where another writer was quicker."""
        number, own = newest.number + 1, f"{self._writer}-{next(self._writes)}"
        head = json.dumps({"id": own, "kind": kind, "after": newest.id}).encode()
        try:
            self.register.write(ENTRIES, _document(key, number), head + b"\n" + value, own)
        except FileExistsError:
            return None
        numbers = self.documents().get(key, [])
        if numbers and numbers[-1] > number:
            try:
                follows = self._load(key, number + 1)[0]["after"] == own
            except FileNotFoundError:
                raise OSError(errno.EAGAIN, "others have replaced it at once", f"{self.url}: {key}") from None
            if not follows:  # the number was free again
                self.register.remove(ENTRIES, _document(key, number))
                return None
        for old in numbers:
            if old < number:
                self.register.remove(ENTRIES, _document(key, old))
        return number

    def _load(self, key: str, number: int) -> tuple[dict[str, Any], bytes]:
        data = self.register.read(ENTRIES, _document(key, number))
        first, _, value = data.partition(b"\n")
        try:
            head = json.loads(first)
            if {"id", "kind", "after"} <= head.keys():
                return head, value
        except (ValueError, AttributeError):
            pass
        raise CorruptError(self.register.place(ENTRIES, _document(key, number)), 0, "not an entry of a coordinator")

    def _is_held(self, key: str, number: int) -> bool:
        return any(each.name == _document(key, number) for each in self.register.board.seats(held=True))

    def _make(self) -> None:
        if not self._is_made:
            try:
                if not self._makes:
                    self.register.names("")
            except FileNotFoundError as error:
                raise StoreError(
                    f"{self.url}: the directory is not there; mount it, or make it once on the file system that all "
                    "hosts share",
                    code="STORE_MISSING",
                ) from error
            self.register.make((ENTRIES,))
            self._is_made = True


class RegisterSession:
    """See `amq.store.coordinator.Session`."""

    def __init__(self, coordinator: RegisterCoordinator) -> None:
        self._coordinator = coordinator
        self._seats: dict[str, Seat] | None = {}  # None = closed

    def hold(self, key: str, value: bytes) -> int | None:
        newest, board = self._coordinator.newest(key), self._coordinator.register.board
        if self._seats is None or newest.kind != GONE:
            return None
        name = _document(key, newest.number + 1)
        try:
            seat = board.take(name)
        except SeatTakenError:
            return None
        self._seats[name] = seat
        number = self._coordinator.append(key, newest, HELD, value)
        for each in [each.name for each in board.seats(held=False)]:  # of processes that died
            if each.rpartition(".")[0] == name.rpartition(".")[0]:
                board.forget(each)
        if number is None:
            del self._seats[name]
            seat.close()
        return number

    def rest_s(self) -> float:
        return self._coordinator.session_s if self._seats is not None else 0.0

    def close(self) -> None:
        seats, self._seats = self._seats, None
        for name, seat in (seats or {}).items():
            with suppress(OSError):  # it ends with its descriptor or connection
                seat.close()
                self._coordinator.register.board.forget(name)


class RegisterWatch:
    """See `amq.store.coordinator.KeyWatch`. It looks again and again."""

    def __init__(self, coordinator: RegisterCoordinator, key: str) -> None:
        self._coordinator, self._key = coordinator, key
        self._seen: object = None
        with suppress(OSError, StoreError):  # `wait` tries again
            self._seen = self._look()

    def wait(self, timeout_s: float) -> bool:
        pause, left_s = threading.Event(), timeout_s
        while (found := self._look()) == self._seen:
            if left_s <= 0:
                return False
            pause.wait(min(POLL_S, left_s))
            left_s -= POLL_S
        self._seen = found
        return True

    def _look(self) -> object:
        keys = self._coordinator.documents()
        below = {key: numbers for key, numbers in keys.items() if f"{key}/".startswith(f"{self._key}/")}
        held = {each.name for each in self._coordinator.register.board.seats(held=True)}
        return below, {_document(key, number) for key, numbers in below.items() for number in numbers} & held


def _document(key: str, number: int) -> str:
    return f"{quote(key, safe='')}.{number:0{_DIGITS}d}"
