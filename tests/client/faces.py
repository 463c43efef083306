"""Both faces of the client behind one: scenarios are written once, for asyncio, and run on the synchronous face too."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import amq
from amq.client import aio

_WRAPPED = ("amq.client.connection", "amq.client.session")


class Awaitable:
    """An object of the synchronous face whose methods can be awaited: the call blocks, then the result is there."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return value
        if name in ("session", "producer", "on_event", "messages"):  # no coroutines on the other face either
            return lambda *a, **k: wrap(value(*a, **k))
        if name == "transaction":
            return lambda: _Managed(value())
        if name == "exactly_once":
            return _plain_work(value)

        async def call(*arguments: Any, **named: Any) -> Any:
            return wrap(value(*arguments, **named))

        return call

    async def __aenter__(self) -> Awaitable:
        self._target.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._target.__exit__(*error)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _iterate(iter(self._target))


def _plain_work(exactly_once: Any) -> Any:
    """Takes asynchronous work, which on this face never has to wait, as the plain function that this face calls."""

    async def call(work: Any, **named: Any) -> Any:
        def run(session: Any) -> Any:
            try:
                work(wrap(session)).send(None)
            except StopIteration as end:
                return end.value
            raise AssertionError("the work waits for something else than the connection")

        return exactly_once(run, **named)

    return call


class _Managed:
    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return wrap(self._manager.__enter__())

    async def __aexit__(self, *error: Any) -> bool | None:
        return self._manager.__exit__(*error)  # type: ignore[no-any-return]


async def _iterate(iterator: Any) -> AsyncIterator[Any]:
    for item in iterator:
        yield wrap(item)


def wrap(value: Any) -> Any:
    if inspect.isgenerator(value):
        return _iterate(value)
    return Awaitable(value) if type(value).__module__ in _WRAPPED else value


class SyncFace:
    name = "sync"

    @staticmethod
    async def connect(*arguments: Any, **named: Any) -> Any:
        return wrap(amq.connect(*arguments, **named))


class AsyncFace:
    name = "asyncio"
    connect = staticmethod(aio.connect)
