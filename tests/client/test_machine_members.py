"""Members of a group that do not speak STOMP, fall silent, or send too much; the machine alone, without sockets."""

from __future__ import annotations

import pytest
from fake_broker import CUT, Conversation
from world import World

from amq.client.core import ProducerCore, timed_out
from amq.client.errors import CommitOutcomeUnknownError, ConnectError, FailoverTimeoutError, is_final
from amq.client.link import Link
from amq.client.requests import Request
from amq.client.states import State
from amq.client.uri import parse
from amq.core.errors import AmqError, ProtocolError
from amq.protocols.stomp.frame import Frame, encode

TWO = "failover:(stomp://a:1,stomp://b:2)?randomize=false"
Q = "/queue/q"
HTTP = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n"
ALERT = b"\x15\x03\x03\x00\x02\x02\x50"  # TLS 1.2, fatal, internal error: Java's answer to CONNECT
FOREIGN = [
    HTTP,
    ALERT,
    encode("CONNECTED", [("version", "1.1")]),
    encode("CONNECTED", [("version", "1.2"), ("heart-beat", "x")]),
    encode("RECEIPT", [("receipt-id", "1"), ("x", "y")]),
    encode("ERROR", [("message", "no"), ("code", "VERSION_UNSUPPORTED")]),
]


@pytest.mark.parametrize("answer", FOREIGN)
def test_the_member_after_one_that_does_not_speak_stomp_is_used(answer: bytes) -> None:
    answers = [answer]
    world = World(TWO, alive="ab", script=lambda *_: answers.pop() if answers else None).connect()
    assert world.tried == ["a", "b"]
    assert world.machine.is_flowing()


@pytest.mark.parametrize("answer", FOREIGN)
def test_each_address_is_listed_with_its_cause_when_the_client_gives_up(answer: bytes) -> None:
    world = World(TWO + "&maxReconnectAttempts=2", alive="a", script=lambda *_: answer).connect()
    world.advance(5)
    assert world.tried == ["a", "b", "a", "b"]
    with pytest.raises(ConnectError) as raised:
        world.machine.check_open()
    text = str(raised.value)
    assert "no broker answers after 2 rounds of attempts (maxReconnectAttempts): stomp://a:1" in text
    assert "stomp://b:2: refused" in text
    assert answer is not HTTP or "stomp://a:1 does not speak STOMP 1.2" in text
    assert answer is not ALERT or "stomp://a:1 does not speak STOMP 1.2: it answers with a TLS alert" in text


def test_a_single_server_that_does_not_speak_stomp_is_told_at_once() -> None:
    world = World("stomp://a:1", script=lambda *_: HTTP).connect()
    with pytest.raises(ConnectError, match=r"stomp://a:1 does not speak STOMP 1\.2"):
        world.machine.check_open()


def test_the_warning_of_failed_rounds_has_causes_and_the_limit() -> None:
    limit = "gives up after 12 rounds of attempts (maxReconnectAttempts)"
    for query, end in (("", "the client goes on"), ("&maxReconnectAttempts=12", limit)):
        world = World(f"{TWO}&warnAfterReconnectAttempts=10{query}", alive="").connect()
        world.advance(5)
        warning = next(text for level, text in world.machine.logs if "10 rounds" in text and level == 30)
        assert "stomp://a:1: refused; stomp://b:2: refused; " in warning
        assert warning.endswith(end)


def test_causes_are_bounded_and_forgotten_on_success() -> None:
    hosts = ",".join(f"stomp://h{number}:1" for number in range(30))
    world = World(f"failover:({hosts})?randomize=false&timeout=5", alive="").connect()
    causes = world.machine.why_not_connected()
    assert causes.count("refused") == 10
    assert causes.endswith("; and 20 more")
    world.alive.add("h0")
    world.advance(1)
    assert world.machine.is_flowing()
    assert world.machine.why_not_connected() == ""


# ---- silence


@pytest.mark.parametrize(
    ("query", "broker", "silence_s"),
    [("", "1000,1000", 4.0), ("", "10000,10000", 20.0), ("?heartBeat=500", "1000,1000", 2.0), ("", "0,0", 0.0)],
)
def test_silence_is_noticed_after_twice_the_longer_of_both_offers(query: str, broker: str, silence_s: float) -> None:
    link = Link(parse(f"stomp://a:1{query}").uris[0], None)
    link.accept(Frame("CONNECTED", {"version": "1.2", "heart-beat": broker}, b""), 100.0)
    assert link.silence_s_max == silence_s


def test_a_default_client_leaves_a_silent_master_within_four_seconds() -> None:
    world = World(TWO, alive="a")
    world.heart_beat = "1000,1000"
    world.connect()
    assert world.machine.is_flowing()
    world.alive = {"b"}  # and a says nothing any more, but keeps the connection
    world.advance(3.9)
    assert world.tried == ["a"]
    world.advance(0.2)
    assert world.tried == ["a", "b"]
    assert world.machine.is_flowing()


def test_a_client_that_was_held_up_itself_reads_before_it_judges() -> None:
    link = Link(parse("stomp://a:1").uris[0], None)
    link.accept(Frame("CONNECTED", {"version": "1.2", "heart-beat": "1000,1000"}, b""), 0.0)
    link.beat(10.0)  # stopped for ten seconds: what the broker sent is still in the socket
    with pytest.raises(ProtocolError, match="silent"):
        while True:
            due = link.next_deadline()
            assert due is not None
            assert due <= 14.0, "silence is still noticed"
            link.beat(due)


# ---- too large a message


@pytest.mark.parametrize("length", ["content-length:5000\n", ""])
def test_a_message_larger_than_the_url_allows_ends_the_connection(length: str) -> None:
    world = World("failover:(stomp://a:1?maxFrameSize=2048)").connect()
    (link,) = world.wires
    data = f"MESSAGE\nsubscription:s\nmessage-id:1\n{length}\n".encode() + b"x" * 5000
    for start in range(0, len(data), 500):
        world.machine.received(link, data[start : start + 500], world.now)
    assert world.state is State.CLOSED, "the message would come again"
    with pytest.raises(ProtocolError, match="more than 2048 bytes: set maxFrameSize") as raised:
        world.machine.check_open()
    assert raised.value.code == "FRAME_TOO_LARGE"
    assert is_final(raised.value)


# ---- a commit under way when the connection ends for good


def lost_commit(url: str, outcome_id: str) -> Request:
    def script(_: Conversation, frame: Frame) -> str | None:
        return CUT if frame.command == "COMMIT" else None

    world = World(url, script=script).connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, Q), "1")
    request = session.start_commit(outcome_id)
    world.settle()
    assert request is not None
    return request


@pytest.mark.parametrize("outcome_id", ["mine", ""])
def test_a_commit_in_flight_without_failover_ends_with_its_outcome_id(outcome_id: str) -> None:
    request = lost_commit("stomp://a:1", outcome_id)
    assert request.done
    assert isinstance(request.error, CommitOutcomeUnknownError)
    assert request.error.outcome_id == request.outcome_id
    assert request.outcome_id == outcome_id or not outcome_id
    assert f"amq-outcome-id:{request.outcome_id}\n".encode() in request.frame
    assert isinstance(request.error.__cause__, AmqError)


def test_with_failover_it_goes_on() -> None:
    assert not lost_commit(TWO + "&maxReconnectAttempts=-1", "mine").done


def test_a_call_without_broker_times_out_with_the_causes() -> None:
    world = World(TWO, alive="").connect()
    error = timed_out(world.machine, "send", 2.0)
    assert isinstance(error, FailoverTimeoutError)
    causes = "stomp://a:1: refused; stomp://b:2: refused"
    assert str(error).endswith(f"no broker could be reached within 2 s (timeout): {causes}")
