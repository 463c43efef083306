"""The port of a coordinator: a few small entries that a quorum of servers keeps, such as etcd and ZooKeeper.

An entry has a key, a value and a revision. A key is one or more words with '/' between them (`epochs/0000000007`);
each adapter puts its namespace before it. Invariants, on which the safety of a store may rest:

- Of two that change an entry from the same revision, one succeeds. The loss of a minority of servers loses no change.
- The revision of a key grows with each change of it, for ever, also where the entry was removed meanwhile. So the
  revision that a claim got is a fencing number: a greater one than every earlier claim under that key.
- `read`, `read_all` and `names` see every change that was answered before they were asked, and all that this object has
  written.

Sessions, their entries and watches prove nothing: a session may be over before its owner knows it, and a process that
was stopped in between may act late. They say who should try, and when to look.

Errors: OSError where the servers cannot be reached in time, or it is unknown whether a change took place; StoreError
where a person must act (the login was refused, a certificate is wrong). Every call ends after `call_s` seconds at most
and does not wait longer for anybody. Any thread may call.
"""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

ABSENT: Final = 0  # the revision of an entry that is not there
VALUE_BYTES_MAX: Final = 900 << 10  # ZooKeeper takes 1 MiB with what is around it
CLAIMS_MAX: Final = 100  # how often a claim is tried again because others claim, too


class KeyEntry(NamedTuple):
    """An entry as it was at one moment."""

    key: str
    value: bytes
    revision: int


class Session(Protocol):
    """The life of this process as the coordinator sees it. The entries of a session go when it is closed, or when the
    coordinator has heard nothing of it for `Coordinator.session_s`. A session that is over stays so: open another."""

    def hold(self, key: str, value: bytes) -> int | None:
        """Make the entry `key`, which goes with this session. Its revision; None where there is one already, or where
        the session is over. Raises OSError."""
        ...

    def rest_s(self) -> float:
        """For how many seconds the coordinator keeps this session at least, though it may hear nothing more: counted
        from the sending of the last request that was answered. 0 = it may be over. Asks nobody."""
        ...

    def close(self) -> None:
        """End it. Waits a second at most; where that fails it ends by itself."""
        ...


class KeyWatch(Protocol):
    """Changes below a key. A hint: it may come late, twice, or without a change, and one may be missed."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until something may have changed since the last call, or since the watch began. False = nothing was
        heard of in that time. Raises OSError."""
        ...


class Coordinator(Protocol):
    """One process' view of a coordinator.

    url        as it was given, for people and for other members; without secrets
    session_s  how long an entry of a session stays after its process died
    call_s     how long a call takes at most
    """

    @property
    def url(self) -> str: ...

    @property
    def session_s(self) -> float: ...

    @property
    def call_s(self) -> float: ...

    def read(self, key: str) -> KeyEntry | None:
        """None = there is no such entry."""
        ...

    def read_all(self, *keys: str) -> dict[str, KeyEntry]:
        """The entries `keys` that are there, by their keys, for the price of one question; a key that ends with '/'
        stands for all entries below it. Each is as it was at some moment of this call, not all at the same one."""
        ...

    def names(self, directory: str) -> list[str]:
        """The next words of all keys that begin with `directory` and '/', sorted, each once. "" = of all keys."""
        ...

    def compare_and_set(self, key: str, value: bytes, seen: int, first: tuple[str, bytes] | None = None) -> int | None:
        """Give the entry `key` the value `value`, durably, where its revision is still `seen` (ABSENT = it is not
        there). Its new revision; None where its revision is another one. `first` = another entry, (key, value), which
        is made where it is not there: before the change or together with it, and perhaps without it.

        Make `value` unlike each that others write under `key`: where an answer is lost, the adapter asks again, and
        knows by the value whether its change took place. Where it cannot learn that it raises OSError, and the change
        may still take place later.
        """
        ...

    def remove(self, key: str, seen: int) -> bool:
        """Remove the entry where its revision is still `seen`; False where it is another one or gone. An entry of a
        session may be removed by anybody."""
        ...

    def open_session(self, lasts_s: float = 0.0) -> Session:
        """Begin a session, which lasts for `lasts_s` after its process died, where that is longer than `session_s` and
        the coordinator can do it. Raises OSError."""
        ...

    def watch(self, key: str) -> AbstractContextManager[KeyWatch]:
        """While the block runs, watch the entry `key` and all below it. Raises nothing: `KeyWatch.wait` does."""
        ...

    def servers(self) -> list[tuple[str, str]]:
        """Each server by its address, with "" where it answers now, or the reason why it does not; for people."""
        ...

    def close(self) -> None:
        """Give up connections and threads. Sessions must be closed before."""
        ...


def claim(coordinator: Coordinator, key: str, value: bytes, seen: int | None = None) -> int:
    """Make `value` that of the entry `key`, whatever is there. Its revision: greater than that of each claim under
    `key` before it. `value` is unlike every other. `seen` = the revision that is probably there: that saves a question.
    Raises OSError."""
    for _ in range(CLAIMS_MAX):
        if seen is None:
            found = coordinator.read(key)
            seen = found.revision if found is not None else ABSENT
        try:
            number = coordinator.compare_and_set(key, value, seen)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            number = None  # it may have been the newest, and is so no more
        if number is not None:
            return number
        seen = None
    raise OSError(errno.EAGAIN, f"others have claimed it {CLAIMS_MAX} times meanwhile", f"{coordinator.url}: {key}")
