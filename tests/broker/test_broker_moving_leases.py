"""A move of what is leased waits, grants no new leases when they alone hold it, and goes on when all are settled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker import homes
from amq.broker.transfer import copying_ahead
from amq.cluster.placement import Placement
from amq.protocols.commands import Finish, Prepare
from tests.broker.carrying import BODIES, OURS, OURS_TOO, Cluster, received, send
from tests.broker.test_broker_leasing import lease, settle

LEASED = 10


def turn(cluster: Cluster, times: int = 6) -> None:
    """The stores and those who make tables go on."""
    for _ in range(times):
        cluster.settle(2)
        cluster.advance()
    cluster.settle(2)


def is_moved(cluster: Cluster) -> bool:
    return cluster.table.step is None and cluster.table.home_of(f"queue://{OURS}") == "s2"


def test_a_reader_that_settles_before_it_asks_on_lets_the_move_go_on(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1)
    number, _, waiting = lease(s1, 0, LEASED, queue=OURS)
    assert waiting == len(BODIES) - LEASED
    cluster.begin()
    turn(cluster)
    assert not is_moved(cluster)
    assert cluster.seen()["s1"].busy
    assert lease(s1, 0, LEASED, queue=OURS)[:2] == (number, LEASED), "the one that is there"
    assert lease(s1, number, LEASED, queue=OURS) == (0, 0, waiting), "no other one"
    assert settle(s1, number, queue=OURS) == LEASED
    turn(cluster, 3)
    assert is_moved(cluster)
    number, count, _ = lease(s2, 0, queue=OURS)
    assert count == waiting
    settle(s2, number, commit=False, queue=OURS)
    assert received(s2) == BODIES[LEASED:]


def test_it_goes_on_though_nothing_waits_beside_the_lease(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1)
    number, _, _ = lease(s1, queue=OURS)
    cluster.begin()
    turn(cluster)
    send(s1, [b"meanwhile"])
    assert lease(s1, number, queue=OURS) == (0, 0, 1)
    settle(s1, number, queue=OURS)
    turn(cluster, 3)
    assert is_moved(cluster)
    assert received(s2) == [b"meanwhile"]


def test_leases_are_granted_until_the_copies_are_there(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    s1, s2 = cluster.worlds.values()
    monkeypatch.setattr(homes, "FEW", 5)
    monkeypatch.setattr(copying_ahead, "MESSAGES_MAX", 3)
    bodies = [body.ljust(500) for body in BODIES]
    send(s1, bodies)
    number, _, _ = lease(s1, 0, 1, queue=OURS)
    cluster.table = cluster.table.carried(OURS, "s2", 2000)
    cluster.offer()
    placed = s1.broker.homes
    assert placed is not None
    granted = 0
    for _ in range(20):
        cluster.settle(1)
        cluster.advance()
        if placed.facts.get("copying"):
            found, _, _ = lease(s1, number, 1, queue=OURS)
            assert found, "the queue is still to be copied"
            settle(s1, number, queue=OURS)
            number, granted = found, granted + 1
    assert granted
    assert placed.copies
    assert lease(s1, number, queue=OURS)[0] == 0
    settle(s1, number, queue=OURS)
    turn(cluster, 4)
    assert is_moved(cluster)
    assert placed.sent.sent
    assert received(s2) == bodies[1 + granted :]


def test_a_reader_that_has_ended_starves_no_other(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1)
    lease(s1, 0, 1, queue=OURS, cursor="dead")
    cluster.begin()
    turn(cluster)
    number, asked = 0, []
    for _ in range(2 * homes.WITHHELD_SWEEPS):
        found, _, _ = lease(s1, number, 1, queue=OURS)
        asked.append(bool(found))
        if found:
            settle(s1, found, queue=OURS)
        number = found or number
        cluster.settle(1)
    assert {*asked} == {False, True}
    assert not is_moved(cluster)
    settle(s1, queue=OURS, cursor="dead")
    for _ in range(homes.WITHHELD_SWEEPS):
        turn(cluster, 1)
    assert is_moved(cluster)
    assert len(received(s2)) == len(BODIES) - 1 - sum(asked)


def test_a_transaction_that_holds_the_move_as_well_stops_no_leases(cluster: Cluster) -> None:
    s1, _ = cluster.worlds.values()
    send(s1)
    number, _, _ = lease(s1, 0, 1, queue=OURS)
    client = s1.connect()
    client.begin()
    client.send(b"prepared", OURS, transaction="t")
    client.do(Prepare("t", "x", receipt="r"))
    s1.settle()
    cluster.begin()
    turn(cluster)
    found, _, _ = lease(s1, number, 1, queue=OURS)
    assert found
    client.do(Finish("x", True, "e"))
    turn(cluster)
    assert not is_moved(cluster)
    assert lease(s1, found, 1, queue=OURS)[0] == 0
    settle(s1, queue=OURS)
    turn(cluster)
    assert is_moved(cluster)


def test_what_does_not_move_is_leased_on(cluster: Cluster) -> None:
    s1, _ = cluster.worlds.values()
    send(s1)
    send(s1, queue=OURS_TOO)
    lease(s1, 0, 1, queue=OURS)
    cluster.begin()
    turn(cluster)
    assert lease(s1, 0, 5, queue=OURS_TOO)[1] == 5
    assert not is_moved(cluster)


def test_a_step_that_came_too_early_is_not_held_up_by_the_next_lease(cluster: Cluster) -> None:
    """A lease began when the table with the step was made already."""
    s1, s2 = cluster.worlds.values()
    send(s1)
    cluster.begin()
    cluster.settle(2)
    step = cluster.table.step
    assert step is not None
    cluster.table = cluster.table.stepped(step.waiting)
    cluster.offer("s2")
    placed = s1.broker.homes
    assert placed is not None
    placed._later = {*step.waiting}  # a lease is granted, as in the moment before the last look
    number, _, _ = lease(s1, 0, LEASED, queue=OURS)
    cluster.offer()
    cluster.settle(3)
    assert cluster.seen()["s1"].waits == (f"/queue/{OURS}",)
    assert lease(s1, number, queue=OURS)[0] == 0
    settle(s1, number, queue=OURS)
    cluster.finish()
    assert received(s2) == BODIES[LEASED:]


@pytest.mark.parametrize("commit", [True, False])
def test_the_lease_of_a_durable_subscription_holds_the_move_of_its_topic(cluster: Cluster, commit: bool) -> None:
    s1, s2 = cluster.worlds.values()
    topic = f"topic://{OURS}"
    client = s1.consumer(topic, subscription_name="c", id="d", options={"credit": "0"})
    client.disconnect()
    send(s1, BODIES, topic)
    number, count, _ = lease(s1, 0, LEASED, queue=topic)
    assert count == LEASED
    cluster.begin()
    turn(cluster)
    assert cluster.seen()["s1"].busy
    assert lease(s1, number, queue=topic)[0] == 0
    settle(s1, number, queue=topic, commit=commit)
    turn(cluster)
    assert is_moved(cluster)
    client = s2.consumer(topic, subscription_name="c", id="d", ack="auto")
    assert client.bodies == (BODIES[LEASED:] if commit else BODIES)


def test_the_lease_of_a_subscription_to_a_pattern_holds_the_end_of_its_store(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(table=Placement.even(1, ("s1", "s2")))
    s1, s2 = cluster.worlds.values()
    for world in (s1, s2):
        world.consumer("topic://*", subscription_name="c", id="d", options={"credit": "0"}).disconnect()
    send(s1, BODIES, f"topic://{OURS}")
    number, count, _ = lease(s1, 0, LEASED, queue="topic://*")
    assert count == LEASED
    cluster.table = cluster.table.emptied("s1", ["s2"])
    cluster.offer()
    turn(cluster)
    assert cluster.table.step is not None
    assert lease(s1, number, queue="topic://*")[0] == 0
    settle(s1, number, queue="topic://*")
    turn(cluster, 10)
    assert cluster.table.step is None
    client = s2.consumer("topic://*", subscription_name="c", id="d", ack="auto")
    assert client.bodies == BODIES[LEASED:]
