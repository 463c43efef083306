"""ZooKeeper as a coordinator, through kazoo. All keys are nodes directly below the namespace, with '/' written as %2F.

Invariants: a read follows a `sync` in the same connection, so it sees what was answered before. The revision is the
number of the transaction that last changed the node (mzxid, which a made node begins with, its czxid), and a change
names the version of the node that had that number. A session here is a client of its own, whose nodes are ephemeral.
The states of a connection (SUSPENDED, LOST) are hints: kazoo may tell of them long after another process has the node.
"""

from __future__ import annotations

import errno
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.security import make_digest_acl

from amq.core.errors import StoreError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.coordinated.url import CoordinatorUrl
from amq.store.coordinator import ABSENT, KeyEntry

CLOSE_S: Final = 1.0  # for the end of a session
ROUND_S: Final = 0.05  # pause after a connection was lost
AGAIN_S: Final = 1.0  # the longest pause until the servers are called again; kazoo's own grows to an hour
MARGIN: Final = 0.01  # of two clocks, over the time of a session
_LOST = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, KazooTimeoutError)  # it may have taken place
_T = TypeVar("_T")


class ZooKeeper:
    """See `amq.store.coordinator.Coordinator`."""

    def __init__(self, url: CoordinatorUrl, threads: Threads, clock: Clock) -> None:
        self.url = url.text
        self.session_s = url.session_s
        self.call_s = url.call_s
        self.clock = clock
        self.threads = threads
        self._url = url
        self._root = f"/{url.namespace}"
        self._mutex = threading.Lock()
        self._client: KazooClient | None = None

    # -- entries ------------------------------------------------------------------------------------------------------

    def read(self, key: str) -> KeyEntry | None:
        return self.tried(key, lambda client, left_s: self._read(client, key, left_s))

    def read_all(self, *keys: str) -> dict[str, KeyEntry]:
        return self.tried(keys[0], lambda client, left_s: self._read_all(client, keys, left_s))

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        keys = self.tried(directory, self._keys)
        return sorted({key.removeprefix(prefix).partition("/")[0] for key in keys if key.startswith(prefix)})

    def compare_and_set(self, key: str, value: bytes, seen: int, first: tuple[str, bytes] | None = None) -> int | None:
        tries = itertools.count()

        def change(client: KazooClient, left_s: float) -> int | None:
            is_first = not next(tries)
            if first is not None:
                with suppress(NodeExistsError):
                    client.create_async(self.path(first[0]), first[1]).get(timeout=left_s)
            if seen == ABSENT:
                with suppress(NodeExistsError):
                    made = client.create_async(self.path(key), value, include_data=True)
                    return int(made.get(timeout=left_s)[1].mzxid)
            found, version = self._read_version(client, key, left_s)
            if found is not None and found.revision == seen:
                try:
                    return int(client.set_async(self.path(key), value, version).get(timeout=left_s).mzxid)
                except (BadVersionError, NoNodeError):
                    found = self._read(client, key, left_s)
            if found is not None and found.value == value:  # an answer was lost before
                return found.revision
            if not is_first:
                raise OSError(errno.EAGAIN, "others have replaced it since an answer was lost", self._place(key))
            return None

        return self.tried(key, change)

    def remove(self, key: str, seen: int) -> bool:
        """Where the answer is lost and the entry is gone, this process may have removed it, or another one."""

        def change(client: KazooClient, left_s: float) -> bool:
            found, version = self._read_version(client, key, left_s)
            if found is None or found.revision != seen:
                return False
            with suppress(BadVersionError, NoNodeError):
                client.delete_async(self.path(key), version).get(timeout=left_s)
                return True
            return False

        return self.tried(key, change)

    def path(self, key: str) -> str:
        return f"{self._root}/{quote(key, safe=' ')}"

    def _keys(self, client: KazooClient, left_s: float) -> list[str]:
        client.sync_async(self._root)  # the answer comes after it
        return [unquote(name) for name in client.get_children_async(self._root).get(timeout=left_s)]

    def _read_all(self, client: KazooClient, keys: tuple[str, ...], left_s: float) -> dict[str, KeyEntry]:
        """The requests are sent one after the other and wait for no answer."""
        directories = tuple(key for key in keys if key.endswith("/"))
        below = [key for key in self._keys(client, left_s) if key.startswith(directories)] if directories else []
        client.sync_async(self._root)
        wanted = {key for key in keys if not key.endswith("/")}.union(below)
        asked = {key: client.get_async(self.path(key)) for key in sorted(wanted)}
        found = {}
        for key, answer in asked.items():
            with suppress(NoNodeError):
                data, stat = answer.get(timeout=left_s)
                found[key] = KeyEntry(key, bytes(data), int(stat.mzxid))
        return found

    def _read(self, client: KazooClient, key: str, left_s: float) -> KeyEntry | None:
        return self._read_version(client, key, left_s)[0]

    def _read_version(self, client: KazooClient, key: str, left_s: float) -> tuple[KeyEntry | None, int]:
        client.sync_async(self._root)  # the answer to the read comes after it
        try:
            data, stat = client.get_async(self.path(key)).get(timeout=left_s)
        except NoNodeError:
            return None, ABSENT
        return KeyEntry(key, bytes(data), int(stat.mzxid)), int(stat.version)

    # -- sessions and watches -----------------------------------------------------------------------------------------

    def open_session(self, lasts_s: float = 0.0) -> ZooKeeperSession:
        """The servers keep it no longer than their `maxSessionTimeout`."""
        self.tried("a session", lambda _client, _left_s: None)  # the namespace is there
        lasts_s = max(self.session_s, lasts_s)
        return ZooKeeperSession(self, self.connect("a session", self.call_s, lasts_s), lasts_s)

    @contextmanager
    def watch(self, key: str) -> Iterator[ZooKeeperWatch]:
        yield ZooKeeperWatch(self, key)

    def arm(self, key: str, tell: Callable[[Any], None]) -> None:
        """Call `tell` once when the entry `key`, or one below it, changes. Raises OSError."""

        def ask(client: KazooClient, left_s: float) -> None:
            names = client.get_children_async(self._root, watch=tell).get(timeout=left_s)
            below = [name for name in names if unquote(name).startswith(f"{key}/")]
            for name in {quote(key, safe=" "), *below}:
                client.exists_async(f"{self._root}/{name}", watch=tell).get(timeout=left_s)

        self.tried(key, ask)

    # -- servers ------------------------------------------------------------------------------------------------------

    def servers(self) -> list[tuple[str, str]]:
        found = []
        for host, port in self._url.servers:
            named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            try:
                self._end(self._start(named, min(self.call_s, CLOSE_S), named))
                found.append((named, ""))
            except (OSError, StoreError) as error:
                found.append((named, getattr(error, "strerror", None) or str(error)))
        return found

    def close(self) -> None:
        with self._mutex:
            client, self._client = self._client, None
        if client is not None:
            self._end(client)

    def connect(self, about: str, timeout_s: float, lasts_s: float = 0.0) -> KazooClient:
        """A client that is connected, whose session lasts for `lasts_s`, 0 = as all. Raises OSError, StoreError."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._url.servers)
        return self._start(hosts, timeout_s, about, lasts_s)

    def end(self, client: KazooClient) -> None:
        """Close the client, from a thread of its own where that takes longer than a second."""
        ended = self.threads.start("amq-session-end", lambda: self._end(client))
        ended.join(CLOSE_S)

    def tried(self, about: str, call: Callable[[KazooClient, float], _T]) -> _T:
        """Return what `call(client, seconds)` returns. It is called again where the connection is lost meanwhile.
        Raises OSError, StoreError."""
        end = self.clock.monotonic() + self.call_s
        why, pause = "no time", threading.Event()
        while (left_s := end - self.clock.monotonic()) > 0:
            try:
                return call(self._connected(about, left_s), left_s)
            except _LOST as error:
                why = str(error) or type(error).__name__
                pause.wait(min(ROUND_S, left_s))
            except (NoAuthError, AuthFailedError) as error:
                raise self._denied(error) from error
            except KazooException as error:
                raise OSError(errno.EIO, f"ZooKeeper says: {error!r}", self._place(about)) from error
        raise OSError(errno.ETIMEDOUT, f"no server of ZooKeeper answers ({why})", self._place(about))

    def _connected(self, about: str, left_s: float) -> KazooClient:
        """The client of all calls, made by the first of them."""
        with self._mutex:
            client = self._client
        if client is not None:
            return client
        made = self.connect(about, left_s)
        made.ensure_path(self._root)
        with self._mutex:
            client = self._client = self._client or made
        if client is not made:  # another thread was quicker
            self._end(made)
        return client

    def _start(self, hosts: str, timeout_s: float, about: str, lasts_s: float = 0.0) -> KazooClient:
        user = self._url.user
        password = self._url.password() if user else ""
        client = KazooClient(
            hosts,
            timeout=lasts_s or self.session_s,
            auth_data=[("digest", f"{user}:{password}")] if user else None,
            default_acl=[make_digest_acl(user, password, all=True)] if user else None,
            use_ssl=self._url.tls,
            check_hostname=self._url.tls,
            ca=self._url.ca_file or None,
            certfile=self._url.certificate_file or None,
            keyfile=self._url.key_file or None,
            logger=_silent(),
            connection_retry={"max_tries": -1, "max_delay": AGAIN_S},
        )
        try:
            client.start(timeout=timeout_s)
        except KazooTimeoutError as error:
            self._end(client)
            raise OSError(errno.ETIMEDOUT, "no server of ZooKeeper answers", self._place(about)) from error
        except BaseException as error:
            self._end(client)
            if isinstance(error, AuthFailedError):
                raise self._denied(error) from error
            raise
        return client

    @staticmethod
    def _end(client: KazooClient) -> None:
        client.stop()
        client.close()

    def _denied(self, error: KazooException) -> StoreError:
        who = self._url.user or "a client without a user"
        return StoreError(
            f"ZooKeeper refuses {who} ({error!r}): nodes below {self._root} belong to the user that made them. Give "
            "all brokers the same user and passwordFile",
            code="STORE_UNUSABLE",
        )

    def _place(self, key: str) -> str:
        return f"{self.url}: {key}"


def _silent() -> logging.Logger:
    """A log of kazoo that says nothing: its calls raise what matters."""
    logger = logging.Logger("kazoo")
    logger.disabled = True
    return logger


class ZooKeeperSession:
    """See `amq.store.coordinator.Session`: a client, which kazoo keeps alive."""

    def __init__(self, zookeeper: ZooKeeper, client: KazooClient, lasts_s: float) -> None:
        self._zookeeper = zookeeper
        self._client = client
        self._lasts_s = lasts_s
        self._ended = zookeeper.threads.event()
        self._until = 0.0
        client.add_listener(self._heard)
        self._ask()
        zookeeper.threads.start("amq-session", self._run)

    def hold(self, key: str, value: bytes) -> int | None:
        zookeeper, path = self._zookeeper, self._zookeeper.path(key)

        def make(_client: KazooClient, left_s: float) -> int | None:
            if self._ended.is_set() or self._client.client_id is None:
                return None
            own = self._client.client_id[0]
            try:
                made = self._client.create_async(path, value, ephemeral=True, include_data=True)
                return int(made.get(timeout=left_s)[1].mzxid)
            except NodeExistsError:
                found = self._client.exists_async(path).get(timeout=left_s)
            except SessionExpiredError:
                return None
            return int(found.mzxid) if found is not None and found.ephemeralOwner == own else None

        return zookeeper.tried(key, make)

    def rest_s(self) -> float:
        return 0.0 if self._ended.is_set() else max(0.0, self._until - self._zookeeper.clock.monotonic())

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._zookeeper.end(self._client)

    def _heard(self, state: str) -> None:
        """In a thread of kazoo, which may not wait."""
        if state == KazooState.LOST and not self._ended.is_set():
            self._ended.set()
            self._zookeeper.threads.start("amq-session-end", lambda: self._zookeeper.end(self._client))

    def _run(self) -> None:
        while not self._ended.wait(self._zookeeper.session_s / 4):
            self._ask()

    def _ask(self) -> None:
        """Learn that the servers have heard of this session."""
        sent = self._zookeeper.clock.monotonic()
        with suppress(KazooException, KazooTimeoutError):  # kazoo connects again, or says that it is lost
            self._client.exists_async("/").get(timeout=self._zookeeper.session_s)
            self._until = sent + self._lasts_s * (1 - MARGIN)


class ZooKeeperWatch:
    """See `amq.store.coordinator.KeyWatch`. The servers tell each change once, so it asks again after each."""

    def __init__(self, zookeeper: ZooKeeper, key: str) -> None:
        self._zookeeper, self._key = zookeeper, key
        self._changed = threading.Event()
        self._is_armed = False
        with suppress(OSError, StoreError):  # `wait` tries again
            self._arm()

    def wait(self, timeout_s: float) -> bool:
        if not self._is_armed:
            self._arm()
            return True  # something may have changed meanwhile
        if not self._changed.wait(timeout_s):
            return False
        self._changed.clear()
        self._is_armed = False
        self._arm()
        return True

    def _arm(self) -> None:
        self._zookeeper.arm(self._key, self._tell)
        self._is_armed = True

    def _tell(self, _event: Any) -> None:
        self._changed.set()
