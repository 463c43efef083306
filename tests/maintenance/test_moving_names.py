"""Names in which a comma, `*` or `>` stand for themselves: an export and its import keep each as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.broker.state.state import State
from amq.cluster.placement import Placement
from amq.core.destination import Pattern, pattern_words
from amq.core.errors import AmqError
from amq.core.message import SUBSCRIPTION_SCHEME, Message
from amq.journal.hidden import RETAINED_SCHEME
from amq.journal.interchange import Durable, Exported
from amq.protocols.commands import Begin, Outcome, Prepare, Send, SendToMany
from tests.broker.many import ManyClient
from tests.broker.test_broker_retained import retain
from tests.broker.world import World
from tests.maintenance.test_moving import export, lines, load, load_all, replayed

NAMES = ("queue://a,b", "queue://a.*", "queue://>", "queue://a,queue://b", "queue://*")
TOPIC = "topic://t,u.*"


def bodies(state: State) -> dict[str, list[tuple[str, bytes]]]:
    """Of queues that somebody can address, with the names that the messages have."""
    return {
        name: [(message.destination, message.body) for _, message in sorted(queue.messages.items())]
        for name, queue in state.queues.items()
        if queue.messages and not name.startswith(SUBSCRIPTION_SCHEME)
    }


def test_nothing_is_imported_to_where_it_does_not_live(tmp_path: Path) -> None:
    """In a store of a cluster."""
    table = Placement.even(1, ["s1", "s2"])
    name = next(each for each in map("queue://{}".format, range(99)) if table.home_of(each) == "s2")
    placed = {"cluster": "c", "store": "s1", "number": 1, "placement": table.to_json()}
    with pytest.raises(AmqError, match=r"lives in store s2.*cannot be imported") as caught:
        load(tmp_path, lines([Exported(Message(name, b"x", seq=1))]), placed=placed)
    assert caught.value.code == "MOVED"


def test_an_export_and_its_import_keep_them(tmp_path: Path) -> None:
    world = World(tmp_path / "old")
    client = ManyClient(world, client_id="me")
    client.consume("exact", TOPIC, subscription_name="exact")
    client.consume("pattern", Pattern("topic://", pattern_words("t,u.*")), subscription_name="pattern")
    world.settle()
    for name in NAMES:
        client.ask(Send(Message(name, name.encode(), duplicate_id=f"id of {name}")))
        client.consume(name, name)
    client.ask(SendToMany(Message(NAMES[0], b"two"), NAMES[:2]))
    client.ask(Send(Message(TOPIC, b"literal")))
    client.ask(Send(Message("topic://t,u.v", b"of the pattern")))
    world.settle()
    client.settle(NAMES[1].encode(), outcome=Outcome.REJECTED)
    client.ask(Begin("t"))
    client.ask(Send(Message(NAMES[2], b"prepared"), None, "t"))
    client.ask(Prepare("t", "xid"))
    world.settle()
    assert client.failures == []
    found = list(export(tmp_path / "old", state=(world.epoch, world.sealed)).items())
    names = {item.message.destination for item in found if isinstance(item, Exported)}
    assert {*NAMES, "queue://DLQ.a.*"} <= names
    assert len([item for item in found if isinstance(item, Durable)]) == 2
    load(tmp_path / "new", lines(found))
    new = replayed(tmp_path / "new")
    load_all(world.broker.state, tmp_path / "old")
    subscriptions = {record.definition["name"]: record for record in new.subscriptions.values()}
    assert subscriptions["exact"].definition["exact"] == [TOPIC]
    assert "exact" not in subscriptions["pattern"].definition
    waiting = {
        name: [each.body for each in new.queues[record.queue].messages.values()]
        for name, record in subscriptions.items()
    }
    assert waiting == {"exact": [b"literal"], "pattern": [b"literal", b"of the pattern"]}
    assert bodies(new) == bodies(world.broker.state)
    assert new.queues.keys().isdisjoint({"queue://a", "queue://b"})
    world.close()


def test_so_do_the_retained_messages_of_such_topics(tmp_path: Path) -> None:
    world = World(tmp_path / "old")
    retain(world, b"kept", TOPIC)
    found = list(export(tmp_path / "old", state=(world.epoch, world.sealed)).items())
    world.close()
    assert load(tmp_path / "new", lines(found)).stored == 1
    queue = replayed(tmp_path / "new").queues[RETAINED_SCHEME + TOPIC]
    assert [message.body for message in queue.messages.values()] == [b"kept"]
