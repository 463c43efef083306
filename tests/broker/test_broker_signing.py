"""`populateJMSXUserID`: consumers know for certain who sent a message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.core.message import TEXT, USER_ID, Message
from amq.protocols.commands import Commit, Send, SendMany, SendToMany, Subscribe
from tests.broker.world import Client, World

MakeWorld = Callable[..., World]
FORGED = {USER_ID: "root", "color": "red"}


def got(world: World, reader: Client) -> list[Message]:
    world.settle()
    return [delivery.message for delivery in reader.deliveries]


def reading(world: World, *names: str) -> Client:
    reader = world.connect()
    for name in names:
        reader.do(Subscribe(name, name, receipt=None))
    return reader


@pytest.mark.parametrize(("user", "told"), [("ada", "ada"), ("", "anonymous")])
def test_every_way_to_send(make_world: MakeWorld, user: str, told: str) -> None:
    world = make_world(populate_jmsxuser_id=True)
    reader = reading(world, "queue://a", "queue://b", "topic://t")
    writer = world.connect(user=user)
    writer.do(Send(Message("queue://a", b"forged", dict(FORGED))))
    writer.do(Send(Message("topic://t", b"published")))
    writer.do(SendToMany(Message("queue://a,queue://b", b"both"), ("queue://a", "queue://b")))
    writer.begin()
    writer.do(SendMany(Message("queue://a", b"", content=TEXT), [b"1", b"2"], "t"))
    writer.commit()
    found = got(world, reader)
    assert sorted(message.body for message in found) == [b"1", b"2", b"both", b"both", b"forged", b"published"]
    assert {(message.properties or {}).get(USER_ID) for message in found} == {told}
    assert {message.body: (message.properties or {}).get("color") for message in found}[b"forged"] == "red"


def test_it_survives_a_takeover_and_is_off_by_default(make_world: MakeWorld) -> None:
    world = make_world(populate_jmsxuser_id=True)
    world.connect(user="ada").do(Send(Message("queue://a", b"1")))
    world.settle()
    world.crash()
    world.start()
    [message] = got(world, reading(world, "queue://a"))
    assert message.properties == {USER_ID: "ada"}
    plain = make_world()
    reader = reading(plain, "queue://a")
    plain.connect(user="ada").do(Send(Message("queue://a", b"1", dict(FORGED))))
    assert [message.properties for message in got(plain, reader)] == [FORGED]


def test_many_that_wait_for_room_are_signed_too(make_world: MakeWorld) -> None:
    world = make_world(populate_jmsxuser_id=True, memory_limit_bytes=4096)
    world.connect(user="bob").do(Send(Message("queue://full", bytes(4096), persistent=False)))
    writer = world.connect(user="ada")
    writer.begin()
    many = SendMany(Message("queue://a", b"", persistent=False), [b"1", b"2", b"3"], "t")
    writer.do(many, Commit("t", writer.world.next_receipt()))
    world.settle()
    assert not writer.reading, "the memory is full"
    found = got(world, reading(world, "queue://full", "queue://a"))
    assert [(message.body[:1], (message.properties or {}).get(USER_ID)) for message in found] == [
        (b"\0", "bob"),
        (b"1", "ada"),
        (b"2", "ada"),
        (b"3", "ada"),
    ]
