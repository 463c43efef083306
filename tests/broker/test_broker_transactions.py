"""Transactions: everything together or nothing, whatever happens, and the outcome can be asked for later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.core.ownership import owned
from amq.journal.inspect import inspect
from amq.journal.liveness import Liveness
from amq.protocols.commands import Begin, Commit
from amq.protocols.stomp.subscribing import ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.world import Client, World


def consumer(world: World, *queues: str, ack: str = ACK_INDIVIDUAL) -> Client:
    client = world.connect()
    for queue in queues or ("a",):
        client.subscribe(queue, ack)
    world.settle()
    return client


def test_commit_moves_messages_between_queues_at_once(world: World) -> None:
    world.send(b"in1", b"in2")
    client = consumer(world)
    client.begin()
    client.ack(b"in1", "t")
    for body, queue in ((b"out1", "b"), (b"out2", "c")):
        client.send(body, queue, transaction="t")
    world.settle()
    assert [world.stored(queue) for queue in "abc"] == [[b"in1", b"in2"], [], []]
    receipt = client.commit()
    world.turn()
    assert receipt not in client.confirmed
    world.settle()
    assert receipt in client.confirmed
    for _ in range(2):
        assert [world.stored(queue) for queue in "abc"] == [[b"in2"], [b"out1"], [b"out2"]]
        world.check_at_rest()
        world.crash_and_recover()


@pytest.mark.parametrize("persistent", [True, False])
def test_nothing_of_a_transaction_is_seen_before_it_commits(world: World, persistent: bool) -> None:
    client, reader = consumer(world, "x"), consumer(world, "b")
    client.begin()
    client.send(b"x", "b", transaction="t", persistent=persistent)
    world.settle()
    assert reader.bodies == []
    client.commit()
    world.settle()
    assert reader.bodies == [b"x"]


@pytest.mark.parametrize("how", ["abort", "lose", "disconnect", "crash"])
@pytest.mark.parametrize("ack", [ACK_CLIENT, ACK_INDIVIDUAL])
def test_rolled_back_it_never_was(world: World, how: str, ack: str) -> None:
    world.send(b"1", b"2", b"3")
    client = consumer(world, ack=ack)
    client.begin()
    client.send(b"x", "b", transaction="t")
    client.send(b"y", "b", transaction="t", persistent=False)
    client.ack(b"2", "t")
    if how == "abort":
        client.abort()
    elif how == "crash":
        world.crash_and_recover()
    else:
        getattr(client, how)()
    world.settle()
    assert (world.stored("a"), world.stored("b")) == ([b"1", b"2", b"3"], [])
    world.check_at_rest()
    if how == "abort":
        assert client.bodies[3:] == ([b"2"] if ack == ACK_INDIVIDUAL else [b"1", b"2"])
        assert client.deliveries[-1].redelivered == 1
        world.lose(client)
    assert consumer(world).bodies == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ack", [ACK_CLIENT, ACK_INDIVIDUAL])
@pytest.mark.parametrize("turns", [0, 1])
def test_a_client_acknowledges_again_right_after_it_has_aborted(world: World, ack: str, turns: int) -> None:
    """Some clients show the message to their program again by themselves. Whether the next frame comes in the same read
    as the ABORT makes no difference."""
    world.send(b"1")
    client = consumer(world, ack=ack)
    client.begin()
    client.ack(b"1", "t")
    delivery = client.delivery(b"1")
    client.abort()
    for _ in range(turns):
        world.turn()
    client.do(Ack(delivery.seq, delivery.subscription, world.next_receipt()))
    world.settle()
    assert client.errors == []
    assert world.stored() == []
    assert client.bodies == [b"1", b"1"], "it came again before"
    world.check_at_rest()


def test_what_is_paused_does_not_come_again_before_it_is_resumed(world: World) -> None:
    world.send(b"1")
    client = consumer(world)
    client.begin()
    client.ack(b"1", "t")
    world.broker.pause("queue://a", True)
    client.abort()
    world.settle()
    assert client.bodies == [b"1"]
    world.broker.pause("queue://a", False)
    world.settle()
    assert client.bodies == [b"1", b"1"]


def test_what_a_transaction_took_is_not_given_to_others_until_it_ends(world: World) -> None:
    world.send(b"1")
    client = consumer(world)
    client.begin()
    client.ack(b"1", "t")
    client.unsubscribe()
    world.settle()
    other = consumer(world)
    assert other.bodies == []
    client.abort()
    world.settle()
    assert other.bodies == [b"1"]


def test_transactions_of_one_connection_are_apart(world: World) -> None:
    client = world.connect()
    client.begin("s")
    client.begin("t")
    client.send(b"s", transaction="s")
    client.send(b"t", transaction="t")
    client.abort("s")
    client.commit("t")
    world.settle()
    assert world.stored() == [b"t"]
    assert client.errors == []


def test_order_of_messages_is_that_of_commits(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.begin()
    first.send(b"1", transaction="t")
    second.send(b"2")
    first.send(b"3", transaction="t")
    first.commit()
    second.send(b"4")
    world.settle()
    assert consumer(world).bodies == [b"2", b"1", b"3", b"4"]


def test_parts_that_are_not_persistent(world: World) -> None:
    world.send(b"p")
    world.send(b"n", persistent=False)
    client = consumer(world)
    client.begin()
    client.ack(b"p", "t")
    client.ack(b"n", "t")
    client.send(b"P", "b", transaction="t")
    client.send(b"N", "b", transaction="t", persistent=False)
    client.commit()
    world.settle()
    assert (world.stored("a"), sorted(world.stored("b"))) == ([], [b"N", b"P"])
    world.check_at_rest()
    world.crash_and_recover()
    assert (world.stored("a"), world.stored("b")) == ([], [b"P"])


@pytest.mark.parametrize("persistent", [True, False])
def test_a_transaction_without_persistent_parts_needs_no_journal(world: World, persistent: bool) -> None:
    client = world.connect()
    client.begin()
    client.send(b"N", transaction="t", persistent=persistent)
    receipt = client.commit()
    world.turn()
    assert (receipt in client.confirmed) is not persistent
    world.settle()
    assert receipt in client.confirmed


def test_an_empty_transaction_commits(world: World) -> None:
    client = world.connect()
    client.begin()
    receipts = [client.commit(), client.begin(), client.commit(outcome_id="o")]
    world.settle()
    assert set(receipts) <= set(client.confirmed)
    assert list(world.broker.state.outcomes) == ["o"]


def test_refusals_take_effect_with_the_commit(world: World) -> None:
    world.send(b"1", b"2")
    client = consumer(world)
    client.begin()
    client.nack(b"1", "t")
    client.ack(b"2", "t")
    world.settle()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([b"1", b"2"], [])
    client.commit()
    world.settle()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([], [b"1"])
    world.check_at_rest()


def test_a_refusal_rolled_back_is_delivered_again(world: World) -> None:
    world.send(b"1")
    client = consumer(world)
    client.begin()
    client.nack(b"1", "t")
    client.abort()
    world.settle()
    assert (client.bodies, world.stored("DLQ.a")) == ([b"1", b"1"], [])


def test_rollbacks_count_as_failures(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=1)
    world.send(b"1")
    client = consumer(world)
    for _ in range(2):
        client.begin()
        client.ack(b"1", "t")
        client.abort()
        world.settle()
    assert (world.stored("a"), world.stored("DLQ.a")) == ([], [b"1"])
    world.check_at_rest()


@pytest.mark.parametrize("torn", [0.0, 0.3, 0.9, None])
def test_a_crash_while_it_commits_gives_all_or_nothing(world: World, torn: float | None) -> None:
    world.send(b"in")
    client = consumer(world)
    client.begin()
    client.ack(b"in", "t")
    client.send(b"out1", "b", transaction="t")
    client.send(b"out2", "c", transaction="t")
    client.commit(outcome_id="o")
    world.turn()
    world.crash_and_recover(jobs=1, torn=torn)
    whole = torn is None
    assert [world.stored(queue) for queue in "abc"] == ([[], [b"out1"], [b"out2"]] if whole else [[b"in"], [], []])
    assert list(world.broker.state.outcomes) == (["o"] if whole else [])
    world.check_at_rest()


def test_acknowledging_in_an_unknown_transaction_loses_nothing(world: World) -> None:
    world.send(b"1", b"2")
    for command in ("ack", "nack"):
        client = consumer(world)
        getattr(client, command)(b"1", "nobody")
        world.settle()
        assert client.codes == ["UNKNOWN_TRANSACTION"]
        world.check_at_rest()
    assert consumer(world).bodies == [b"1", b"2"]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_one_that_stays_open_too_long_is_rolled_back(make_world: Callable[..., World]) -> None:
    world = make_world(transaction_timeout_s=10.0)
    world.send(b"1")
    client = consumer(world)
    client.begin()
    client.ack(b"1", "t")
    client.send(b"x", "b", transaction="t")
    world.clock.advance(10.0)
    client.session.expire_transactions(world.clock.monotonic())
    world.settle()
    assert client.codes == []
    world.clock.advance(0.1)
    client.session.expire_transactions(world.clock.monotonic())
    world.settle()
    assert client.codes == ["TRANSACTION_TIMEOUT"]
    assert not client.connected
    assert (world.stored("a"), world.stored("b")) == ([b"1"], [])
    world.check_at_rest()


def test_one_that_grows_too_large_is_rolled_back(make_world: Callable[..., World]) -> None:
    world = make_world(max_transaction_size_bytes=5000)
    client = world.connect()
    client.begin()
    for _ in range(2):
        client.send(bytes(1500), transaction="t")
    client.send(bytes(1500), transaction="t")
    world.settle()
    assert client.codes == ["TRANSACTION_TOO_LARGE"]
    assert not client.connected
    assert world.stored() == []
    world.check_at_rest()


# -- the outcome, asked for later --------------------------------------------------------------------------------------


def begun(world: World, outcome_id: str = "o", commit: bool = True) -> Client:
    client = world.connect()
    client.begin()
    client.send(b"x", transaction="t")
    if commit:
        client.commit(outcome_id=outcome_id)
    return client


@pytest.mark.parametrize("crash", [True, False])
def test_a_commit_that_took_place_is_confirmed_again(world: World, crash: bool) -> None:
    client = begun(world)
    world.settle()
    if crash:
        world.crash_and_recover()
    else:
        client.lose()
    other = world.connect()
    for _ in range(2):
        receipt = other.commit("t", "o")
        world.settle()
        assert receipt in other.confirmed
    assert world.stored() == [b"x"]


def test_a_commit_on_its_way_is_confirmed_when_it_is_durable(world: World) -> None:
    client = begun(world)
    world.turn()
    client.lose()
    other = world.connect()
    receipt = other.commit("t", "o")
    world.turn()
    assert other.confirmed == []
    world.settle()
    assert other.confirmed == [receipt]


def test_a_commit_that_did_not_take_place_never_will(world: World) -> None:
    """The old connection is only half dead: its COMMIT arrives after the question was answered."""
    client = begun(world, commit=False)
    other = world.connect()
    other.commit("t", "o")
    world.settle()
    assert other.codes == ["TRANSACTION_ROLLED_BACK"]
    late = client.commit(outcome_id="o")
    world.settle()
    assert client.errors == [("TRANSACTION_ROLLED_BACK", late)]
    assert world.stored() == []
    world.check_at_rest()


def test_a_commit_declared_rolled_back_may_be_made_under_its_name_by_another_transaction(world: World) -> None:
    """So work that is named for ever can be run again."""
    old = begun(world, commit=False)
    world.connect().commit("t", "o")
    client = world.connect()
    client.begin("again")
    client.send(b"y", transaction="again")
    receipt = client.commit("again", "o")
    world.settle()
    assert receipt in client.confirmed
    late = old.commit(outcome_id="o")
    world.settle()
    assert old.errors == [("TRANSACTION_ROLLED_BACK", late)]
    assert world.stored() == [b"y"]
    world.check_at_rest()


@pytest.mark.parametrize("crash", [True, False])
def test_a_second_commit_of_a_name_is_rolled_back(world: World, crash: bool) -> None:
    begun(world)
    world.settle()
    if crash:
        world.crash_and_recover()
    client = begun(world)
    world.settle()
    assert client.codes == ["ALREADY_COMMITTED"]
    assert world.stored() == [b"x"]
    world.check_at_rest()


def test_a_second_commit_is_answered_when_the_first_is_durable(world: World) -> None:
    """It was rolled back at once, and its client not told that the first took place."""
    begun(world)
    world.turn()
    second = begun(world)
    world.turn()
    assert second.codes == []
    world.settle()
    assert second.codes == ["ALREADY_COMMITTED"]
    assert world.stored() == [b"x"]
    world.check_at_rest()


@pytest.mark.parametrize("policy", ["fail", "block"])
def test_a_second_commit_needs_no_room(make_world: Callable[..., World], policy: str) -> None:
    """It was refused, or waited, because of the very messages that the first one had stored."""
    world = make_world(queue_limit_bytes=1, queue_limit_policy=policy)
    begun(world)
    world.settle()
    second = begun(world)
    world.settle()
    assert second.codes == ["ALREADY_COMMITTED"]
    assert world.stored() == [b"x"]


def test_of_a_commit_on_its_way_nobody_is_told_that_it_took_place(world: World) -> None:
    """It may yet be lost, and then the second one must not believe that all is done."""
    begun(world)
    world.turn()
    second = begun(world)
    world.turn()
    assert second.codes == []
    world.crash_and_recover()
    third = begun(world)
    world.settle()
    assert third.codes == []
    assert world.stored() == [b"x"]


def test_a_commit_lost_in_the_crash_is_declared_rolled_back(world: World) -> None:
    begun(world)
    world.turn()
    world.crash_and_recover()
    other = world.connect()
    other.commit("t", "o")
    world.settle()
    assert other.codes == ["TRANSACTION_ROLLED_BACK"]
    assert world.stored() == []


def test_the_outcome_is_asked_for_only_where_no_such_transaction_is_open(world: World) -> None:
    begun(world)
    world.settle()
    other = world.connect()
    other.do(Begin("t"), Commit("t", "r", "other"))
    world.settle()
    assert other.confirmed == ["r"]
    assert list(world.broker.state.outcomes) == ["o", "other"]


def test_outcomes_are_bounded_oldest_first(make_world: Callable[..., World]) -> None:
    world = make_world(outcome_window=3)
    for number in range(5):
        client = begun(world, f"o{number}")
        world.settle()
        client.lose()
    assert list(world.broker.state.outcomes) == ["o2", "o3", "o4"]
    world.crash_and_recover()
    assert list(world.broker.state.outcomes) == ["o2", "o3", "o4"]


def test_outcomes_of_one_user_leave_those_of_others(make_world: Callable[..., World]) -> None:
    """Also in a checkpoint, and in what the tools say."""
    world = make_world(outcome_window=3, checkpoint_distance_bytes=1)
    for user, count in (("ann", 1), ("eve", 10), ("bob", 2), ("eve", 10)):
        for number in range(count):
            client = world.connect(user=user)
            client.begin()
            client.commit(outcome_id=str(number))
            world.settle()
            client.lose()
    expected = {owned("ann", "0"), owned("bob", "0"), owned("bob", "1"), *(owned("eve", str(n)) for n in (7, 8, 9))}
    liveness = inspect(world.log, lambda: (world.epoch, world.sealed), lambda: Liveness(20_000, 3))[1]
    assert set(liveness.outcomes) == set(world.broker.state.outcomes) == expected
    world.check_at_rest()
    world.crash_and_recover()
    assert set(world.broker.state.outcomes) == expected
    asker = world.connect(user="ann")
    receipt = asker.commit("t", "0")
    world.settle()
    assert receipt in asker.confirmed


def test_refused_outcomes_are_bounded(make_world: Callable[..., World]) -> None:
    world = make_world(outcome_window=3)
    world.connect(user="ann").commit("t", "o")
    for number in range(5):
        world.connect(user="bob").commit("t", f"o{number}")
    world.settle()
    found = list(world.broker.outcomes_refused)
    assert found == [("ann", ("o", "t")), *(("bob", (f"o{number}", "t")) for number in (2, 3, 4))]


def test_outcomes_outlive_their_segments_and_keep_their_age(make_world: Callable[..., World]) -> None:
    world = make_world(outcome_window=6, journal_segment_size_bytes=1024)
    client = world.connect()
    for number in range(40):
        client.begin()
        client.send(b"x" * 100, transaction="t")
        client.commit(outcome_id=f"o{number}")
        world.settle()
        drain = consumer(world)
        for delivery in list(drain.deliveries):
            drain.do(Ack(delivery.seq, "a"))
        world.lose(drain)
        expected = [f"o{n}" for n in range(max(0, number - 5), number + 1)]
        assert list(world.broker.state.outcomes) == expected
        assert list(dict(world.replayed()["outcomes"])) == expected
    assert len(world.segments()) < 5
    world.crash_and_recover()
    assert list(world.broker.state.outcomes) == expected
    world.check_at_rest()
