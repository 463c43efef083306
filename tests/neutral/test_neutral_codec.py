"""The neutral protocol over sockets, beside STOMP's clients: the contract of protocols and broker knows no protocol.

One case of each thing that the contract has; `tests/broker` owns how it behaves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.core.destination import ANY_REST, ANY_WORD, Pattern
from amq.core.errors import ProtocolError
from amq.node.catalogue import PortCodecs
from amq.protocols.commands import Outcome, Scope
from amq.protocols.detect import detect
from tests.neutral.codec import NEUTRAL
from tests.neutral.wire import MAGIC
from tests.neutral.world import TABLE, Link, link, play, stomp
from tests.transports.served import Served

Q = "queue://q"


# -- the port ----------------------------------------------------------------------------------------------------------


def test_one_port_serves_both(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        ours, theirs = await link(served), await stomp(served)
        await ours.do(ours.subscribe("c", Q, acknowledges=False))
        await theirs.say("SEND", b"from STOMP", destination="/queue/q", color="red")
        [got] = await ours.gets(1)
        assert (got.body, got.destination, got.about["properties"]) == (b"from STOMP", Q, {"color": "red"})
        await ours.do(ours.unsubscribe("c"))
        await theirs.say("SUBSCRIBE", id=1, destination="/queue/q")
        await ours.do(ours.send(Q, b"to STOMP", properties={"color": "green"}))
        [message] = await theirs.messages(1)
        assert message.endswith(b"\n\nto STOMP")
        assert b"\ncolor:green\n" in message

    play(tmp_path, test)


def test_its_first_bytes_tell_it_from_others() -> None:
    known = [(NEUTRAL.name, signature) for signature in NEUTRAL.signatures]
    for size in range(len(MAGIC)):
        assert detect(MAGIC[:size], known) is None
    assert detect(MAGIC, known) == "neutral"
    assert detect(MAGIC + b"anything", known) == "neutral"
    assert detect(b"CONNECT\n", known) == "stomp"
    with pytest.raises(ProtocolError, match="right port"):
        detect(MAGIC)
    with pytest.raises(ProtocolError, match="STOMP and OpenWire and the neutral protocol, the client speaks mqtt"):
        PortCodecs(TABLE, None).codec(b"\x10\x0c\0\4MQTT\4\2\0\x3c\0\0", "")  # type: ignore[arg-type]


def test_what_comes_while_the_login_is_checked_is_carried_out_in_its_sessions(tmp_path: Path) -> None:
    """Each read begins in session 0, also where several are carried out together."""

    async def test(served: Served) -> None:
        peer = await served.connect()
        client = Link(served, peer)
        read = peer.connection.socket.data_received  # both come before the login can begin
        read(client.connect() + client.open(3) + client.begin("t", session=3))
        read(client.begin("t"))  # in session 0
        await client.until(lambda: len(client.done) == 3, "three answers")
        assert client.errors == []
        await client.do(client.commit("t", session=3))
        await client.do(client.commit("t"))

    play(tmp_path, test)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_sessions_are_apart_and_end_apart(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = await link(served, "me", "instance")
        await client.do(client.open(1), client.open(2))
        for session in (1, 2):
            await client.do(client.subscribe("c", f"queue://{session}", session=session, acknowledges=True))
            await client.do(client.begin("t", session=session))
            await client.do(client.send("queue://out", b"%d" % session, session=session, transaction="t"))
            await client.do(client.send(f"queue://{session}", b"for %d" % session))
        found = await client.gets(2)
        assert [(each.session, each.body) for each in found] == [(1, b"for 1"), (2, b"for 2")]
        await client.do(client.settle(found[0].seq, "c", session=1, transaction="t"))
        await client.do(client.settle(found[1].seq, "c", session=2, transaction="t"))
        await client.do(client.close(1))
        await client.do(client.commit("t", session=2))
        assert served.world.stored("out") == [b"2"]
        assert served.world.stored("1") == [b"for 1"]
        assert served.world.stored("2") == []
        await client.do(client.subscribe("c", "queue://1", session=0, acknowledges=True))
        assert [each.redelivered for each in await client.gets(1)] == [1]
        served.world.check()

    play(tmp_path, test)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_ends_what_its_scope_says_and_nothing_else(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        await client.do(client.open(1))
        await client.do(client.subscribe("c", Q, session=1, acknowledges=True))
        wrong = [
            (client.settle(99, "c", session=1), Scope.COMMAND, "UNKNOWN_DELIVERY"),
            (client.subscribe("d", Q, session=1, selector="a ="), Scope.COMMAND, "INVALID_SELECTOR"),
            (client.commit("none", session=1), Scope.COMMAND, "UNKNOWN_TRANSACTION"),
            (client.send("nonsense://q", b"", session=1), Scope.COMMAND, "DESTINATION_REFUSED"),
            (client.send(Q, b"", session=7), Scope.SESSION, "UNKNOWN_SESSION"),
        ]
        for number, (said, _, _) in enumerate(wrong, client.number - len(wrong) + 1):
            await client.say(said)
            await client.until(lambda number=number: any(each.number == number for each in client.errors), "an error")
        assert [(each.scope, each.code) for each in client.errors] == [each[1:] for each in wrong]
        assert [each.session for each in client.errors] == [1, 1, 1, 1, 7]
        assert client.is_open
        client.errors.clear()
        await client.do(client.send(Q, b"m"))
        assert [each.consumer for each in await client.gets(1)] == ["c"], "it is there as before"
        await client.say(b"\0\0\0\1\0\0\0\0\0\0\0\0")
        await client.until(lambda: client.errors, "an error")
        assert client.errors[0].scope is Scope.CONNECTION
        assert not client.is_open

    play(tmp_path, test)


# -- flow and outcomes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acknowledges", [True, False])
def test_credit_is_drained(tmp_path: Path, acknowledges: bool) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        for n in range(3):
            await client.do(client.send(Q, b"%d" % n))
        await client.do(client.subscribe("c", Q, credit=1, acknowledges=acknowledges))
        assert [each.body for each in await client.gets(1)] == [b"0"]
        await client.do(client.credit("c", 10, drain=True))
        number = client.number
        assert [each.body for each in await client.gets(2)] == [b"1", b"2"]
        assert client.told[-1] == number, "the answer is behind all deliveries"
        await client.do(client.send(Q, b"late"))
        assert await client.gets(0) == []
        await client.do(client.credit("c", 1))
        assert [each.body for each in await client.gets(1)] == [b"late"]
        await client.until(lambda: len(served.world.stored("q")) == (4 if acknowledges else 0), "what is left")

    play(tmp_path, test)


@pytest.mark.parametrize("transaction", ["", "t"])
def test_the_four_outcomes(tmp_path: Path, transaction: str) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        await client.do(client.subscribe("c", Q, credit=6, acknowledges=True))
        await client.do(*(client.send(Q, b"%d" % n) for n in range(6)))
        seqs = [each.seq for each in await client.gets(6)]
        if transaction:
            await client.do(client.begin("t"))
        await client.do(client.settle(seqs[0], "c", Outcome.ACCEPTED, transaction=transaction))
        await client.do(client.settle(seqs[2], "c", Outcome.RELEASED, transaction=transaction, first=seqs[1]))
        await client.do(client.settle([seqs[4], seqs[3]], "c", Outcome.FAILED, transaction=transaction))
        await client.do(client.settle(seqs[5], "c", Outcome.REJECTED, transaction=transaction))
        if transaction:
            await client.do(client.commit("t"))
        await client.do(client.credit("c", 9, drain=True))
        found = [(each.body, each.redelivered) for each in await client.gets(4)]
        assert found == [(b"1", 0), (b"2", 0), (b"3", 1), (b"4", 1)]
        assert served.world.stored("DLQ.q") == [b"5"]
        served.world.check()

    play(tmp_path, test)


# -- names -------------------------------------------------------------------------------------------------------------

STRANGE = ("queue://a.*", "queue://a,queue://b")


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_reaches_the_queue_of_that_name_and_no_other(tmp_path: Path, name: str) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        others = ["queue://a", "queue://b", "queue://a.b", "queue://x"]
        await client.do(*(client.subscribe(other, other, acknowledges=False) for other in others))
        await client.do(client.send(name, b"1"), client.send([name, "queue://two"], b"2"))
        assert await client.gets(0) == []
        served.take_over()
        client = await link(served)
        assert served.world.stored(name.removeprefix("queue://")) == [b"1", b"2"]
        await client.do(client.subscribe("c", name, credit=9, acknowledges=True))
        found = await client.gets(2)
        assert {each.destination for each in found} == {name}
        await client.do(client.settle(found[0].seq, "c", Outcome.REJECTED), client.settle(found[1].seq, "c"))
        dead = "queue://DLQ." + name.removeprefix("queue://")
        await client.do(client.subscribe("dead", dead, acknowledges=False))
        [letter] = await client.gets(1)
        assert (letter.body, letter.destination) == (b"1", dead)
        assert set(served.world.broker.state.queues) >= {"queue://two"}
        assert not [each for each in others if served.world.stored(each.removeprefix("queue://"))]
        served.world.check()

    play(tmp_path, test)


def test_patterns_and_several_destinations(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        client = await link(served)
        words = Pattern("queue://", ("a", ANY_WORD, "c")), Pattern("topic://", ("t", ANY_REST))
        await client.do(client.subscribe("c", *words, acknowledges=True))
        to = ["queue://a.b.c", "queue://a.*.c", "queue://a.c", "topic://t", "topic://t.u.v", "topic://u"]
        await client.do(client.send(to, b"m"))
        found = await client.gets(4)
        names = sorted(each.destination for each in found)
        assert names == ["queue://a.*.c", "queue://a.b.c", "topic://t", "topic://t.u.v"]
        assert served.world.stored("a.c") == [b"m"]
        await client.do(client.settle([each.seq for each in found], "c"))
        assert served.world.stored("a.b.c") == []
        await client.say(client.send([Q, "nonsense://x"], b"none of these"))
        assert client.errors.pop().scope is Scope.COMMAND
        assert served.world.stored("q") == []

    play(tmp_path, test)


# -- durable subscriptions across protocols ----------------------------------------------------------------------------


async def publish(client: Link, *bodies: bytes) -> None:
    for body in bodies:
        await client.do(client.send("topic://t", body, properties={"color": "red" if b"r" in body else "green"}))


@pytest.mark.parametrize("selector", ["", "JMSMessageID LIKE 'ID:%' AND color = 'red'"])
@pytest.mark.parametrize("takes_over", [True])
def test_one_that_stomp_began_goes_on_here_and_back(tmp_path: Path, selector: str, takes_over: bool) -> None:
    """It is the same: what it holds stays, its messages come once, and nothing of its meaning belongs to a protocol."""

    async def test(served: Served) -> None:
        chosen = {"selector": selector} if selector else {}
        subscription = {"id": 1, "destination": "/topic/t", "activemq.subscriptionName": "s", "ack": "client", **chosen}
        theirs = await stomp(served, "me")
        await theirs.say("SUBSCRIBE", **subscription)
        await theirs.hang_up()
        producer = await link(served)
        await publish(producer, b"r1", b"g1", b"r2")
        expected = [b"r1", b"r2"] if selector else [b"r1", b"g1", b"r2"]
        known = list(served.world.broker.state.subscriptions)
        if takes_over:
            served.take_over()
        client = await link(served, "me")
        ours = client.subscribe("c", "topic://t", subscription_name="s", acknowledges=True, credit=9, **chosen)
        await client.do(ours)
        found = await client.gets(len(expected))
        assert [each.body for each in found] == expected
        await client.do(client.settle(found[0].seq, "c"))
        await client.hang_up()
        producer = await link(served)
        await publish(producer, b"g2", b"r3")
        if takes_over:
            served.take_over()
        theirs = await stomp(served, "me")
        await theirs.say("SUBSCRIBE", **subscription)
        rest = [*expected[1:], *([b"r3"] if selector else [b"g2", b"r3"])]
        messages = await theirs.messages(len(rest))
        assert [each.rpartition(b"\n\n")[2] for each in messages] == rest
        assert list(served.world.broker.state.subscriptions) == known
        await theirs.say("UNSUBSCRIBE", id=1, **{"activemq.subscriptionName": "s"})
        assert list(served.world.broker.state.subscriptions) == []
        served.world.check()

    play(tmp_path, test)
