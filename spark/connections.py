"""Connections to the broker, of the driver and of tasks. Spark uses a Python process for many tasks and batches, so a
connection waits for the next one that has the same options.

Invariant: a connection waits only if all that it was used for succeeded; a process has at most `KEPT_MAX` that wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import amq
from amq.client import Connection
from amq.client.connection import begin
from amq.client.machine import SEND_WINDOW_MESSAGES
from pyspark_amq.options import BrokerOptions

TIMEOUT_S = 120.0  # a call of a source fails after that time without a broker
KEPT_MAX, KEPT_S = 8, 60.0  # connections that wait, and for how long


class _Key(NamedTuple):
    """Two uses with equal keys may have the same connection."""

    process: int
    url: str
    login: str
    passcode: str
    timeout_s: float
    window: int


_kept: dict[_Key, tuple[Connection, float]] = {}  # since when


def connect(options: BrokerOptions, timeout_s: float = TIMEOUT_S, window: int = SEND_WINDOW_MESSAGES) -> Connection:
    """A separate connection. `window` = messages that may be sent before they are confirmed. Raises AmqError."""
    return _connect(_key_of(options, timeout_s, window))


def begun(options: BrokerOptions) -> Connection:
    """A separate connection, which may be given up while it waits for its broker. Raises AmqError."""
    key = _key_of(options, TIMEOUT_S, SEND_WINDOW_MESSAGES)
    return begin(key.url, login=key.login, passcode=key.passcode, send_window_messages=key.window)


@contextmanager
def connected(
    options: BrokerOptions, timeout_s: float = TIMEOUT_S, window: int = SEND_WINDOW_MESSAGES
) -> Iterator[Connection]:
    """A connection that waited, or a new one. It waits again when the block ends well. Raises AmqError."""
    key = _key_of(options, timeout_s, window)
    connection, since = _kept.pop(key, (None, 0.0))
    if connection is not None and (time.monotonic() - since > KEPT_S or connection.uri is None):
        connection.abort()
        connection = None
    if connection is None:
        connection = _connect(key)
    try:
        yield connection
    except BaseException:
        connection.abort()
        raise
    _keep(key, connection)


def forget() -> None:
    """Close the connections that wait."""
    while _kept:
        _kept.popitem()[1][0].abort()


def _key_of(options: BrokerOptions, timeout_s: float, window: int) -> _Key:
    return _Key(os.getpid(), options.url, options.user or "", options.password or "", timeout_s, window)


def _connect(key: _Key) -> Connection:
    return amq.connect(
        key.url, login=key.login, passcode=key.passcode, timeout=key.timeout_s, send_window_messages=key.window
    )


def _keep(key: _Key, connection: Connection) -> None:
    if other := _kept.pop(key, None):
        other[0].abort()
    _kept[key] = connection, time.monotonic()
    while len(_kept) > KEPT_MAX:
        _kept.pop(next(iter(_kept)))[0].abort()
