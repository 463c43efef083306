"""etcd as a coordinator, through the JSON gateway that every server of version 3.4 and later has.

A call tries one server after the other until one answers, or its time is over. Invariants: reads are linearizable
(etcd's default), so a server that is cut off answers none. A change is a transaction that compares the revision, so
that a request which arrives twice, or late, changes nothing. Revisions are those of etcd, which counts all changes.
"""

from __future__ import annotations

import errno
import http.client
import json
import math
import select
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from amq.core.errors import StoreError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.coordinated.url import CoordinatorUrl
from amq.store.coordinator import ABSENT, KeyEntry

CLOSE_S: Final = 1.0  # for the end of a session
SERVER_S: Final = 2.0  # for one server, before the next one is asked
ROUND_S: Final = 0.05  # pause after all servers refused
ANSWER_BYTES_MAX: Final = 16 << 20
TEXT_BYTES_MAX: Final = 200  # of an answer that is not from etcd, in an error
IDLE_MAX: Final = 4  # connections that are kept for the next call
MARGIN: Final = 0.01  # of two clocks, over the time of a session
_NOT_FOUND, _DENIED, _INVALID, _FULL, _LOGIN = 5, 7, 3, 8, 16  # codes of gRPC


class _Refused(Exception):
    """The answer of a server that could be asked: code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Etcd:
    """See `amq.store.coordinator.Coordinator`."""

    def __init__(self, url: CoordinatorUrl, threads: Threads, clock: Clock) -> None:
        self.url = url.text
        self.session_s = url.session_s
        self.call_s = url.call_s
        self.clock = clock
        self.threads = threads
        self._url = url
        self._prefix = f"{url.namespace}/"
        self._context = url.context()
        self._mutex = threading.Lock()
        self._idle: list[tuple[tuple[str, int], http.client.HTTPConnection]] = []
        self._at = 0  # the server that answered last
        self._token = ""

    # -- entries ------------------------------------------------------------------------------------------------------

    def read(self, key: str) -> KeyEntry | None:
        return self._entry(key, self.call("kv/range", {"key": self.coded(key)}, key))

    def read_all(self, *keys: str) -> dict[str, KeyEntry]:
        """A transaction that only reads is linearizable, too."""
        ranges = [{"request_range": _range(self._prefix + key)} for key in keys]
        answers = self.call("kv/txn", {"success": ranges}, keys[0]).get("responses", ())
        found = [each for answer in answers for each in answer.get("response_range", {}).get("kvs", ())]
        entries = [_entry(b64decode(each["key"]).decode()[len(self._prefix) :], each) for each in found]
        return {entry.key: entry for entry in entries}

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        full = self._prefix + prefix
        asked = {**_range(full), "keys_only": True}
        found = [b64decode(each["key"]).decode() for each in self.call("kv/range", asked, directory).get("kvs", ())]
        return sorted({key.removeprefix(full).partition("/")[0] for key in found})

    def compare_and_set(self, key: str, value: bytes, seen: int, first: tuple[str, bytes] | None = None) -> int | None:
        changes = [self._make(*first)] if first is not None else []
        lost: list[str] = []
        changed, found = self._change(key, seen, *changes, self._put(key, value), lost=lost)
        if changed is not None:
            return changed
        if found is not None and found.value == value:  # an answer was lost before
            return found.revision
        if lost:
            raise OSError(
                errno.EAGAIN, f"others have replaced it since an answer was lost ({lost[0]})", self._place(key)
            )
        return None

    def remove(self, key: str, seen: int) -> bool:
        """Where the answer is lost and the entry is gone, this process may have removed it, or another one."""
        changed, _ = self._change(key, seen, {"request_delete_range": {"key": self.coded(key)}})
        return changed is not None

    def _put(self, key: str, value: bytes, **more: str) -> dict[str, Any]:
        return {"request_put": {"key": self.coded(key), "value": _base64(value), **more}}

    def _make(self, key: str, value: bytes) -> dict[str, Any]:
        """Make the entry `key` where it is not there."""
        return {"request_txn": {"compare": [self._unchanged(key, ABSENT)], "success": [self._put(key, value)]}}

    def _unchanged(self, key: str, seen: int) -> dict[str, str]:
        return {"key": self.coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(seen)}

    def _change(
        self, key: str, seen: int, *changes: Mapping[str, Any], lost: list[str] | None = None
    ) -> tuple[int | None, KeyEntry | None]:
        """The revision of the changes, or None and the entry that is there. `lost`: see `call`."""
        look = [{"request_range": {"key": self.coded(key)}}]
        asked = {"compare": [self._unchanged(key, seen)], "success": changes, "failure": look}
        answer = self.call("kv/txn", asked, key, lost=lost)
        if answer.get("succeeded"):
            return int(answer["header"]["revision"]), None
        return None, self._entry(key, answer["responses"][0].get("response_range", {}))

    @staticmethod
    def _entry(key: str, answer: Mapping[str, Any]) -> KeyEntry | None:
        found = answer.get("kvs", ())
        return _entry(key, found[0]) if found else None

    # -- sessions and watches -----------------------------------------------------------------------------------------

    def open_session(self, lasts_s: float = 0.0) -> EtcdSession:
        sent = self.clock.monotonic()
        answer = self.call("lease/grant", {"TTL": str(math.ceil(max(self.session_s, lasts_s)))}, "a session")
        return EtcdSession(self, answer["ID"], sent + int(answer["TTL"]) * (1 - MARGIN))

    def hold(self, key: str, value: bytes, lease: str) -> int | None:
        """Make the entry `key`, which goes with that lease."""
        try:
            changed, found = self._change(key, ABSENT, self._put(key, value, lease=lease))
        except _Refused:  # the lease is gone
            return None
        if changed is None and found is not None and found.value == value:
            asked = self.call("kv/range", {"key": self.coded(key)}, key).get("kvs", ())
            return found.revision if asked and asked[0].get("lease") == lease else None  # an answer was lost before
        return changed

    @contextmanager
    def watch(self, key: str) -> Iterator[EtcdWatch]:
        watch = EtcdWatch(self, key)
        try:
            yield watch
        finally:
            watch.close()

    def stream(self, key: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A stream of changes of `key` and of what is below it. Raises OSError."""
        full = self._prefix + key
        asked = {"create_request": {"key": _coded(full), "range_end": _coded(f"{full}0")}}
        server = self._url.servers[self._at % len(self._url.servers)]
        connection = self._connect(server, self.call_s)
        try:
            response = self._send(connection, "watch", asked)
            response.readline(ANSWER_BYTES_MAX)  # the watch is there
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OSError(errno.EIO, f"cannot watch at {_named(server)}: {error}", self._place(key)) from error
        return connection, response

    # -- servers ------------------------------------------------------------------------------------------------------

    def servers(self) -> list[tuple[str, str]]:
        found = []
        for server in self._url.servers:
            try:
                self._ask(server, "maintenance/status", {}, min(self.call_s, CLOSE_S))
                found.append((_named(server), ""))
            except (OSError, http.client.HTTPException, _Refused, StoreError) as error:
                found.append((_named(server), str(error) or type(error).__name__))
        return found

    def is_compacted(self, changes: int) -> bool:
        """Whether etcd has forgotten what was `changes` changes ago, or has not had as many. Raises OSError."""
        revision = int(self.call("kv/range", {"key": self.coded("lock")}, "lock")["header"]["revision"]) - changes
        if revision <= 0:
            return True
        try:
            self.call("kv/range", {"key": self.coded("lock"), "revision": str(revision)}, "lock", raw=True)
        except _Refused:
            return True
        return False

    def close(self) -> None:
        with self._mutex:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def call(
        self,
        what: str,
        asked: Mapping[str, Any],
        about: str,
        within_s: float | None = None,
        *,
        raw: bool = False,
        lost: list[str] | None = None,
    ) -> dict[str, Any]:
        """The answer of the first server that gives one. Raises OSError about the entry `about`, StoreError; `raw` =
        _Refused where a server could be asked and says no. `lost` gets why each server before did not answer: what was
        asked may have taken place."""
        end = self.clock.monotonic() + (self.call_s if within_s is None else within_s)
        count, tries, why = len(self._url.servers), 0, "no time"
        pause = threading.Event()
        while (left := end - self.clock.monotonic()) > 0:
            server = self._url.servers[self._at % count]
            try:
                return self._ask(server, what, asked, min(left, max(CLOSE_S, min(self.call_s / count, SERVER_S))))
            except _Refused as error:
                if error.code == _LOGIN:
                    self._token = ""
                elif raw or error.code == _NOT_FOUND:
                    raise
                elif error.code in (_DENIED, _INVALID):
                    raise StoreError(
                        f"etcd refuses {what} to {self._url.user or 'a client without a user'}: {error}. Give the user "
                        f"a role that may read and write all keys under {self._prefix}",
                        code="STORE_UNUSABLE",
                    ) from error
                elif error.code == _FULL and "space" in str(error):
                    raise OSError(errno.ENOSPC, f"etcd says: {error}", self._place(about)) from error
                why = f"{_named(server)} says: {error}"
            except (OSError, http.client.HTTPException) as error:
                why = f"{_named(server)}: {error or type(error).__name__}"
                if lost is not None:
                    lost.append(why)
            self._at = (self._at + 1) % count
            tries += 1
            if tries % count == 0:
                pause.wait(min(ROUND_S, left))
        raise OSError(errno.ETIMEDOUT, f"no server of etcd answers ({why})", self._place(about))

    def coded(self, key: str) -> str:
        """The key as the gateway has it."""
        return _coded(self._prefix + key)

    def _place(self, key: str) -> str:
        return f"{self.url}: {key}"

    def _ask(self, server: tuple[str, int], what: str, asked: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Raises OSError, HTTPException, _Refused."""
        if self._url.user and not self._token and what != "auth/authenticate":
            login = {"name": self._url.user, "password": self._url.password()}
            self._token = self._ask(server, "auth/authenticate", login, timeout_s)["token"]
        connection = self._take(server, timeout_s)
        try:
            response = self._send(connection, what, asked)
            data = response.read(ANSWER_BYTES_MAX)
            if not response.isclosed():
                raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            answer = _answer(data, response.status)
        except BaseException:
            connection.close()
            raise
        with self._mutex:
            keep = len(self._idle) < IDLE_MAX
            if keep:
                self._idle.append((server, connection))
        if not keep:
            connection.close()
        if "error" in answer:
            said = answer["error"]  # of a stream it is an object
            code = answer.get("code") if isinstance(said, str) else said.get("grpc_code")
            raise _Refused(int(code or 0), said if isinstance(said, str) else str(said.get("message")))
        found: dict[str, Any] = answer.get("result", answer)
        return found

    def _take(self, server: tuple[str, int], timeout_s: float) -> http.client.HTTPConnection:
        with self._mutex:
            kept = next((each for each in self._idle if each[0] == server), None)
            if kept is not None:
                self._idle.remove(kept)
        if kept is None:
            return self._connect(server, timeout_s)
        connection = kept[1]
        if connection.sock is None or _is_readable(connection.sock):  # the server has ended it meanwhile
            connection.close()
            return self._connect(server, timeout_s)
        connection.sock.settimeout(timeout_s)
        return connection

    def _connect(self, server: tuple[str, int], timeout_s: float) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(*server, timeout=timeout_s)
        return http.client.HTTPSConnection(*server, timeout=timeout_s, context=self._context)

    def _send(
        self, connection: http.client.HTTPConnection, what: str, asked: Mapping[str, Any]
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", **({"Authorization": self._token} if self._token else {})}
        connection.request("POST", f"/v3/{what}", json.dumps(asked), headers)
        return connection.getresponse()


class EtcdSession:
    """See `amq.store.coordinator.Session`: a lease, which a thread renews."""

    def __init__(self, etcd: Etcd, lease: str, until: float) -> None:
        self._etcd = etcd
        self._lease = lease
        self._until = until
        self._ended = etcd.threads.event()
        etcd.threads.start("amq-session", self._run)

    def hold(self, key: str, value: bytes) -> int | None:
        return None if self._ended.is_set() else self._etcd.hold(key, value, self._lease)

    def rest_s(self) -> float:
        return 0.0 if self._ended.is_set() else max(0.0, self._until - self._etcd.clock.monotonic())

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            with suppress(OSError, StoreError, _Refused):  # it ends by itself
                self._etcd.call("lease/revoke", {"ID": self._lease}, "a session", CLOSE_S)

    def _run(self) -> None:
        while not self._ended.wait(self._etcd.session_s / 4):
            sent = self._etcd.clock.monotonic()
            try:
                answer = self._etcd.call("lease/keepalive", {"ID": self._lease}, "a session", self._etcd.session_s)
            except (OSError, StoreError):
                continue  # the servers end it, where no later try gets through
            except _Refused:
                answer = {}
            left_s = int(answer.get("TTL", 0))
            self._until = sent + left_s * (1 - MARGIN)
            if left_s <= 0:
                self._ended.set()  # the servers have ended it


class EtcdWatch:
    """See `amq.store.coordinator.KeyWatch`: a stream of one server. Where it breaks the next one is asked."""

    def __init__(self, etcd: Etcd, key: str) -> None:
        self._etcd, self._key = etcd, key
        self._stream: tuple[http.client.HTTPConnection, http.client.HTTPResponse] | None = None
        with suppress(OSError):  # `wait` tries again
            self._stream = etcd.stream(key)

    def wait(self, timeout_s: float) -> bool:
        if self._stream is None:
            self._stream = self._etcd.stream(self._key)
            return True  # something may have changed meanwhile
        response = self._stream[1]
        if not select.select([response], [], [], timeout_s)[0]:
            return False
        try:
            is_open = bool(response.read1(ANSWER_BYTES_MAX))
        except (OSError, http.client.HTTPException):
            is_open = False
        if not is_open:
            self.close()
        return True

    def close(self) -> None:
        stream, self._stream = self._stream, None
        for each in stream or ():
            each.close()


def _answer(data: bytes, status: int) -> dict[str, Any]:
    """The object that etcd sends, whether it refuses or not. Raises HTTPException."""
    with suppress(ValueError):
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    text = data[:TEXT_BYTES_MAX].decode(errors="replace").strip()
    raise http.client.HTTPException(f"no answer of etcd: {status} {text}")


def _entry(key: str, found: Mapping[str, Any]) -> KeyEntry:
    return KeyEntry(key, b64decode(found.get("value", "")), int(found["mod_revision"]))


def _range(full: str) -> dict[str, str]:
    """That key, or where it ends with '/' all that begin with it."""
    return {"key": _coded(full), **({"range_end": _coded(full[:-1] + "0")} if full.endswith("/") else {})}


def _is_readable(sock: Any) -> bool:
    return bool(select.select([sock], [], [], 0)[0]) or (isinstance(sock, ssl.SSLSocket) and bool(sock.pending()))


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _coded(key: str) -> str:
    return _base64(key.encode())


def _named(server: tuple[str, int]) -> str:
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
