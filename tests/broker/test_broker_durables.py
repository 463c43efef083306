"""Durable subscriptions: nothing that was sent while they were there is missed, and nothing comes twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.core.errors import CommandError, ProtocolError
from amq.journal.records import Subscribed
from amq.protocols.commands import Finish, Prepare, Unsubscribe
from amq.protocols.stomp.destination import full_name as wire_to_full
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.test_broker_disk import fill_disk, room_again
from tests.broker.world import Client, World
from tests.sampling import examples

TOPIC = "topic://t"


def subscriber(
    world: World, client_id: str = "c", name: str = "s", topic: str = TOPIC, user: str = "", **fields: Any
) -> Client:
    return world.consumer(
        topic, id="d", subscription_name=name, **{"prefetch": 1000, **fields}, client_id=client_id, user=user
    )


def send(world: World, body: bytes, topic: str = TOPIC, **fields: Any) -> Client:
    return world.send(body, queue=topic, **fields)


def leave(world: World, client: Client, ack: bool = True) -> None:
    for delivery in client.deliveries if ack else ():
        client.ack(delivery.body)
    world.settle()
    world.lose(client)


@pytest.mark.parametrize(
    ("code", "options"), [("OPTION_INVALID", {"priority": "1000"}), ("NOT_SUPPORTED", {"credit": "0"})]
)
def test_a_subscribe_that_is_refused_ends_and_begins_none(world: World, code: str, options: dict[str, str]) -> None:
    leave(world, subscriber(world))
    send(world, b"1")
    for name in ("s", "new"):
        asked = {"selector": "x = 1", "ack": ACK_AUTO, "options": options}
        assert subscriber(world, name=name, **asked).codes == [code]
    world.check_at_rest()
    assert len(world.broker.state.subscriptions) == 1
    assert subscriber(world).bodies == [b"1"]


@pytest.mark.parametrize("crash", [True, False])
def test_one_that_ends_while_a_transaction_is_prepared_leaves_nothing(world: World, crash: bool) -> None:
    client = subscriber(world)
    send(world, b"1")
    client.begin()
    client.ack(b"1", "t")
    client.do(Prepare("t", "x"), Unsubscribe("d", "u", "s"))
    world.settle()
    assert "u" in client.confirmed
    if crash:
        world.crash_and_recover()
    world.connect().do(Finish("x", False))
    world.settle_and_check()
    assert world.broker.state.stored == 0


@pytest.mark.parametrize("crash", [True, False])
def test_what_is_sent_while_it_is_away_waits(world: World, crash: bool) -> None:
    send(world, b"before")
    for client_id in "cd":
        leave(world, subscriber(world, client_id))
    assert len(send(world, b"1", properties={"k": "v"}).confirmed) == 1
    if crash:
        world.check_at_rest()
        world.crash_and_recover()
    send(world, b"2")
    world.check_at_rest()
    for client_id in "cd":
        client = subscriber(world, client_id)
        assert client.bodies == [b"1", b"2"]
        message = client.deliveries[0].message
        assert (message.destination, message.properties) == (TOPIC, {"k": "v"})
        leave(world, client)
    world.check_at_rest()
    assert subscriber(world).bodies == []
    assert sum(segment.live_bytes for segment in world.journal.segments) == 0


def test_what_is_resent_is_confirmed_with_what_was_sent_first(world: World) -> None:
    """It was confirmed at once, and went with a master that died before the first was on the disk."""
    leave(world, subscriber(world))
    send(world, b"0")
    first = world.connect()
    first.send(b"1", TOPIC, duplicate_id="id")
    world.turn()
    first.lose()
    second = world.connect()
    receipt = second.send(b"1", TOPIC, duplicate_id="id")
    world.turn()
    assert second.confirmed == []
    world.settle()
    assert second.confirmed == [receipt]
    assert subscriber(world).bodies == [b"0", b"1"]


def test_what_was_sent_before_it_began_comes_when_it_is_sent_again(world: World) -> None:
    """Behind newer ones of its producer, whose first connection died in between (simulation, seed 81000419)."""
    leave(world, subscriber(world, "old"))
    producer = world.send(b"1", queue=TOPIC, duplicate_id="1")
    leave(world, subscriber(world, "new"))
    producer.send(b"2", TOPIC, duplicate_id="2")
    world.settle()
    again = world.connect()
    for body in (b"1", b"2"):
        again.send(body, TOPIC, duplicate_id=body.decode())
    world.settle()
    assert len(again.confirmed) == 2
    assert subscriber(world, "old").bodies == [b"1", b"2"]
    assert subscriber(world, "new").bodies == [b"2", b"1"]


@pytest.mark.parametrize("stored", [True, False])
def test_a_transaction_that_sends_what_is_just_being_stored_is_rolled_back(world: World, stored: bool) -> None:
    """It was confirmed without its copy, and the one on its way then met a full disk."""
    leave(world, subscriber(world))
    send(world, b"0", "a")
    first, client = world.connect(), world.connect()
    client.subscribe("a")
    world.settle()
    first.send(b"1", TOPIC, duplicate_id="id")
    world.turn()
    if not stored:
        fill_disk(world)
    client.begin()
    client.ack(b"0", "t")
    for body, topic, id in ((b"2", TOPIC, "other"), (b"1", TOPIC, "id"), (b"1", "topic://u", "id")):
        client.send(body, topic, transaction="t", duplicate_id=id)
    receipt = client.commit()
    world.settle()
    assert first.codes == ([] if stored else ["STORE_FULL"])
    assert client.errors == [("TRANSACTION_ROLLED_BACK", receipt)]
    if not stored:
        room_again(world)
    assert world.stored("a") == [b"0"]
    world.check_at_rest()
    again = world.connect()
    again.begin()
    again.send(b"1", TOPIC, transaction="t", duplicate_id="id")
    again.commit()
    world.settle()
    assert again.codes == []
    world.crash_and_recover()
    assert subscriber(world).bodies == [b"1"]


def test_one_body_for_all(world: World) -> None:
    for i in range(20):
        leave(world, subscriber(world, f"c{i}"))
    send(world, bytes(5000))
    assert sum(segment.live_bytes for segment in world.journal.segments) < 5000 + 20 * 8 + 100
    assert world.broker.memory.taken_bytes < 5000 + 20 * 700
    world.check_at_rest()


def test_what_is_not_persistent_waits_in_memory(world: World) -> None:
    leave(world, subscriber(world))
    send(world, b"1", persistent=False)
    send(world, b"2")
    client = subscriber(world)
    assert client.bodies == [b"1", b"2"]
    world.lose(client)
    world.check_at_rest()
    world.crash_and_recover()
    assert subscriber(world).bodies == [b"2"]


def test_selector_wildcard_and_no_local(world: World) -> None:
    red = subscriber(world, topic="topic://t.*", selector="color = 'red'", options={"noLocal": "true"})
    red.send(b"own", "topic://t.a", properties={"color": "red"})
    world.settle()
    leave(world, red)
    for i, (topic, color) in enumerate([("t.a", "red"), ("t.b", "blue"), ("t.b", "red"), ("t", "red"), ("u", "red")]):
        send(world, b"%d" % i, "topic://" + topic, properties={"color": color})
    world.crash_and_recover()
    send(world, b"5", "topic://t.c", properties={"color": "red"})
    client = subscriber(world, topic="topic://t.*", selector="color = 'red'", options={"noLocal": "true"})
    assert client.bodies == [b"0", b"2", b"5"]
    assert client.deliveries[1].message.destination == "topic://t.b"
    world.check_at_rest()


@pytest.mark.parametrize("commits", [True, False])
def test_one_that_ends_while_a_transaction_holds_its_messages(world: World, commits: bool) -> None:
    """They go with it, whatever becomes of the transaction; what else is in that takes place."""
    client = subscriber(world)
    for body in (b"1", b"2"):
        send(world, body)
    client.begin()
    client.ack(b"1", "t")
    client.send(b"answer", "a", transaction="t")
    client.unsubscribe("d", "s")
    world.settle()
    (client.commit if commits else client.abort)("t")
    world.settle()
    assert not client.errors
    world.lose(client)
    world.check_at_rest()
    for _ in range(2):
        assert not world.broker.state.subscriptions
        assert world.stored("a") == ([b"answer"] if commits else [])
        assert sum(queue.stored for queue in world.broker.state.queues.values()) == int(commits)
        world.crash_and_recover()
    assert subscriber(world).bodies == []
    world.check_at_rest()


@pytest.mark.parametrize("change", [{"selector": "k = 'v'"}, {"topic": "topic://u"}])
def test_another_topic_or_selector_is_another_subscription(world: World, change: dict[str, str]) -> None:
    leave(world, subscriber(world))
    send(world, b"1", properties={"k": "v"})
    client = world.connect()
    client.send(b"on its way", TOPIC, properties={"k": "v"})
    other = subscriber(world, **change)
    send(world, b"2", change.get("topic", TOPIC), properties={"k": "v"})
    assert other.bodies == [b"2"]
    leave(world, other, ack=False)
    world.check_at_rest()
    world.crash_and_recover()
    assert len(world.broker.state.subscriptions) == 1
    assert subscriber(world, **change).bodies == [b"2"]
    world.check_at_rest()


def test_a_crash_between_the_new_one_and_the_end_of_the_old_one(world: World) -> None:
    leave(world, subscriber(world))
    send(world, b"1")
    client = world.connect("c")
    client.subscribe(TOPIC, id="d", subscription_name="s", selector="k = 'v'")
    world.turn()
    world.crash_and_recover(jobs=1)
    assert subscriber(world, selector="k = 'v'").bodies == []
    world.settle()
    assert len(world.broker.state.subscriptions) == 1
    world.check_at_rest()


def test_unsubscribe(world: World) -> None:
    leave(world, subscriber(world))
    send(world, b"1")
    client = subscriber(world)
    receipt = client.unsubscribe("d", "s")
    world.settle()
    assert receipt in client.confirmed
    send(world, b"2")
    world.check_at_rest()
    assert sum(segment.live for segment in world.journal.segments) == 0
    world.crash_and_recover()
    assert not world.broker.state.subscriptions
    assert subscriber(world).bodies == []
    other = world.connect("c")
    other.unsubscribe("", "s")
    world.settle()
    assert other.codes == ["SUBSCRIPTION_IN_USE"]
    other = world.connect("x")
    other.unsubscribe("", "s")
    world.settle()
    assert other.codes == ["UNKNOWN_SUBSCRIPTION"]


def test_one_consumer_unless_it_is_shared(world: World) -> None:
    subscriber(world)
    assert subscriber(world).codes == ["SUBSCRIPTION_IN_USE"]
    shared = [subscriber(world, "", "x") for _ in range(2)]
    shared += [subscriber(world, "c", "y", options={"shared": "true"}) for _ in range(2)]
    for i in range(4):
        send(world, b"%d" % i)
    for pair in (shared[:2], shared[2:]):
        assert sorted(pair[0].bodies + pair[1].bodies) == [b"0", b"1", b"2", b"3"]
        assert len(pair[0].bodies) == 2
    world.check_at_rest()


def test_in_a_transaction_and_sent_again(world: World) -> None:
    leave(world, subscriber(world))
    producer = world.connect()
    for end in (producer.abort, producer.commit):
        producer.begin()
        producer.send(b"x", TOPIC, transaction="t", duplicate_id="1")
        producer.send(b"q", "a", transaction="t")
        end()
        world.settle_and_check()
    send(world, b"x", duplicate_id="1")
    world.crash_and_recover()
    send(world, b"x", duplicate_id="1")
    assert world.stored("a") == [b"q"]
    assert subscriber(world).bodies == [b"x"]


def test_dead_letters_are_of_the_topic(make_world: Callable[..., World]) -> None:
    world = make_world(maximum_redeliveries=0)
    send_to = subscriber(world)
    send(world, b"x")
    world.lose(send_to)
    assert world.stored("DLQ.t") == [b"x"]
    world.check_at_rest()


def test_beside_composites_and_virtual_topics(world: World) -> None:
    reader = world.connect()
    reader.subscribe("Consumer.A.VirtualTopic.o", ACK_AUTO)
    leave(world, subscriber(world, topic="topic://VirtualTopic.o"))
    leave(world, subscriber(world, "d"))
    send(world, b"1", "topic://VirtualTopic.o")
    send(world, b"2", "queue://a,topic://t")
    world.check_at_rest()
    world.crash_and_recover()
    assert reader.bodies == [b"1"]
    assert world.stored("a") == [b"2"]
    assert subscriber(world, topic="topic://VirtualTopic.o").bodies == [b"1"]
    client = subscriber(world, "d")
    assert client.bodies == [b"2"]
    message = client.deliveries[0].message
    assert (message.destination, message.properties) == (TOPIC, {"original-destination": "/queue/a,/topic/t"})


def test_nobody_addresses_its_queue(world: World) -> None:
    subscriber(world)
    (name,) = world.broker.state.subscriptions
    assert wire_to_full(name, "1.", strict=False).startswith("queue://"), "no name that a client writes is one of these"
    with pytest.raises(ProtocolError):
        wire_to_full(name, "1.")
    client = world.consumer(name)
    assert client.codes == ["DESTINATION_REFUSED"]
    client = world.connect()
    client.subscribe("queue://>", id="all")
    send(world, b"x")
    assert client.bodies == []
    assert subscriber(world, "c", "q", "queue://a").codes == ["NOT_SUPPORTED"]


# -- a subscription that changes in place ------------------------------------------------------------------------------


def session(world: World, *topics: str, **more: Any) -> Subscribed:
    """The one of client c has these topics from now on, and further facts."""
    (record,) = world.broker.durables.records()
    definition = {key: record.definition[key] for key in list(record.definition)[:6]}
    return world.broker.durables.change(record, {**definition, "topics": list(topics), **more})


def waiting(world: World) -> list[bytes]:
    (record,) = world.broker.state.subscriptions.values()
    return [message.body for message in world.everything(world.broker.state.queue(record.queue)).values()]


@pytest.mark.parametrize("crash", [False, True])
def test_other_topics_and_what_waits_stays(world: World, crash: bool) -> None:
    leave(world, subscriber(world))
    send(world, b"1")
    before = set(world.broker.state.subscriptions)
    options = {"topic://b": {"qos": 1}, "topic://c.*": {}}
    session(world, "topic://b", "topic://c.*", options=options, expires_s=60, user="u", exact=[], unknown=True)
    send(world, b"2")
    send(world, b"3", "topic://b")
    if crash:
        world.crash_and_recover()
    send(world, b"4", "topic://c.d")
    send(world, b"5")
    assert waiting(world) == [b"1", b"3", b"4"]
    (record,) = world.broker.state.subscriptions.values()
    assert {record.queue} == before
    said = record.topics, record.options, record.expires_s, record.user, record.definition["unknown"]
    assert said == (["topic://b", "topic://c.*"], options, 60, "u", True)
    session(world, "topic://c.*", "topic://d.*", exact=["topic://c.*"])
    for topic in ("topic://c.d", "topic://d.e"):
        send(world, topic.encode(), topic)
    assert waiting(world)[3:] == [b"topic://d.e"]
    world.check_at_rest()


def test_a_change_is_kept_through_compaction_and_checkpoints(make_world: Callable[..., World]) -> None:
    world = make_world(journal_segment_size_bytes=4096, checkpoint_distance_bytes=2048)
    leave(world, subscriber(world))
    session(world, "topic://b", expires_s=1, unknown={"n": 1})
    send(world, b"1", "topic://b")
    pump = world.connect()
    pump.subscribe("pump", ACK_AUTO)
    for round_ in range(4):
        first = world.segments()[0]
        for _ in range(40):
            pump.send(bytes(500), "pump")
            world.settle()
        assert first not in world.segments()
        if round_ % 2:
            world.crash_and_recover()
            pump = world.connect()
            pump.subscribe("pump", ACK_AUTO)
        (record,) = world.broker.state.subscriptions.values()
        assert (record.topics, record.expires_s, record.definition["unknown"]) == (["topic://b"], 1, {"n": 1})
    assert waiting(world) == [b"1"]
    world.check_at_rest()


def test_what_is_written_again_behind_a_change_is_the_change(world: World) -> None:
    """Compaction copies what the state says. Behind a change that is on its way, that would undo it."""
    leave(world, subscriber(world))
    (record,) = world.broker.state.subscriptions.values()
    assert record.segment is not None
    session(world, "topic://b")
    assert record.topics == [TOPIC]
    (copy,) = world.broker.state.subscriptions.standing_in({record.segment.code})
    world.journal.append_record(copy)
    world.settle()
    world.crash_and_recover()
    (record,) = world.broker.state.subscriptions.values()
    assert record.topics == ["topic://b"]
    send(world, b"1", "topic://b")
    assert waiting(world) == [b"1"]


# -- to whom they belong -----------------------------------------------------------------------------------------------


def end(world: World, user: str) -> list[str]:
    client = world.connect("c", user=user)
    client.do(Unsubscribe("", "r", "s"))
    world.settle()
    return client.codes


def test_each_user_has_a_subscription_of_that_name(world: World) -> None:
    """Whatever eve does with the names of alice, alice hears the same and gets the same."""
    eve, alice = subscriber(world, user="eve"), subscriber(world, user="alice")
    assert not eve.codes + alice.codes
    send(world, b"1")
    assert (eve.bodies, alice.bodies) == ([b"1"], [b"1"])
    leave(world, alice, ack=False)
    assert subscriber(world, topic="topic://other", user="eve").codes == ["SUBSCRIPTION_IN_USE"], "it is her own"
    leave(world, eve)
    assert end(world, "eve") == []
    assert end(world, "eve") == ["UNKNOWN_SUBSCRIPTION"]
    world.crash_and_recover()
    again = subscriber(world, user="alice")
    assert (again.bodies, again.codes) == ([b"1"], [])
    world.check_at_rest()


@pytest.mark.parametrize("crash", [False, True])
def test_one_that_belongs_to_nobody_becomes_that_of_the_first_user_who_subscribes(world: World, crash: bool) -> None:
    """An earlier version stored no user."""
    leave(world, subscriber(world))
    send(world, b"1")
    leave(world, subscriber(world, user="alice"), ack=False)
    if crash:
        world.crash_and_recover()
    assert [record.user for record in world.broker.durables.records()] == ["alice"]
    eve = subscriber(world, user="eve")
    assert (eve.bodies, eve.codes) == ([], [])
    alice = subscriber(world, user="alice")
    assert alice.bodies == [b"1"]
    for client in (alice, eve):
        client.lose()
    world.settle()
    assert [end(world, user) for user in ("eve", "alice")] == [[], []]
    world.check_at_rest()
    assert not world.broker.durables._by_queue


def test_a_user_does_not_wait_for_a_client_without_a_login(world: World) -> None:
    held = subscriber(world)
    alice = subscriber(world, user="alice")
    assert not alice.codes
    assert end(world, "bob") == ["UNKNOWN_SUBSCRIPTION"]
    send(world, b"1")
    assert (held.bodies, alice.bodies) == ([b"1"], [b"1"])


def test_an_operator_names_the_user_where_several_have_that_name(world: World) -> None:
    for user in ("alice", "eve"):
        leave(world, subscriber(world, user=user))
    durables = world.broker.durables
    with pytest.raises(CommandError, match="'alice', 'eve'") as raised:
        durables.to_delete("s", "c", None)
    assert raised.value.code == "SUBSCRIPTION_AMBIGUOUS"
    durables.end(durables.to_delete("s", "c", "eve"))
    world.settle()
    assert durables.to_delete("s", "c", None).user == "alice"
    with pytest.raises(CommandError, match="no durable subscription"):
        durables.to_delete("s", "c", "")


# -- anything that happens ---------------------------------------------------------------------------------------------

STEPS = [*["send"] * 4, *["ack"] * 2, "subscribe", "unsubscribe", "fill", "crash", "hold"]
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.sampled_from([10, 400, 3000])), max_size=40)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_each_gets_what_it_is_due(tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, int, int]]) -> None:
    world = World(
        tmp_path_factory.mktemp("store"),
        journal_segment_size_bytes=16 << 10,
        checkpoint_distance_bytes=4 << 10,
        memory_limit_bytes=40_000,
        maximum_redeliveries=-1,
    )
    try:
        walk(world, done)
    finally:
        world.close()


def walk(world: World, done: list[tuple[str, int, int]]) -> None:
    due: dict[str, list[bytes]] = {}
    dice = random.Random(len(done))
    for sent, (step, number, size) in enumerate(done):
        name = f"s{number % 3}"
        client = world.connect("c")
        body = b"%d:" % sent + bytes(size)
        if step == "send":
            client.send(body, TOPIC, duplicate_id=f"id-{sent}" if number % 2 else "")
            for each in due.values():
                each.append(body)
        elif step == "fill":
            client.subscribe("d", ACK_AUTO)
            for _ in range(12):
                client.send(bytes(1500), "d")
                world.settle()
        elif step == "crash":
            world.crash_and_recover()
            continue
        elif step == "unsubscribe" and name in due:
            client.unsubscribe("", name)
            del due[name]
        else:
            client.subscribe(TOPIC, id="d", subscription_name=name, prefetch=number + 1)
            waiting = due.setdefault(name, [])
            world.settle()
            assert client.bodies == waiting[: len(client.bodies)]
            assert bool(client.bodies) == bool(waiting), "a memory that is full lets the next one through"
            if step == "ack":
                for delivery in dice.sample(client.deliveries, len(client.deliveries)):
                    client.ack(delivery.body)
                    waiting.remove(delivery.body)
        world.settle()
        assert not client.codes
        world.lose(client)
        world.check()
    world.check_at_rest()
    world.crash_and_recover()
    found = {}
    for record in world.broker.state.subscriptions.values():
        queue = world.broker.state.queue(record.queue)
        found[record.definition["name"]] = [message.body for message in world.everything(queue).values()]
    assert found == due


@pytest.mark.parametrize("seed", [1522, 1549, 1550, 5050])
def test_an_old_checkpoint_knows_ids_of_one_that_ended(tmp_path: Path, seed: int) -> None:
    """The word of the end went with the segment in which the subscription stood."""
    dice = random.Random(seed)
    world = World(
        tmp_path,
        journal_segment_size_bytes=16 << 10,
        checkpoint_distance_bytes=4 << 10,
        memory_limit_bytes=40_000,
        maximum_redeliveries=-1,
    )
    count = dice.randrange(5, 60)
    walk(world, [(dice.choice(STEPS), dice.randrange(6), dice.choice([10, 400, 3000])) for _ in range(count)])
    world.close()


def test_a_subscriber_who_knows_nothing_of_the_further_facts_goes_on_with_it(world: World) -> None:
    """As one of another protocol does; its messages stay, and so do those facts."""
    leave(world, subscriber(world))
    send(world, b"1")
    session(world, TOPIC, options={TOPIC: {"qos": 1}}, expires_s=60, user="u")
    world.settle()
    client = subscriber(world, user="u")
    assert (client.bodies, client.codes) == ([b"1"], [])
    (record,) = world.broker.state.subscriptions.values()
    assert (record.expires_s, record.user) == (60, "u")
    world.check_at_rest()
