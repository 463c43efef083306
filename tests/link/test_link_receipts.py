"""The answers to runs of messages: however the home groups them, each message's client hears once, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amq.broker.sessions.links import NOBODY
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.gateway.answers import TOKEN, KeptRun
from amq.gateway.turn import GatewayTurn
from amq.link import calls
from amq.link.framing import Kind, LinkError, LinkFrame
from amq.link.link import Link, RemoteConnection
from amq.protocols.commands import Failure, Scope, Send, SendRun
from tests.link.linking import SECRET


class Heard:
    """What a client's home hears: tokens of its client, and the sizes of the runs that it was given as one."""

    def __init__(self) -> None:
        self.confirmed: list[object] = []
        self.failed: list[object] = []
        self.whole: list[int] = []

    def confirm_all(self, receipts: Sequence[Any]) -> None:
        if isinstance(receipts, KeptRun):
            self.whole.append(len(receipts))
            self.confirmed += receipts.tokens
        else:
            self.confirmed += map(token, receipts)

    def fail(self, failure: Failure) -> None:
        self.failed.append(token(failure.receipt))

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def token(receipt: Any) -> object:
    return receipt if isinstance(receipt, str) else receipt[TOKEN]


def run(first: int, count: int, listed: bool) -> SendRun:
    """Of messages with the tokens from `first` on."""
    tokens: list[object] = [str(first + n) for n in range(count)]
    sent = SendRun(Message("queue://a", b""), [b"x"] * count, tokens)
    return sent if listed else SendRun(sent.like, sent.bodies, KeptRun(tokens, sent, 0, False))


def opened(heard: Heard) -> RemoteConnection:
    """On a link that has not begun: it keeps what is said."""
    loop = asyncio.new_event_loop()
    loop.close()
    hub: Any = SimpleNamespace(turn=GatewayTurn(loop), loop=loop)
    link = Link(hub, SECRET, Random(1))
    recipient: Any = heard
    return link.open(recipient, NOBODY, "9-1.", "none")


def confirm(connection: RemoteConnection, numbers: Sequence[int]) -> None:
    connection.take(LinkFrame(Kind.CONFIRM_MANY, calls.confirmations(1, numbers)))


def fail(connection: RemoteConnection, number: int) -> None:
    failure = Failure(CommandError("no"), Scope.COMMAND, number, 0, "")
    connection.take(LinkFrame(Kind.FAIL, calls.stated(1, calls.FAILURE, failure)))


def lose(connection: RemoteConnection) -> list[object]:
    """Returns the tokens without an answer."""
    found: list[object] = []
    connection.lost = lambda gone, _: found.extend(map(token, gone.unanswered))
    connection.end(LinkError("gone"))
    return found


def test_a_run_that_is_confirmed_as_one_is_heard_as_one() -> None:
    heard = Heard()
    connection = opened(heard)
    connection.handle([run(1, 100, False), Send(Message("queue://a", b"x"), "101"), run(102, 20, False)])
    confirm(connection, [*range(1, 122)])
    assert heard.whole == [100, 20]
    assert heard.confirmed == [str(n) for n in range(1, 122)]
    assert lose(connection) == []


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=12),
    st.randoms(use_true_random=False),
)
def test_however_a_home_answers_each_token_is_heard_once(
    sent: list[tuple[int, bool]], answers: list[tuple[int, bool, bool]], random: Random
) -> None:
    heard = Heard()
    connection = opened(heard)
    count = 0
    for size, listed in sent:  # 0 and 1: a message alone
        first, count = count + 1, count + max(size, 1)
        connection.handle([run(first, size, listed) if size > 1 else Send(Message("queue://a", b"x"), str(first))])
    left, confirmed, failed = [*range(1, count + 1)], list[str](), list[str]()
    for size, mixed, fails in answers:
        if mixed:
            random.shuffle(left)
        group, left = left[:size], left[size:]
        if fails and group:
            fail(connection, group[0])
            failed.append(str(group.pop(0)))
        if group:
            confirm(connection, group)
            confirmed += map(str, group)
    assert (heard.confirmed, heard.failed) == (confirmed, failed)
    assert lose(connection) == [str(n) for n in sorted(left)]
