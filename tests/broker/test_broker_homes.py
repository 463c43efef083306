"""Homes: a store of a cluster serves what its recorded table gives to it, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.state.state import State
from amq.cluster.placement import Placement
from amq.cluster.placing import Await, Carry, StoreSeen, decide, next_step
from amq.config.schema import BrokerConfig
from amq.core.destination import QUEUE_SCHEME, source
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.journal.format import segment_name
from amq.journal.hidden import home_name
from amq.journal.live import Segment
from amq.journal.records import ObeyedTable
from amq.management.messages import seq_of
from amq.protocols.commands import (
    DeleteDestination,
    LeaseMessages,
    MakeTemporary,
    Send,
    SendRun,
    SendToMany,
)
from amq.security import User
from tests.broker.world import World

STORES = ("s1", "s2", "s3")
TABLE = Placement.even(1, STORES)
NAMES = [f"n{number}" for number in range(60)]


def of(store: str, placement: Placement = TABLE) -> list[str]:
    """Names of queues that live there."""
    return [name for name in NAMES if placement.home_of(QUEUE_SCHEME + name) == store]


OURS, THEIRS = of("s1")[0], of("s2")[0]


def content(placement: Placement, store: str = "s1", cluster: str = "c") -> dict[str, Any]:
    return {"cluster": cluster, "store": store, "number": placement.number, "placement": placement.to_json()}


def offer(world: World, placement: Placement, **more: str) -> None:
    world.config = dataclasses.replace(world.config, placed=content(placement, **more))
    world.broker.reconfigure(world.config)


@pytest.fixture
def placed(make_world: Callable[..., World]) -> World:
    """A store of a cluster."""
    return make_world(placed=content(TABLE))


def test_what_lives_elsewhere_is_refused_by_every_command(placed: World) -> None:
    for command in (
        lambda client: client.send(b"x", THEIRS),
        lambda client: client.send(b"x", "topic://" + THEIRS),
        lambda client: client.subscribe(THEIRS),
        lambda client: client.subscribe("DLQ." + THEIRS),
        lambda client: (client.begin(), client.send(b"x", THEIRS, transaction="t")),
        lambda client: client.do(SendToMany(message_to(OURS), (q(OURS), q(THEIRS)), "r")),
        lambda client: client.do(LeaseMessages((q(THEIRS),), "cursor", 0, 1, receipt="r")),
    ):
        client = placed.connect()
        command(client)
        placed.settle()
        assert client.codes == ["MOVED"], command
    assert placed.broker.state.stored == 0


def test_a_message_is_found_by_the_id_that_clients_of_gateways_see(placed: World) -> None:
    place = TABLE.stores.index("s1")
    own = f"{placed.broker.message_id_prefix}5"
    assert seq_of(placed.broker, f"ID:c-{5 << 10 | place}") == seq_of(placed.broker, own) == 5
    with pytest.raises(CommandError, match="not an id of a message of this broker"):
        seq_of(placed.broker, f"ID:c-{5 << 10 | place + 1}")


def q(name: str) -> str:
    return QUEUE_SCHEME + name


def message_to(name: str) -> Message:
    return Message(q(name), b"x")


def test_the_refusal_says_where_to_go(placed: World) -> None:
    with pytest.raises(CommandError, match=rf"/queue/{THEIRS} lives in store s2: .* \(table 1; this is store s1\)"):
        placed.broker.access.check_home(q(THEIRS))


def test_what_lives_here_or_everywhere_is_served(placed: World) -> None:
    client = placed.connect()
    for name in (OURS, "topic://" + OURS, "DLQ." + OURS, "ActiveMQ.DLQ"):
        client.send(b"x", name)
        client.subscribe(name)
    client.subscribe("queue://>", id="all")
    client.subscribe("topic://ActiveMQ.Advisory.Queue")
    client.do(MakeTemporary("temp-queue://ID:x:1", "r"))
    client.send(b"x", "temp-queue://ID:x:1")
    client.do(DeleteDestination(q(THEIRS), "r"))  # what an earlier table left
    placed.settle()
    assert client.errors == []


def test_a_star_in_a_name_is_no_pattern(placed: World) -> None:
    """A protocol may have names in which it stands for itself."""
    name = next(q(f"{each}.*") for each in NAMES if TABLE.home_of(q(f"{each}.*")) == "s2")
    access, user = placed.broker.access, User("")
    for command in (Send(Message(name, b"x")), LeaseMessages((name,), "c", 0, 1)):
        with pytest.raises(CommandError, match="lives in store s2"):
            access.let_in(user, command)
    access.let_in(user, LeaseMessages((source(name),), "c", 0, 1))


def test_a_run_of_messages_is_refused(placed: World) -> None:
    client = placed.connect()
    client.do(SendRun(message_to(THEIRS), [b"1", b"2"], ["r1", "r2"]))
    placed.settle()
    assert set(client.codes) == {"MOVED"}
    assert placed.broker.state.stored == 0


def test_a_table_takes_away_at_once_and_gives_when_it_is_durable(placed: World) -> None:
    client = placed.connect()
    client.subscribe(OURS)
    client.begin()
    client.send(b"in a transaction", OURS, transaction="t")
    client.send(b"x", of("s1")[1])
    placed.settle()
    moving = TABLE.placed(OURS, "s2")
    offer(placed, moving)
    assert placed.broker.homes.home_of(q(OURS)) == "s2"
    assert placed.broker.homes.facts["number"] == 1  # nobody is told before it is durable
    client.send_out()
    assert [code for code, _ in client.errors] == ["MOVING"]
    placed.settle()
    assert placed.broker.homes.facts == {"number": 2, "since": 2, "held": []}
    other = placed.connect()
    other.send(b"x", OURS)
    placed.settle()
    assert other.codes == ["MOVING"]


def test_no_table_is_told_while_only_an_older_one_is_durable(make_world: Callable[..., World]) -> None:
    world = make_world()
    offer(world, TABLE)
    world.turn()
    offer(world, TABLE.placed(OURS, "s2"))
    while world.broker.homes.facts.get("number") is None:
        world.turn()
        world.runner.step()
    assert world.broker.homes.facts["number"] == 1
    world.settle()
    assert world.broker.homes.facts["number"] == 2


def test_a_record_that_is_only_written_again_asks_nobody(placed: World) -> None:
    placed.settle()
    version = placed.broker.homes_version
    placed.journal.append_record(placed.broker.state.obeyed.record)
    placed.broker.wake()
    placed.settle()
    assert placed.broker.homes_version == version


def test_a_client_that_has_sent_there_before_is_refused(placed: World) -> None:
    client = placed.connect()
    client.subscribe(OURS, ack="auto")
    client.send(b"x", OURS)
    placed.settle()
    client.unsubscribe(OURS)
    placed.settle()
    offer(placed, TABLE.placed(OURS, "s2"))
    client.send(b"y", OURS)
    placed.settle()
    assert client.codes == ["MOVING"]
    assert placed.broker.state.stored == 0


def test_a_transaction_that_sends_to_what_moved_is_rolled_back(placed: World) -> None:
    client = placed.connect()
    client.begin()
    client.send(b"x", of("s1")[1], transaction="t")
    client.send(b"x", OURS, transaction="t")
    placed.settle()
    offer(placed, TABLE.placed(OURS, "s2"))
    client.commit()
    placed.settle()
    assert client.codes == ["MOVING"]
    assert placed.broker.state.stored == 0


def test_a_destination_that_comes_is_served_when_the_record_is_durable(placed: World) -> None:
    moving = TABLE.placed(THEIRS, "s1")
    offer(placed, moving)
    placed.settle()
    assert placed.broker.homes.home_of(q(THEIRS)) == "s1"  # in a moment
    offer(placed, moving.settled())
    assert placed.broker.homes.home_of(q(THEIRS)) == "s1"
    placed.settle()
    assert placed.broker.homes.home_of(q(THEIRS)) == ""


def test_the_table_outlives_the_master_and_an_older_one_changes_nothing(placed: World) -> None:
    moving = TABLE.placed(OURS, "s2")
    offer(placed, moving)
    placed.settle()
    placed.config = dataclasses.replace(placed.config, placed=content(TABLE))  # its node saw no newer one
    placed.crash_and_recover()
    assert placed.broker.homes.facts["number"] == 2
    assert placed.broker.homes.home_of(q(OURS)) == "s2"
    placed.config = dataclasses.replace(placed.config, placed=None)  # `amq start --store`
    placed.crash_and_recover()
    assert placed.broker.homes.facts["number"] == 2


def test_a_table_whose_record_was_lost_is_not_in_force(placed: World) -> None:
    offer(placed, TABLE.placed(OURS, "s2"))
    placed.config = dataclasses.replace(placed.config, placed=content(TABLE))
    placed.crash_and_recover()
    assert placed.broker.homes.facts["number"] == 1
    assert placed.broker.homes.home_of(q(OURS)) == ""


@pytest.mark.parametrize("number", [2, 3])
def test_the_record_survives_trims_and_checkpoints(make_world: Callable[..., World], number: int) -> None:
    world = make_world(placed=content(TABLE), checkpoint_distance_bytes=6 << 10)
    offer(world, TABLE.placed(OURS, "s2"))
    client = world.connect()
    client.subscribe(of("s1")[1], ack="auto")
    for _ in range(number * 40):
        client.send(bytes(1000), of("s1")[1])
        world.settle()
        world.check()
    assert len(world.segments()) < number * 40000 // (16 << 10)
    world.config = dataclasses.replace(world.config, placed=None)
    world.crash_and_recover()
    world.check()
    assert world.broker.homes.facts["number"] == 2


def test_a_table_that_would_strand_something_is_refused(placed: World) -> None:
    first, second, third, fourth = of("s1")[:4]
    client = placed.connect("c")
    client.send(b"x", first)
    client.subscribe("topic://" + second, subscription_name="d", id="d")
    placed.settle()
    moving = TABLE
    for name in (first, second, third):
        moving = moving.placed(name, "s2")
    moving = dataclasses.replace(moving, before=TABLE.layout)
    offer(placed, moving)
    placed.settle()
    facts = placed.broker.homes.facts
    assert (facts["number"], facts["refused"], facts["held"]) == (1, 4, [f"/queue/{first}", f"/topic/{second}"])
    assert placed.broker.homes.home_of(q(first)) == ""
    offer(placed, moving.reverted())
    placed.settle()
    assert placed.broker.homes.facts == {"number": 5, "since": 5, "held": []}
    assert placed.broker.homes.home_of(q(fourth)) == ""


def test_ids_of_what_moves_are_told_and_then_leave(placed: World) -> None:
    """A client may send such a message again, to the new home."""
    client = placed.connect()
    client.send(b"x", OURS, duplicate_id="1")
    placed.settle()
    client.subscribe(OURS, "auto")
    placed.settle()
    client.disconnect()
    placed.settle()
    assert not placed.stored(OURS)
    moving = TABLE.placed(OURS, "s2")
    offer(placed, moving)
    placed.settle()
    assert placed.broker.homes.facts == {"number": 2, "since": 2, "held": [], "remembers": True}
    seen = {"s1": StoreSeen(2, remembers=True), "s2": StoreSeen(2)}
    assert decide(moving, seen) == Carry()
    offer(placed, step := moving.remembering())
    placed.settle()
    assert placed.broker.homes.facts["held"] == [f"/queue/{OURS}"], "until the other store has them"
    assert isinstance(next_step(step, {**seen, "s1": StoreSeen(3, held=(f"/queue/{OURS}",))}), Await)
    settled = next_step(step, {name: StoreSeen(3) for name in TABLE.stores})
    assert isinstance(settled, Placement)
    assert (settled.before, settled.home_of(q(OURS))) == (None, "s2")


def test_a_record_that_is_written_again_puts_no_older_table_in_force() -> None:
    """A trim may write the older one behind the newer one."""
    state, segments = State(BrokerConfig(store="/nowhere")), [Segment(segment_name(1, n), 1, n, 0) for n in (1, 2, 3)]
    for number, segment in zip((1, 2, 1), segments, strict=True):
        state.apply(ObeyedTable("c", "s1", number, {}), segment)
    assert state.obeyed.record == ObeyedTable("c", "s1", 2, {})
    assert [bool(segment.id_bytes) for segment in segments] == [False, True, False]
    assert state.obeyed.standing_in({segments[1].code}) == [state.obeyed.record]
    assert state.obeyed.standing_in({segments[0].code}) == []


def test_a_store_that_had_messages_before_it_was_in_a_cluster_brings_them_home(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.connect().send(b"x", THEIRS)
    world.settle()
    offer(world, TABLE)
    world.settle()
    assert world.broker.homes.facts["held"] == [f"/queue/{THEIRS}"]
    moving = TABLE.placed(THEIRS, "s1")
    offer(world, moving)
    world.settle()
    assert world.broker.homes.facts == {"number": 2, "since": 2, "held": []}
    offer(world, moving.settled())
    world.settle()
    client = world.consumer(THEIRS)
    assert client.bodies == [b"x"]


def test_the_table_of_another_cluster_is_not_obeyed(placed: World) -> None:
    placed.settle()
    offer(placed, dataclasses.replace(TABLE, number=9), cluster="other")
    offer(placed, dataclasses.replace(TABLE, number=9), store="s2")
    placed.settle()
    assert placed.broker.homes.facts["number"] == 1


def test_names_for_people() -> None:
    assert home_name("sent://queue://a") == "queue://a"
    assert home_name("held://queue://a") == "queue://a"
    assert home_name("retained://topic://a") == "topic://a"
    assert home_name("schedule://queue.a.b") == "queue://a.b"
