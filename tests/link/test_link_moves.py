"""A home that has refused a message of a gateway's client, because its destination had moved, stores none behind it
for that destination until the gateway knows: it may live there again when the next ones come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amq.core.errors import CommandError
from amq.core.message import Message
from amq.link import commands
from amq.link.calls import ClientOpening
from amq.link.framing import LinkFrame
from amq.link.linked import LinkedClient
from amq.protocols.commands import Command, Failure, GoOn, InSession, Scope, Send, SendRun, SendToMany

OPENING = ClientOpening("alice", (), "", "", False, "7-1", "stomp", "", ())
HERE, AWAY = "queue://here", "queue://away"


class Home:
    """A `LinkedClient`, whose session refuses what is in `away`."""

    def __init__(self) -> None:
        self.away = {AWAY}
        self.stored: list[str] = []
        self.refused: list[object] = []
        self.budget = 100
        config = SimpleNamespace(max_frame_size_bytes=1 << 20, throttle_messages=0, throttle_size_bytes=0)
        hub: Any = SimpleNamespace(config=config)
        link: Any = SimpleNamespace(write=lambda *_: None, is_full=False, flush_later=lambda _: None)
        self.client = LinkedClient(hub, link, 1, 1, OPENING, "gateway")
        session: Any = SimpleNamespace(handle=self._handle)
        self.client.client = session
        fail = self.client.fail

        def see(failure: Failure) -> None:
            self.refused.append(failure.receipt)
            fail(failure)

        self.client.fail = see  # type: ignore[method-assign]

    def _handle(self, came: list[Command], until_s: float) -> list[Command]:  # noqa: ARG002
        now, rest = came[: self.budget], came[self.budget :]
        for command in now:
            if isinstance(command, SendRun):
                names, receipts = [command.like.destination], command.receipts or [None]
            elif isinstance(command, SendToMany):
                names, receipts = [*command.destinations], [command.receipt]
            elif isinstance(command, Send):
                names, receipts = [command.message.destination], [command.receipt]
            else:
                continue
            for receipt in receipts:
                if self.away & {*names}:
                    error = CommandError("it lives elsewhere", code="MOVED")
                    self.client.fail(Failure(error, Scope.COMMAND, receipt))
                else:
                    self.stored.append(str(receipt))
        return rest

    def comes(self, *came: Command) -> None:
        for receipt, command in enumerate(came, 1):
            asked = 0 if isinstance(command, GoOn | InSession) else 10 * len(self.stored + self.refused) + receipt
            found = commands.written(1, command, asked)
            self.client._held.append(commands.read(LinkFrame(found.kind, found.data, found.body)))
        self.client.work(1e9)


def sends(name: str, count: int = 1) -> list[Command]:
    return [Send(Message(name, b"m")) for _ in range(count)]


def test_nothing_behind_a_refused_message_is_stored() -> None:
    home = Home()
    home.comes(*sends(AWAY))
    home.away.clear()  # it lives here again
    run = SendRun(Message(AWAY, b""), [b"a", b"b"], [1, 2])
    home.comes(*sends(AWAY, 2), run, SendToMany(Message(AWAY, b""), (HERE, AWAY)), *sends(HERE))
    assert len(home.stored) == 1
    assert len(home.refused) == 1 + 2 + 2 + 1


def test_what_was_left_of_a_share_is_refused_too() -> None:
    home = Home()
    home.budget = 2
    home.comes(*sends(AWAY, 4))
    home.away.clear()
    home.client.work(1e9)
    assert home.stored == []
    assert len(home.refused) == 4


def test_the_gateway_goes_on() -> None:
    home = Home()
    home.comes(*sends(AWAY))
    home.away.clear()
    home.comes(*sends(AWAY), GoOn(), *sends(AWAY, 2))
    assert len(home.refused) == 2
    assert len(home.stored) == 2
    assert not home.client._refused


def test_what_lives_elsewhere_still_is_refused_again() -> None:
    home = Home()
    home.comes(*sends(AWAY))
    home.comes(GoOn(), *sends(AWAY))
    home.away.clear()
    home.comes(*sends(AWAY))
    assert home.stored == []
    assert len(home.refused) == 3
