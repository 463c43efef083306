"""The life of a client connection: one table of states × events. Everything else is illegal.

    python -m amq.client.states      prints it as a diagram (Mermaid), which docs/client.md shows in the site

`Lifecycle.on` raises `IllegalEventError` on an illegal event and leaves the state unchanged.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Final

from amq.client.errors import IllegalEventError

PAGE_PATH: Final = "docs/client.md"


class State(Enum):
    NEW = "new"
    CONNECTING = "connecting"  # a TCP connection is under way
    HANDSHAKE = "handshake"  # CONNECT is sent, CONNECTED awaited
    CONNECTED = "connected"
    WAITING = "waiting"  # no link; the next round of attempts begins at a known time
    CLOSING = "closing"  # DISCONNECT is sent, its receipt awaited
    CLOSED = "closed"


class Event(Enum):
    START = "start"  # the application wants the connection
    OPENED = "opened"  # TCP connection established
    ACCEPTED = "accepted"  # CONNECTED arrived
    FAILED = "failed"  # could not connect, lost, silent for too long, or ERROR
    RETRY = "retry"  # the waiting time is over
    SWITCH = "switch"  # a preferred broker accepted us while we were connected to another
    GIVE_UP = "give up"  # attempts used up, or refused for good
    CLOSE = "close"  # the application wants no more
    DONE = "done"  # DISCONNECT was confirmed or took too long


TABLE: dict[tuple[State, Event], State] = {
    (State.NEW, Event.START): State.CONNECTING,
    (State.NEW, Event.CLOSE): State.CLOSED,
    (State.CONNECTING, Event.OPENED): State.HANDSHAKE,
    (State.CONNECTING, Event.FAILED): State.WAITING,
    (State.CONNECTING, Event.GIVE_UP): State.CLOSED,
    (State.CONNECTING, Event.CLOSE): State.CLOSED,
    (State.HANDSHAKE, Event.ACCEPTED): State.CONNECTED,
    (State.HANDSHAKE, Event.FAILED): State.WAITING,
    (State.HANDSHAKE, Event.GIVE_UP): State.CLOSED,
    (State.HANDSHAKE, Event.CLOSE): State.CLOSED,
    (State.CONNECTED, Event.FAILED): State.WAITING,
    (State.CONNECTED, Event.SWITCH): State.CONNECTED,
    (State.CONNECTED, Event.GIVE_UP): State.CLOSED,
    (State.CONNECTED, Event.CLOSE): State.CLOSING,
    (State.WAITING, Event.RETRY): State.CONNECTING,
    (State.WAITING, Event.GIVE_UP): State.CLOSED,
    (State.WAITING, Event.CLOSE): State.CLOSED,
    (State.CLOSING, Event.DONE): State.CLOSED,
    (State.CLOSING, Event.FAILED): State.CLOSED,
    (State.CLOSING, Event.CLOSE): State.CLOSED,
    (State.CLOSED, Event.CLOSE): State.CLOSED,
}


class Lifecycle:
    """The current state; changes by the table only."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.NEW

    def on(self, event: Event) -> None:
        try:
            self.state = TABLE[self.state, event]
        except KeyError:
            raise IllegalEventError(f"event '{event.value}' cannot happen in state '{self.state.value}'") from None


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> new"]
    lines += [f"    {state.value} --> {after.value}: {event.value}" for (state, event), after in TABLE.items()]
    return "\n".join([*lines, "    closed --> [*]"])


if __name__ == "__main__":
    sys.stdout.write(diagram() + "\n")
