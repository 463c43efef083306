"""How long a session that has the lock lasts at its coordinator.

On a machine that starves its processes a session ends although its process goes on, and another member takes over,
which fares no better. So for a while the next sessions of that process last twice as long, which halves the takeovers.
A member that dies meanwhile is replaced later: that is the price. Nothing of this is needed for safety.
"""

from __future__ import annotations

import math
from typing import Final

TIMES: Final = 2  # as long as `sessionTimeout` says; more gains nothing (`tests/simulation/starved.py`)
FORGOTTEN_S: Final = 600.0  # without such an end, and sessions are as long as they were


class SessionTime:
    """The sessions of one process, which last for `session_s` seconds unless one has ended too early."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._ended = -math.inf

    def ended(self, now: float) -> None:
        """A session has ended although this process goes on. `now`: monotonic seconds."""
        self._ended = now

    def seconds(self, now: float) -> float:
        """How long the next session lasts."""
        return self._session_s * (TIMES if now < self._ended + FORGOTTEN_S else 1)
