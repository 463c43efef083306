"""`populateJMSXUserID`: each message names the user who sent it, whatever its producer says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amq.broker.sessions.session import Session
from amq.core.message import USER_ID, Message
from amq.protocols.commands import Command, Send, SendMany, SendRun, SendToMany
from amq.security.login import ANONYMOUS


def _signed(message: Message, user: str) -> Message:
    return Message.made_of(message, message.destination, {**(message.properties or {}), USER_ID: user or ANONYMOUS})


def _send(session: Session, command: Send) -> None:
    command.message = _signed(command.message, session.user)
    Session.HANDLERS[command.__class__](session, command)


def _send_many(session: Session, command: SendMany) -> None:
    session.carry_out([Send(message, None, command.transaction) for message in command.messages])


def _send_run(_session: Session, _command: SendRun) -> bool:
    return False  # one by one, please


# In place of `Session.HANDLERS` where the option is set.
HANDLERS: Final[dict[type[Command], Callable[[Session, Any], bool | None]]] = {
    **Session.HANDLERS,
    Send: _send,
    SendToMany: _send,
    SendMany: _send_many,
    SendRun: _send_run,
}
