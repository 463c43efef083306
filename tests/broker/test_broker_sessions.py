"""Many sessions on one connection: each has its own consumers, they share transactions, and the end of each is its
own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.sessions import connection
from amq.core.message import Message
from amq.protocols.commands import (
    Abort,
    Begin,
    CloseSession,
    Commit,
    Credit,
    Disconnect,
    OpenSession,
    Outcome,
    Scope,
    Send,
    Settle,
    SettleSet,
    Subscribe,
    Unsubscribe,
)
from tests.broker.many import ManyClient
from tests.broker.world import World


@pytest.fixture
def client(world: World) -> ManyClient:
    client = ManyClient(world)
    client.open(1, 2)
    return client


def send(client: ManyClient, body: bytes, to: str = "a", session: int = 0, transaction: str = "") -> str:
    return client.ask(Send(Message(f"queue://{to}", body), None, transaction), session=session)


def test_two_sessions_have_consumers_of_the_same_name(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=1)
    client.consume("c", "b", session=2)
    send(client, b"for 1", "a")
    send(client, b"for 2", "b")
    world.settle()
    assert client.bodies_of("c", 1) == [b"for 1"]
    assert client.bodies_of("c", 2) == [b"for 2"]
    client.settle(b"for 2", session=2, consumer="c")
    world.settle()
    assert world.stored("a") == [b"for 1"]
    assert world.stored("b") == []
    assert client.failures == []
    world.check_at_rest()


def test_the_end_of_one_gives_back_what_it_holds_and_leaves_the_other_alone(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=1, prefetch=2)
    client.consume("c", "b", session=2, prefetch=2)
    for queue in "ab":
        for n in range(2):
            send(client, b"%s%d" % (queue.encode(), n), queue)
    world.settle()
    client.ask(Begin("t1"), session=1)
    client.ask(Begin("t2"), session=2)
    send(client, b"lost", "x", session=1, transaction="t1")
    kept = send(client, b"kept", "x", session=2, transaction="t2")
    client.settle(b"a0", session=1, transaction="t1")
    client.settle(b"b0", session=2, transaction="t2")
    end = client.end(1)
    world.settle()
    assert end in client.confirmed
    client.consume("late", "a", session=2)
    world.settle()
    assert client.bodies_of("late", 2) == [b"a0", b"a1"], "they come back in their old order"
    client.ask(Commit("t2"), session=2)
    world.settle()
    assert kept in client.confirmed
    assert world.stored("x") == [b"kept"]
    assert world.stored("b") == [b"b1"]
    assert client.failures == []
    assert not client.refused
    world.check_at_rest()


def test_a_command_to_a_session_that_is_not_open_fails_with_the_scope_of_a_session(
    world: World, client: ManyClient
) -> None:
    commands = [
        Send(Message("queue://a", b"x")),
        Subscribe("c", "queue://a"),
        Settle(1, "c"),
        SettleSet([1, 2], "c"),
        Begin("t"),
        Commit("t"),
        Abort("t"),
        Credit("c", 1),
        Unsubscribe("c"),
        CloseSession(7),
        Send(Message("queue://a", b"x"), None, "t"),
        Settle(1, "c", None, "t"),
    ]
    for command in commands:
        receipt = client.ask(command, session=7)
        world.settle()
        told = client.failures.pop()
        assert (told.scope, told.session, told.receipt) == (Scope.SESSION, 7, receipt), command
        assert told.code in ("UNKNOWN_SESSION", "UNKNOWN_DELIVERY"), command
        assert not client.failures
    assert not client.refused
    send(client, b"the others go on", session=1)
    world.settle()
    assert world.stored("a") == [b"the others go on"]
    world.check_at_rest()


def test_a_session_that_was_closed_is_not_open(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=1)
    client.end(1)
    receipt = send(client, b"x", session=1)
    world.settle()
    assert [(told.scope, told.receipt) for told in client.failures] == [(Scope.SESSION, receipt)]
    client.open(1)
    client.consume("c", "a", session=1)
    send(client, b"anew", session=1)
    world.settle()
    assert client.bodies_of("c", 1) == [b"anew"]


def test_a_number_is_one_session(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=1)
    receipt = client.ask(OpenSession(1))
    send(client, b"m")
    world.settle()
    assert [(told.scope, told.receipt) for told in client.failures] == [(Scope.COMMAND, receipt)]
    assert client.bodies_of("c", 1) == [b"m"], "the one that is there is as it was"


def test_session_0_stays(world: World, client: ManyClient) -> None:
    receipt = client.ask(CloseSession(0))
    send(client, b"m")
    world.settle()
    assert [told.receipt for told in client.failures] == [receipt]
    assert world.stored("a") == [b"m"]


def test_there_are_so_many_and_no_more(world: World, client: ManyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come and go, again and again."""
    monkeypatch.setattr(connection, "SESSIONS_MAX", 5)
    for number in range(3, 200):
        client.open(number)
        client.consume("c", f"q{number % 3}", session=number)
        if number % 7 == 0:
            client.open(number + 1000, number + 2000, number + 3000)
            world.settle()
            assert {told.code for told in client.failures} == {"SESSIONS_TOO_MANY"}
            assert all(told.scope is Scope.COMMAND for told in client.failures)
            client.failures.clear()
            for opened in [each for each in client.session.sessions if each > 1000]:
                client.end(opened)
        client.end(number)
        world.settle()
        assert set(client.session.sessions) == {0, 1, 2}
        assert client.failures == []
    assert not client.refused
    world.check_at_rest()


def test_two_sessions_share_their_temporary_queues_and_the_end_of_one_deletes_none(
    world: World, client: ManyClient
) -> None:
    name = f"temp-queue://{client.number}.r"
    client.consume("reply", name, session=1)
    client.end(2)
    client.ask(Send(Message(name, b"answer", persistent=False)))
    world.settle()
    assert client.bodies_of("reply", 1) == [b"answer"]
    client.settle(b"answer", session=1)
    client.end(1)
    client.ask(Send(Message(name, b"later", persistent=False)))
    client.consume("reply", name, session=0)
    world.settle()
    assert client.bodies_of("reply", 0) == [b"later"], "it is the connection's"
    assert client.failures == []
    world.lose(client)
    assert not world.broker.topics.queues()


def test_sessions_of_one_client_do_not_steal_each_others_link(world: World) -> None:
    client = ManyClient(world, client_id="c", instance="i")
    client.open(1, 2)
    client.consume("x", "a", session=1)
    client.consume("x", "a", session=2)
    client.end(1)
    send(client, b"m", session=2)
    world.settle()
    assert not client.refused
    assert client.bodies_of("x", 2) == [b"m"]
    newer = ManyClient(world, client_id="c", instance="i")
    newer.consume("x", "a")
    world.settle()
    assert client.codes == ["LINK_STOLEN"], "another connection of the client does"
    assert newer.bodies_of("x") == [b"m"]


def test_a_session_that_waits_for_room_holds_up_no_other(make_world: Callable[..., World]) -> None:
    world = make_world(queue_limit_bytes=500)
    client = ManyClient(world)
    client.open(1, 2)
    client.consume("keeps it read", "b", session=2)
    send(client, b"held", "b")
    world.settle()
    for n in range(20):
        send(client, b"%d" % n + bytes(100), "a", session=1)
    world.settle()
    waiting = len(client.session.sessions[1]._stalled)
    assert waiting
    assert client.reading, "its acknowledgements may make room"
    after = send(client, b"other", "c", session=2)
    world.settle()
    assert after in client.confirmed
    assert world.stored("c") == [b"other"]
    end = client.end(1)
    world.settle()
    assert end not in client.confirmed, "behind what waits in that session"
    client.consume("drain", "a", session=2, acknowledges=False)
    world.settle()
    assert end in client.confirmed
    assert len(client.bodies_of("drain", 2)) == 20
    assert client.failures == []
    world.check_at_rest()


def test_unknown_deliveries_leave_everything_as_it_was(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=1, prefetch=3)
    client.consume("c", "b", session=2)
    for n in range(3):
        send(client, b"%d" % n)
    send(client, b"foreign", "b")
    world.settle()
    seqs = [client.seq(b"%d" % n, 1) for n in range(3)]
    foreign = client.seq(b"foreign", 2)
    wrong = [
        SettleSet([seqs[0], foreign], "c"),
        SettleSet([seqs[0], seqs[0]], "c"),
        SettleSet([1, seqs[1]], "c"),
        Settle(seqs[1], "c", first=foreign),
        Settle(seqs[0], "c", first=seqs[2]),
        Settle(foreign, "c", first=seqs[0]),
        Settle(foreign, "c"),
        Settle(seqs[0], "nobody"),
        SettleSet(seqs, "nobody"),
        Settle(foreign),
    ]
    for outcome in Outcome:
        for command in wrong:
            command.outcome = outcome
            receipt = client.ask(command, session=1)
            world.settle()
            assert [told[:2] + told[4:] for told in client.failures] == [("UNKNOWN_DELIVERY", Scope.COMMAND, receipt)]
            client.failures.clear()
            assert list(client.session.sessions[1]._subscriptions["c"].unacked) == seqs, command
    client.settle(b"0", b"1", b"2", session=1)
    world.settle()
    assert world.stored("a") == []
    assert world.stored("b") == [b"foreign"]
    world.check_at_rest()


def test_a_disconnect_comes_behind_all_that_waits_in_any_session(make_world: Callable[..., World]) -> None:
    """Its answer says that all before it is done."""
    world = make_world(queue_limit_bytes=500)
    client = ManyClient(world)
    client.open(1, 2)
    client.consume("keeps it read", "b", session=2)
    send(client, b"held", "b")
    world.settle()
    receipts = []
    for n in range(10):
        for session, queue in ((1, "a"), (2, "c")):
            receipts.append(send(client, b"%d" % n + bytes(100), queue, session=session))
    end = client.ask(Disconnect())
    world.settle()
    assert end not in client.confirmed
    for queue in "ac":
        other = ManyClient(world)
        other.consume("c", queue, acknowledges=False)
        world.settle()
        assert len(other.bodies) == 10
    assert set(receipts) < set(client.confirmed)
    assert client.confirmed[-1] == end
    assert client.refused
    assert client.errors == client.failures == []
    world.check_at_rest()


# -- transactions of several sessions ----------------------------------------------------------------------------------


def test_all_sessions_work_in_one_transaction(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=2)
    send(client, b"order", "a")
    world.settle()
    client.ask(Begin("t"), session=1)
    twice = client.ask(Begin("t"), session=2)
    send(client, b"1", "x", session=1, transaction="t")
    send(client, b"2", "x", session=2, transaction="t")
    client.settle(b"order", session=2, transaction="t")
    client.end(2)
    world.settle()
    assert [told.receipt for told in client.failures] == [twice]
    assert world.stored("x") == []
    client.ask(Commit("t"), session=0)
    world.settle()
    assert world.stored("x") == [b"1", b"2"]
    assert world.stored("a") == [], "its consumer has ended, what it did in the transaction has not"
    world.check_at_rest()


def test_a_transaction_ends_with_the_session_that_began_it(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=2)
    send(client, b"order", "a")
    world.settle()
    client.ask(Begin("t"), session=1)
    client.settle(b"order", session=2, transaction="t")
    lost = send(client, b"lost", "x", session=2, transaction="t")
    client.end(1)
    late = client.ask(Commit("t"), session=2)
    world.settle()
    assert lost in client.confirmed
    assert [(told.code, told.receipt) for told in client.failures] == [("UNKNOWN_TRANSACTION", late)]
    assert world.stored("x") == []
    assert [(each.body, each.redelivered) for each in client.given] == [(b"order", 0), (b"order", 1)]
    world.check_at_rest()


def test_an_idle_transaction_is_told_once(world: World, client: ManyClient) -> None:
    client.ask(Begin("t"), session=1)
    world.clock.advance(world.config.transaction_timeout_s + 1)
    client.session.expire_transactions(world.clock.monotonic())
    client.session.expire_transactions(world.clock.monotonic())
    world.settle()
    assert [(told.code, told.session) for told in client.failures] == [("TRANSACTION_TIMEOUT", 1)]


def test_a_failed_send_of_any_session_spoils_it(world: World, client: ManyClient) -> None:
    client.ask(Begin("t"), session=1)
    send(client, b"lost", "x", session=1, transaction="t")
    client.ask(Send(Message("nonsense://x", b""), None, "t"), session=2)
    late = client.ask(Commit("t"), session=1)
    world.settle()
    assert [told.code for told in client.failures] == ["DESTINATION_REFUSED", "UNKNOWN_TRANSACTION"]
    assert client.failures[1].receipt == late
    assert world.stored("x") == []


def test_what_comes_behind_a_commit_that_waits_is_no_part_of_it(make_world: Callable[..., World]) -> None:
    """It waits for room, while another session goes on."""
    world = make_world(queue_limit_bytes=500)
    client = ManyClient(world)
    client.open(1, 2)
    client.consume("keeps it read", "b", session=2)
    send(client, b"held", "b")
    for n in range(5):
        send(client, b"%d" % n + bytes(100), "a")
        world.settle()
        if client.session.sessions[0].is_held_up:
            break
    client.ask(Begin("t"), session=1)
    send(client, b"part", "a", session=1, transaction="t")
    commit = client.ask(Commit("t"), session=1)
    world.settle()
    assert client.session.sessions[1].is_held_up
    late = [
        send(client, b"late", "a", session=2, transaction="t"),
        client.ask(Abort("t"), session=2),
        client.ask(Commit("t"), session=2),
    ]
    world.settle()
    assert [(told.code, told.receipt) for told in client.failures] == [("UNKNOWN_TRANSACTION", each) for each in late]
    drain = ManyClient(world)
    drain.consume("c", "a", acknowledges=False)
    world.settle()
    assert commit in client.confirmed
    assert drain.bodies[-1] == b"part"
    assert b"late" not in drain.bodies
    world.check_at_rest()


def test_a_commit_that_waits_in_a_session_that_ends_never_takes_place(make_world: Callable[..., World]) -> None:
    world = make_world(queue_limit_bytes=500)
    client = ManyClient(world)
    client.open(1, 2)
    client.consume("keeps it read", "b")
    send(client, b"held", "b")
    for n in range(5):
        send(client, b"%d" % n + bytes(100), "a", session=1)
        world.settle()
    client.ask(Begin("t"))
    send(client, b"part", "a", transaction="t")
    client.ask(Commit("t"), session=2)
    world.settle()
    assert client.session.sessions[2].is_held_up
    client.session.close_session(CloseSession(2))  # by another session, past what waits in it
    world.settle()
    assert not client.transactions
    world.check()
