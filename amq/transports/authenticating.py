"""Authenticating: the state of a client whose login takes several steps, until its `Connect`.

Invariants: a client has `STEPS_MAX` responses of `RESPONSE_BYTES_MAX` bytes together. It is read only while one is
due, and `connectTimeout` ends only then. Commands that it sends ahead wait in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from amq.core.errors import ProtocolError
from amq.protocols.commands import Command, LoginStep
from amq.security.login import Login, refusal

STEPS_MAX: Final = 10
RESPONSE_BYTES_MAX: Final = 64 << 10


class Authenticating:
    """Implements `amq.security.login.Exchange`. `pose` sends a challenge to the client, and reads on. `proven` = how
    the exchange ended, None = it goes on."""

    def __init__(self, first: LoginStep, pose: Callable[[bytes], None]) -> None:
        self.mechanism, self.response = first.mechanism, first.response
        self.login, self.last = "", b""
        self.proven: Login | None = None
        self._pose = pose
        self._steps, self._bytes = 1, len(first.response)
        self._due: asyncio.Future[bytes] | None = None

    @property
    def waits(self) -> bool:
        """Is it the client's turn?"""
        return self._due is not None and not self._due.done()

    async def ask(self, challenge: bytes) -> bytes:
        """The response of the client to `challenge`. Raises AmqError."""
        if self._steps == STEPS_MAX:
            raise refusal(f"it takes more than {STEPS_MAX} steps")
        self._due = asyncio.get_running_loop().create_future()
        try:
            self._pose(challenge)
            response = await self._due
        finally:
            self._due = None
        self._steps += 1
        self._bytes += len(response)
        if self._bytes > RESPONSE_BYTES_MAX:
            raise refusal(f"its steps have more than {RESPONSE_BYTES_MAX} bytes")
        return response

    def answer(self, command: Command) -> None:
        """The next command of the client, when it was its turn."""
        assert self._due is not None
        if isinstance(command, LoginStep):
            self._due.set_result(command.response)
        else:
            self._due.set_exception(getattr(command, "error", ProtocolError("a step of the login is due")))

    def close(self) -> None:
        """The client is gone: this refers to its peer no more."""
        self._pose = _nowhere


def _nowhere(_: bytes) -> None:
    """Nobody hears it."""
