"""The failover machine: what it does after each fault, and that no sequence of events makes it forget a caller."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from fake_broker import IGNORE, Conversation
from world import World

from amq.client.core import ProducerCore
from amq.client.errors import (
    BrokerError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    IllegalEventError,
    UriError,
    broker_error,
    error_of,
    is_transient,
)
from amq.client.machine import DISCONNECT_S_MAX, PRIORITY_PROBE_EVERY_S, REFUSALS_MAX
from amq.client.requests import EventKind
from amq.client.states import State
from amq.core.errors import AccessError, ProtocolError, SelectorError
from amq.gateway import links, router
from amq.protocols.commands import Failure
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import Frame, FrameReader, encode
from amq.security import authentication, login
from amq.selectors import Selector
from amq.transports import peer as connection

TWO = "failover:(stomp://a:1,stomp://b:2)?randomize=false"
Q = "/queue/q"


def once(command: str, verdict: str | bytes):  # type: ignore[no-untyped-def]
    """A script that gives `verdict` on the first frame `command`."""
    left = [verdict]

    def script(_: Conversation, frame: Frame) -> str | bytes | None:
        return left.pop() if frame.command == command and left else None

    return script


# ---- connecting


def test_connects_to_the_first_that_listens() -> None:
    world = World(TWO, alive="b").connect()
    assert world.state is State.CONNECTED
    assert world.machine.is_flowing()
    assert world.tried == ["a", "b"], "the second follows at once"
    assert world.kinds() == []


def test_gives_up_after_the_allowed_rounds() -> None:
    world = World(TWO + "&maxReconnectAttempts=3", alive="").connect()
    world.advance(60)
    assert world.state is State.CLOSED
    assert world.tried == ["a", "b"] + ["a", "b"] * 2
    with pytest.raises(ConnectError, match="no broker answers"):
        world.machine.check_open()


def test_tries_for_ever_by_default_and_warns() -> None:
    world = World(TWO, alive="").connect()
    world.advance(60)
    assert world.state is State.WAITING
    assert len(world.tried) > 500, "a round each fifth of a second"
    assert [level for level, _ in world.machine.logs if level == 30]
    world.alive.add("b")
    world.advance(0.2)
    assert world.machine.is_flowing()


@pytest.mark.parametrize("url", ["stomp://a:1", "failover:(stomp://a:1)?maxReconnectAttempts=0"])
def test_without_failover_the_first_failure_is_the_last(url: str) -> None:
    world = World(url, alive="").connect()
    assert world.state is State.CLOSED
    with pytest.raises(ConnectError):
        world.machine.check_open()
    world = World(url).connect()
    world.kill("a")
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.DISCONNECT]
    with pytest.raises(ConnectionLostError):
        world.machine.check_open()


@pytest.mark.parametrize(
    ("module", "code"),
    [(login, "LOGIN_REFUSED"), (authentication, "LOGIN_REQUIRED"), (connection, "LOGIN_EXPIRED")],
)
def test_what_the_broker_says_of_logins_is_understood(module: ModuleType, code: str) -> None:
    assert f'code="{code}"' in inspect.getsource(module)
    assert isinstance(broker_error(code, "no"), AccessError)
    assert not is_transient(broker_error(code, "no"))


def test_a_login_that_nobody_can_check_now_is_tried_again() -> None:
    assert 'code="LOGIN_UNAVAILABLE"' in inspect.getsource(login)
    assert is_transient(broker_error("LOGIN_UNAVAILABLE", "later"))


@pytest.mark.parametrize(("module", "code"), [(router, "STORE_LOST"), (links, "HOME_UNAVAILABLE")])
def test_a_store_that_a_gateway_does_not_reach_now_is_asked_again(module: ModuleType, code: str) -> None:
    """Whatever waits for an answer is not blamed for that: the next gateway is asked."""
    assert f'code="{code}"' in (source := inspect.getsource(module)) or f'code = "{code}"' in source
    assert is_transient(broker_error(code, "no"))


def test_a_wrong_selector_is_shown_with_its_caret() -> None:
    with pytest.raises(SelectorError) as raised:
        Selector("price > AND urgent")
    written = StompCodec(message_id_prefix="ID:x-").error(Failure(raised.value))
    (frame,) = FrameReader().feed(written)
    error = error_of(frame)
    assert isinstance(error, SelectorError)
    assert error.code == "INVALID_SELECTOR"
    assert error.description == raised.value.description
    assert error.description.endswith("\nprice > AND urgent\n        ^")


def test_a_refused_login_is_final_at_first_and_after_some_attempts_later() -> None:
    world = World(TWO, alive="ab", passcode="wrong", login="me")
    world.passcode = "right"
    world.connect()
    assert world.tried == ["a"]
    with pytest.raises(AccessError, match="passcode"):
        world.machine.check_open()

    world = World(TWO, alive="ab", login="me", passcode="old").connect()
    world.passcode = "new"
    world.kill("a")
    world.advance(60)
    assert world.tried.count("b") == REFUSALS_MAX
    with pytest.raises(AccessError):
        world.machine.check_open()
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.DISCONNECT]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (encode("ERROR", [("message", "User name or password is invalid.")]), BrokerError),
        (encode("ERROR", [("message", "no"), ("code", "HEADER_INVALID")]), ProtocolError),
    ],
)
def test_a_refusal_of_what_the_client_asks_is_told_at_once(answer: bytes, error: type[Exception]) -> None:
    world = World(TWO, script=lambda *_: answer).connect()
    with pytest.raises(error):
        world.machine.check_open()
    assert world.tried == ["a"]


def test_a_broker_that_cannot_serve_now_is_tried_again() -> None:
    error = encode("ERROR", [("message", "maxConnections"), ("code", "TOO_MANY")])
    world = World(TWO, alive="ab", script=once("CONNECT", error)).connect()
    assert world.machine.is_flowing()
    assert world.tried == ["a", "b"]


def test_silence_in_connecting_and_handshake_ends_in_time() -> None:
    world = World(TWO + "&nested.connectTimeout=1000")
    world.machine.start(world.now)
    world.act()
    link = world.pending.pop()  # SYN without answer
    world.now += 1
    world.machine.tick(world.now)
    world.machine.failed(link, ConnectError("late"), world.now)  # the driver's own news come too late and are ignored
    assert world.state is State.CONNECTING
    world.act()
    world.alive.add("b")
    world.script = lambda *_: IGNORE
    world.answer()
    assert world.state is State.HANDSHAKE
    world.now += 1
    world.machine.tick(world.now)
    assert world.state is State.WAITING


def test_login_of_the_uri_comes_first_and_line_breaks_are_refused() -> None:
    world = World("failover:(stomp://u:p@a:1)", login="other", passcode="x", client_id="c1").connect()
    headers = world.store.frames[0].headers
    assert (headers["login"], headers["passcode"], headers["client-id"]) == ("u", "p", "c1")
    assert headers["accept-version"] == "1.2"
    with pytest.raises(UriError):
        World("stomp://a", login="a\nb")


# ---- heart-beats, priority, close


def test_heart_beats_both_ways() -> None:
    world = World(TWO + "&nested.heartBeat=1000").connect()
    world.machine.close(world.now)
    world = World(TWO + "&nested.heartBeat=1000", alive="ab")
    world.heart_beat = "1000,1000"
    world.connect()
    link = world.machine.link
    assert link is not None
    beats = 0
    for _ in range(40):  # the broker beats: nothing happens, and we beat at least once a second
        world.now += 0.1
        world.machine.tick(world.now)
        if beat := link.take_output(world.now):
            assert beat == b"\n"
            beats += 1
        world.machine.received(link, b"\n", world.now)
    assert world.machine.link is link
    assert beats >= 4
    world.advance(1.9)
    assert world.machine.link is link
    world.advance(0.2)
    assert world.events[0].error is not None
    assert world.events[0].error.code == "HEART_BEAT_MISSED"
    assert world.tried == ["a", "b"]


def test_priority_backup_moves_back_when_no_transaction_is_open() -> None:
    world = World(TWO + "&priorityBackup=true", alive="b").connect()
    session = world.session(transacted=True)
    producer = ProducerCore(session, Q)
    subscription, _ = world.session().subscribe(Q, 5, "", {})
    world.send(producer, "1")
    world.settle()
    world.alive.add("a")
    world.advance(3 * PRIORITY_PROBE_EVERY_S)
    assert world.tried.count("a") >= 3, "it keeps trying"
    assert world.machine.link is not None
    assert world.machine.link.uri.host == "b"
    session.start_commit()
    world.settle()
    world.advance(PRIORITY_PROBE_EVERY_S)
    assert world.machine.link.uri.host == "a"
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.FAILOVER]
    assert len(world.wires) == 1
    assert world.receive(subscription) == "1"
    tried = len(world.tried)
    world.advance(60)
    assert len(world.tried) == tried, "at home there is nothing to look for"


def test_a_session_that_was_closed_in_an_outage_keeps_nobody_from_moving_back() -> None:
    world = World(TWO + "&priorityBackup=true", alive="b").connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, Q), "1")
    world.settle()
    world.kill("b")
    session.close([])
    world.alive.add("b")
    world.advance(PRIORITY_PROBE_EVERY_S)
    assert world.machine.is_flowing()
    world.alive.add("a")
    world.advance(3 * PRIORITY_PROBE_EVERY_S)
    assert world.machine.link is not None
    assert world.machine.link.uri.host == "a"
    assert world.store.bodies(Q) == []


def test_a_silent_preferred_broker_disturbs_nobody() -> None:
    world = World(TWO + "&priorityBackup=true&nested.connectTimeout=500", alive="b").connect()
    world.advance(PRIORITY_PROBE_EVERY_S - 0.1)
    world.now += 0.1
    world.machine.tick(world.now)
    world.act()
    assert len(world.pending) == 1
    world.now += 0.5
    world.machine.tick(world.now)
    world.act()
    assert world.pending == []
    assert world.machine.is_flowing()
    assert world.kinds() == []


def test_close_says_goodbye_and_ends_every_request() -> None:
    world = World(TWO).connect()
    session = world.session()
    request = world.send(ProducerCore(session, Q), "1")
    subscription, subscribing = session.subscribe(Q, 1, "", {})
    world.machine.close(world.now)
    assert world.state is State.CLOSING
    assert request is not None
    assert isinstance(request.error, ConnectionClosedError)
    assert isinstance(subscribing.error, ConnectionClosedError)
    with pytest.raises(ConnectionClosedError):
        subscription.ready()
    with pytest.raises(ConnectionClosedError):
        session.may_send()
    world.settle()
    assert world.state is State.CLOSED
    assert world.store.frames[-1].command == "DISCONNECT"
    assert world.kinds() == []


def test_close_does_not_wait_for_ever() -> None:
    world = World(TWO, script=lambda _, f: IGNORE if f.command == "DISCONNECT" else None).connect()
    world.machine.close(world.now)
    world.settle()
    world.advance(DISCONNECT_S_MAX - 0.1)
    assert world.state is State.CLOSING
    world.advance(0.2)
    assert world.state is State.CLOSED
    assert world.wires == {}
    assert world.machine.deadline() is None


@pytest.mark.parametrize("alive", ["", "a"])
def test_close_while_connecting(alive: str) -> None:
    world = World(TWO, alive=alive)
    world.machine.start(world.now)
    world.machine.close(world.now)
    world.act()
    assert world.state is State.CLOSED
    assert world.pending == []
    world.machine.close(world.now)


def test_illegal_events_change_nothing() -> None:
    world = World(TWO).connect()
    link = world.machine.link
    assert link is not None
    with pytest.raises(IllegalEventError):
        world.machine.start(world.now)
    with pytest.raises(IllegalEventError):
        world.machine.opened(link, world.now)
    foreign = World(TWO).connect().machine.link
    assert foreign is not None
    with pytest.raises(IllegalEventError):
        world.machine.received(foreign, b"\n", world.now)
    assert world.machine.is_flowing()
    assert world.machine.link is link


@pytest.mark.parametrize("junk", [b"MESSAGE\n\n\0" * 3, b"CONNECTED\nversion:1.2\n\n\0", b"\x00\xff", b"hello\n\n\0"])
def test_junk_from_the_broker_is_a_broken_link_at_worst(junk: bytes) -> None:
    world = World(TWO, alive="ab").connect()
    link = world.machine.link
    assert link is not None
    world.machine.received(link, junk, world.now)
    world.advance(1)
    assert world.machine.is_flowing()
