"""Members that the URL does not name: what is taken from a list and what is not, and what the machine does with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from amq.client.core import ProducerCore
from amq.client.errors import ConnectError
from amq.client.link import BROKERS_RECEIPT
from amq.client.machine import LIST_EVERY_S, LIST_PATIENCE_S
from amq.client.members import LEARNED_MAX, LIST_CHARACTERS_MAX, REFUSED_SHOWN_MAX, Members
from amq.client.states import State
from amq.client.uri import BrokerUri, BrokerUrl, parse
from amq.core.errors import AccessError
from amq.protocols.stomp.frame import Frame, encode
from tests.client.fake_broker import Conversation

ONE = "failover:(stomp://a:1)?randomize=false"
A = BrokerUri("a", 1)


def addresses(uris: Iterable[BrokerUri]) -> list[str]:
    return [str(uri).removeprefix("stomp://") for uri in uris]


def told(text: str, url: str = ONE, teller: BrokerUri = A) -> Members:
    members = Members(parse(url))
    members.told(text, teller)
    return members


# ---- what is taken


def test_the_url_comes_first_and_each_list_replaces_the_one_before() -> None:
    members = told("stomp://b:2,stomp://a:1, stomp://c:3\nstomp://b:2")
    assert addresses(members.uris) == ["a:1", "b:2", "c:3"]
    assert not members.told("stomp://b:2,stomp://c:3", A)
    assert members.told("stomp://c:3", A)
    assert addresses(members.uris) == ["a:1", "c:3"]
    assert members.listed("stomp://d:4,stomp://c:3")
    assert addresses(members.uris) == ["a:1", "c:3", "d:4"]
    assert members.told("", A)
    assert addresses(members.uris) == ["a:1", "d:4", "c:3"]


def test_a_file_is_older_than_what_a_broker_tells() -> None:
    members = Members(parse(ONE))
    assert members.remembered("# of yesterday\nstomp://old:1\n\n")
    assert addresses(members.uris) == ["a:1", "old:1"]
    assert members.told("stomp://b:2", A)
    assert not members.remembered("stomp://old:1")
    assert addresses(members.uris) == ["a:1", "b:2"]


def test_what_is_kept_is_what_is_remembered() -> None:
    members = told("stomp://b:2,stomp://[::2]:3")
    members.listed("stomp://d:4")
    again = Members(parse(ONE))
    again.remembered(members.text())
    assert addresses(again.uris) == ["a:1", "b:2", "[::2]:3"]
    assert again.text() == members.text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tcp://b:2", "not a STOMP address"),
        ("stomp://b:0", "port 0"),
        ("b:2", "not a STOMP address"),
        ("stomp://me:secret@b:2", "no options and no login"),
        ("stomp://b:2?heartBeat=0", "no options and no login"),
        ("stomp://127.0.0.1:2", "an address of another host"),
        ("stomp://LOCALHOST.:2", "an address of another host"),
        ("stomp://[::1]:2", "an address of another host"),
        ("stomp://[::ffff:127.0.0.1]:2", "of another host"),
        ("stomp://0.0.0.0:2", "an address of another host"),
        ("x" * (LIST_CHARACTERS_MAX + 1), "characters, more than"),
    ],
)
def test_what_a_broker_must_not_tell(text: str, why: str) -> None:
    members = told(text)
    assert addresses(members.uris) == ["a:1"]
    assert why in members.refused[0]
    assert "secret" not in members.refused[0]


def test_a_broker_on_this_host_may_name_others_there() -> None:
    members = told("stomp://127.0.0.1:2", "failover:stomp://localhost:1", BrokerUri("localhost", 1))
    assert addresses(members.uris) == ["localhost:1", "127.0.0.1:2"]


def test_a_client_of_encrypted_brokers_follows_no_plain_one() -> None:
    url = BrokerUrl((BrokerUri("a", 1, scheme="stomp+ssl"),))
    for tell in (Members.listed, Members.remembered, lambda members, text: members.told(text, A)):
        members = Members(url)
        assert not tell(members, "stomp://b:2")
        assert members.refused == ("stomp://b:2: the broker URL has no stomp://",)


def test_a_list_of_the_operator_may_have_options() -> None:
    members = Members(parse(ONE + "&nested.heartBeat=7&nested.connectTimeout=9"))
    assert members.listed("stomp://me:secret@b:2?heartBeat=5,stomp://c:3")
    _, b, c = members.uris
    assert (b.login, b.passcode, b.options.heart_beat_ms, b.options.connect_timeout_ms) == ("me", "secret", 5, 9)
    assert (c.login, c.options.heart_beat_ms, c.options.connect_timeout_ms) == ("", 7, 9)


@pytest.mark.parametrize(
    ("uris", "login"),
    [
        ("stomp://me:secret@a:1", ("me", "secret")),
        ("stomp://me:secret@a:1,stomp://me:secret@b:2", ("me", "secret")),
        ("stomp://me:secret@a:1,stomp://me:other@b:2", ("", "")),
        ("stomp://me:secret@a:1,stomp://b:2", ("", "")),
    ],
)
def test_a_learned_member_gets_the_login_that_all_members_have(uris: str, login: tuple[str, str]) -> None:
    """No broker that learns of one login learns another one by naming an address."""
    members = told("stomp://c:3", f"failover:({uris})")
    assert (members.uris[-1].login, members.uris[-1].passcode) == login


def test_the_learned_ones_are_bounded() -> None:
    many = ",".join(f"stomp://b{number}:1" for number in range(500))
    members = told(many)
    assert len(members.uris) == 1 + LEARNED_MAX
    assert members.refused == (f"there are more than {LEARNED_MAX}",)
    members.listed(many.replace("b", "c"))
    assert len(members.uris) == 1 + LEARNED_MAX
    assert len(told("x," * 500).refused) == REFUSED_SHOWN_MAX


PIECES = st.sampled_from(["stomp://", "a", ":1", ",", "#", "\n", "?", "=", "@", "[", "]", "::1", "%", " ", "\0", "ü"])


@given(st.lists(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=20).map("".join)), min_size=1, max_size=5))
def test_any_text_is_a_list_of_some_kind(texts: list[str]) -> None:
    members = Members(parse(ONE))
    for text in texts:
        for tell in (members.remembered, members.listed, lambda text: members.told(text, A)):
            before = members.uris
            changed = tell(text)
            assert changed == (members.uris != before)
            assert members.uris[:1] == members.url.uris
            assert len({uri.address for uri in members.uris}) == len(members.uris)
    again = Members(parse(ONE))
    again.remembered(members.text())
    assert set(again.uris) <= set(members.uris)


# ---- the machine


def script(brokers: str) -> object:
    """A broker that tells of `brokers` when somebody logs in."""

    def answer(_: Conversation, frame: Frame) -> bytes | None:
        if frame.command != "CONNECT":
            return None
        return encode("CONNECTED", [("version", "1.2"), ("heart-beat", "0,0"), ("brokers", brokers)])

    return answer


def world(url: str = ONE, brokers: str = "stomp://a:1,stomp://b:2", **machine: object) -> World:
    return World(url, "ab", script=script(brokers), **machine)  # type: ignore[arg-type]


def test_a_client_fails_over_to_a_broker_that_it_was_told_of() -> None:
    made = world().connect()
    producer = ProducerCore(made.session(), "/queue/q")
    made.send(producer, "first")
    made.settle()
    made.kill("a")
    made.send(producer, "second")
    made.advance(1)
    assert made.tried == ["a", "b"]
    assert made.store.bodies("/queue/q") == [b"first", b"second"]
    assert made.machine.is_flowing()


def test_a_change_is_told_by_a_receipt_that_no_request_waits_for() -> None:
    made = world().connect()
    ((link, conversation),) = made.wires.items()
    unconfirmed = made.machine.unconfirmed
    conversation.out += encode("RECEIPT", [("receipt-id", BROKERS_RECEIPT), ("brokers", "stomp://c:3")])
    made.settle()
    assert addresses(made.machine.members.uris) == ["a:1", "c:3"]
    assert made.machine.unconfirmed == unconfirmed
    conversation.out += encode("RECEIPT", [("receipt-id", BROKERS_RECEIPT)])  # which says nothing
    made.settle()
    assert addresses(made.machine.members.uris) == ["a:1", "c:3"]
    assert link.accepted


@pytest.mark.parametrize(
    ("url", "asks"),
    [
        (ONE, True),
        (ONE + "&updateURIsSupported=false", False),
        ("stomp://a:1", False),
        ("stomp://a:1?ha=true", True),
    ],
)
def test_only_a_client_that_can_use_it_asks(url: str, asks: bool) -> None:
    frames: list[Frame] = []

    def watch(conversation: Conversation, frame: Frame) -> object:
        frames.append(frame)
        return script("stomp://b:2")(conversation, frame)  # type: ignore[operator]

    made = World(url, "ab", script=watch).connect()  # type: ignore[arg-type]
    assert ("amq-brokers-receipt" in frames[0].headers) == asks
    assert addresses(made.machine.members.uris) == (["a:1", "b:2"] if asks else ["a:1"])


def test_a_member_that_vanishes_is_not_tried_any_more() -> None:
    made = world(brokers="stomp://b:2,stomp://c:3").connect()
    ((_, conversation),) = made.wires.items()
    conversation.out += encode("RECEIPT", [("receipt-id", BROKERS_RECEIPT), ("brokers", "stomp://c:3")])
    made.settle()
    made.alive = set()
    made.kill("a")
    made.advance(0.1)
    assert set(made.tried[1:]) == {"a", "c"}


def test_a_preferred_broker_is_left_for_a_learned_one_and_returned_to() -> None:
    made = world(ONE + "&priorityBackup=true").connect()
    made.kill("a")
    made.advance(1)
    assert made.machine.link is not None
    assert made.machine.link.uri.host == "b"
    made.alive.add("a")
    made.advance(3)
    assert made.machine.link.uri.host == "a"


def test_a_learned_broker_that_refuses_the_login_ends_no_connection() -> None:
    """A list may be old: another service may have the address now. A broker of the URL that refuses does end it."""
    made = World(ONE + "&knownBrokersFile=f", "b", login="me", passcode="wrong")
    made.passcode = "right"
    made.machine.start(made.now)
    made.settle()
    made.machine.fetched("f", "stomp://b:2")
    made.advance(5)
    assert made.tried.count("b") > 5
    assert made.state is not State.CLOSED
    assert "LOGIN_REFUSED" in made.machine.why_not_connected() or "b:2" in made.machine.why_not_connected()
    made.alive.add("a")
    made.advance(5)
    with pytest.raises(AccessError):
        made.machine.check_open()


# ---- lists


def test_a_file_is_read_once_and_written_when_it_says_something_else() -> None:
    made = world(ONE + "&knownBrokersFile=f")
    made.connect()
    assert made.fetches == ["f"]
    kept = made.machine.members.text()
    assert made.files == {"f": kept}
    again = world(ONE + "&knownBrokersFile=f")
    again.machine.start(again.now)
    again.act()
    again.machine.fetched("f", kept)
    again.settle()
    assert again.files == {}
    assert addresses(again.machine.members.uris) == ["a:1", "b:2"]


def test_a_file_that_is_not_there_is_none_to_speak_of() -> None:
    made = world(ONE + "&knownBrokersFile=f", "")
    made.connect()
    made.machine.fetched("f", FileNotFoundError(2, "No such file"))
    assert made.machine.logs == []
    made = world(ONE + "&knownBrokersFile=f", "")
    made.connect()
    made.machine.fetched("f", PermissionError(13, "Permission denied"))
    ((_, text),) = made.machine.logs
    assert "the list of brokers f (knownBrokersFile) cannot be used, or not all of it: [Errno 13]" in text


def test_a_list_is_read_at_each_connect_but_not_at_each_attempt() -> None:
    made = world(ONE + "&updateURIsURL=list", "")
    made.alive = set()
    made.connect()
    assert made.fetches == ["list"]
    made.advance(LIST_EVERY_S * 3)
    assert made.fetches == ["list"], "it is still being read"
    made.machine.fetched("list", "stomp://b:2")
    made.alive = {"b"}
    made.advance(1)
    assert made.machine.is_flowing()
    made.advance(60)
    before = len(made.fetches)
    made.alive = set()
    made.kill("b")
    for _ in range(4):
        made.machine.fetched("list", "stomp://b:2")
        made.advance(LIST_EVERY_S + 1)
    assert 4 <= len(made.fetches) - before <= 5


def test_a_client_that_would_give_up_waits_for_its_list() -> None:
    made = World(ONE + "&maxReconnectAttempts=1&updateURIsURL=list", "b")
    made.connect()
    made.advance(1)
    assert made.state is not State.CLOSED
    made.machine.fetched("list", "stomp://b:2")
    made.advance(1)
    assert made.machine.is_flowing()


def test_but_not_for_ever() -> None:
    made = World(ONE + "&maxReconnectAttempts=1&updateURIsURL=list", "b")
    made.connect()
    made.advance(LIST_PATIENCE_S + 1)
    with pytest.raises(ConnectError, match="no broker answers after 1 round of attempts"):
        made.machine.check_open()
    made.machine.fetched("list", "stomp://b:2")  # too late
    assert made.state is State.CLOSED


def test_what_is_wrong_with_a_list_is_logged_once() -> None:
    made = world(ONE + "&updateURIsURL=list", "")
    made.alive = set()
    made.connect()
    warnings = []
    for _ in range(3):
        made.machine.fetched("list", "stomp://b:2,tcp://c:3")
        made.advance(LIST_EVERY_S + 1)
        warnings += [text for _, text in made.machine.logs if "list" in text]
        made.machine.logs.clear()
    assert len(warnings) == 1
    assert "tcp://c:3" in warnings[0]


def test_schemes_differ_in_the_text_only() -> None:
    assert str(dataclasses.replace(A, scheme="stomp+ssl")) == "stomp+ssl://a:1"
