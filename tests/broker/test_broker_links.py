"""A client need not wait for its own ghost: a newer connection of it takes the place of the older one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client as Who
from amq.core.errors import AccessError
from amq.protocols.commands import Nothing
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.broker.world import Client, World

TOPIC = "topic://t"


def subscriber(world: World, client_id: str = "c", **who: str) -> Client:
    client = world.connect(client_id, **who)
    client.subscribe(TOPIC, id="d", subscription_name="s", prefetch=10)
    world.settle()
    return client


def put(world: World, *bodies: bytes, destination: str = TOPIC) -> None:
    for body in bodies:
        world.connect().send(body, destination)
    world.settle()


def test_the_same_client_takes_over_from_its_ghost(world: World) -> None:
    ghost = subscriber(world, instance="i")
    put(world, b"1", b"2")
    assert ghost.bodies == [b"1", b"2"]
    again = subscriber(world, instance="i")
    assert ghost.codes == ["LINK_STOLEN"]
    assert not again.errors
    assert [(each.body, each.redelivered) for each in again.deliveries] == [(b"1", 1), (b"2", 1)]
    put(world, b"3")
    assert again.bodies == [b"1", b"2", b"3"]
    for body in again.bodies:
        again.ack(body)
    world.settle_and_check()
    assert not world.broker.links.instances.keys() - {again.session.client}


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_gateway_that_is_late_does_not_bring_a_ghost_back(world: World, exclusive: bool) -> None:
    """Its client has failed over to another gateway meanwhile."""
    live = subscriber(world, instance="i", exclusive=exclusive, since_ms=2000)
    put(world, b"1")
    if exclusive:
        with pytest.raises(AccessError) as raised:
            world.connect("c", instance="i", exclusive=True, since_ms=1000)
        assert raised.value.code == "LINK_STOLEN"
    else:
        late = world.connect("c", instance="i", since_ms=1000)
        late.subscribe("queue://q", id="q")
        world.settle()
        assert late.codes == ["LINK_STOLEN"]
        assert not late.confirmed, "what it says is not carried out"
    assert not live.errors
    put(world, b"2")
    assert live.bodies == [b"1", b"2"]
    subscriber(world, instance="i", exclusive=exclusive, since_ms=3000)
    assert live.codes == ["LINK_STOLEN"]


def test_a_connection_that_says_nothing_takes_nothing(world: World) -> None:
    """So a client may look whether a broker lets it in while it works with that through another connection."""
    worker = subscriber(world, instance="i")
    probe = world.connect("c", instance="i")
    probe.do()
    world.settle()
    assert not worker.errors
    probe.lose()
    put(world, b"1")
    assert worker.bodies == [b"1"]
    world.check_at_rest()


@pytest.mark.parametrize(
    "other",
    [{"instance": "j"}, {"instance": ""}, {"instance": "i", "user": "eve"}, {"client_id": "d", "instance": "i"}],
)
def test_others_do_not(world: World, other: dict[str, str]) -> None:
    worker = subscriber(world, instance="i")
    stranger = subscriber(world, **other)
    assert not worker.errors
    assert stranger.codes == ([] if "client_id" in other or "user" in other else ["SUBSCRIPTION_IN_USE"])


def test_what_the_ghost_had_open_is_rolled_back_and_its_queues_go_on(world: World) -> None:
    put(world, b"1", b"2", destination="queue://a")
    ghost = world.connect(instance="i")
    ghost.subscribe("a", options={"exclusive": "true"})
    world.settle()
    ghost.begin()
    ghost.ack(b"1", "t")
    ghost.send(b"3", "b", transaction="t")
    world.settle()
    other = world.connect()
    other.subscribe("a")
    again = world.connect(instance="i")
    again.subscribe("a", options={"exclusive": "true"})
    world.settle()
    assert ghost.codes == ["LINK_STOLEN"]
    assert sorted(again.bodies + other.bodies) == [b"1", b"2"]
    assert world.stored("b") == []
    world.check_at_rest()


def test_link_stealing_for_all(world: World) -> None:
    held = subscriber(world)
    assert subscriber(world).codes == ["SUBSCRIPTION_IN_USE"]
    assert not held.errors
    world.broker.reconfigure(dataclasses.replace(world.config, allow_link_stealing=True))
    stranger, nameless = world.connect("c", user="eve"), world.connect()
    thief: Any = subscriber(world)
    assert held.codes == ["LINK_STOLEN"]
    assert not thief.errors
    assert not stranger.errors
    assert not world.connect().errors
    assert not nameless.errors
    for client in (thief, stranger):
        client.lose()
    world.settle()
    assert not world.broker.links.clients
    world.check_at_rest()


# -- client ids that one client has alone ------------------------------------------------------------------------------


def exclusive(
    world: World, instance: str = "", user: str = "", own: str = "", client_id: str = "c"
) -> ClientConnection:
    client = Client(world)
    client.session.close()
    client.session = ClientConnection(world.broker, client, own, Who(User(user), client_id, instance, exclusive=True))
    return client.session


@pytest.mark.parametrize("instance", ["j", ""])
def test_no_other_client_of_the_user_gets_a_client_id_that_is_taken(world: World, instance: str) -> None:
    """Neither one that gives another instance, nor one that gives none."""
    first = exclusive(world, "i" if instance else "")
    with pytest.raises(AccessError, match="in use") as raised:
        exclusive(world, instance)
    assert raised.value.code == "CLIENT_ID_IN_USE"
    assert not first.is_closed
    first.close()
    exclusive(world, instance).close()
    assert not world.broker.links.clients
    assert not world.broker.links.exclusive


@pytest.mark.parametrize("instance", ["i", "j", ""])
def test_another_user_may_have_the_same_client_id(world: World, instance: str) -> None:
    first, second = exclusive(world, "i"), exclusive(world, instance, "eve")
    for each in (first, second):
        each.handle([Nothing()])
        assert not each.is_closed
    second.close()
    assert not first.is_closed
    first.close()
    assert not world.broker.links.clients
    assert not world.broker.links.exclusive


def test_the_same_client_object_takes_it_over(world: World) -> None:
    first = exclusive(world, "i")
    second = exclusive(world, "i")
    assert first.is_closed
    assert not second.is_closed


def test_link_stealing_is_among_the_connections_of_one_user(make_world: Any) -> None:
    world = make_world(allow_link_stealing=True)
    first = exclusive(world, "i")
    stranger = exclusive(world, "i", "eve")
    assert not first.is_closed
    second = exclusive(world, "j")
    assert first.is_closed
    assert not stranger.is_closed
    assert not second.is_closed


# -- connection ids, which clients choose ------------------------------------------------------------------------------


def test_a_connection_of_that_id_goes_and_the_others_are_still_there(make_world: Any, tmp_path: Any) -> None:
    """A right that is withdrawn counts for a client whatever others have called themselves."""
    world = make_world()
    rules = '[queues."a"]\nread = ["bob"]\nwrite = ["*"]\n[roles]\nbob = ["bob"]\nx = []\n'
    path = tmp_path / "permissions.toml"
    path.write_text(rules)
    world.broker.permit(Permissions.read(str(path), 1))
    bob = world.consumer("a", user="bob")
    exclusive(world, bob.session.id, "eve").close()
    assert bob.session in world.broker.connections
    path.write_text(rules.replace('"bob"]\nwrite', '"x"]\nwrite'))
    world.broker.permit(Permissions.read(str(path), 2))
    world.settle()
    assert bob.codes == ["NOT_PERMITTED"]
    put(world, b"1", destination="queue://a")
    assert bob.bodies == []


@pytest.mark.parametrize("chosen", ["1-3", "ID:host-1:1"])
def test_a_name_of_the_broker_or_of_another_user_is_not_given_to_a_connection(world: World, chosen: str) -> None:
    first = exclusive(world, chosen, own="1-2.")
    second = exclusive(world, chosen, "eve", own="1-3.")
    third = exclusive(world, "ID:host-1:2", "eve", own="1-4.", client_id="d")
    is_own = chosen == "1-3"
    assert [first.id, second.id, third.id] == ["1-2" if is_own else chosen, "1-3", "ID:host-1:2"]
    for each in (second, first, third):
        each.close()
    assert not world.broker.links.names
    assert not world.broker.connections


def test_the_last_connection_of_an_id_wins_whatever_client_id_it_gives(world: World) -> None:
    first = exclusive(world, "i")
    second = exclusive(world, "i", client_id="d")
    assert not first.is_closed
    second.handle([Nothing()])
    first.handle([Nothing()])
    assert first.is_closed or second.is_closed
    assert len(world.broker.connections) == 1


@pytest.mark.parametrize(
    "name", ["temp-queue://1-3.replies", "temp-queue://ID:host-1:1:7", "temp-topic://ID:host-1:1:8"]
)
def test_nobody_makes_a_temporary_destination_in_the_name_of_another_users_connection(world: World, name: str) -> None:
    alice, eve = exclusive(world, "ID:host-1:1", "alice"), exclusive(world, "ID:host-1:1", "eve")
    with pytest.raises(AccessError):
        world.broker.temporaries.make(name, eve.temporary, "eve")
    assert alice.id == "ID:host-1:1"
    for each in (alice, eve):
        each.close()
