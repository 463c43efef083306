"""A store that is removed from the cluster: its clients keep their connections, and go on in the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.core.destination import source
from amq.core.errors import AmqError
from amq.core.message import Message
from amq.gateway.homes import Loss
from amq.protocols.commands import MakeTemporary, OpenProducer, Send, Settle
from tests.gateway.test_reopening import NAME, TEMPORARY, Story, message
from tests.subscribing import subscribe


def remove(story: Story) -> None:
    """s1 is none of the cluster any more, and its link goes."""
    table, home = story.cluster.placement, story.client.session.homes[1]  # type: ignore[attr-defined]
    table.stores, table.places, table.rules = ["s0"], ["s0", ""], dict.fromkeys(table.rules, "s0")
    handed: Any = home.connection.peer
    handed.is_cut = True
    home.lost(Loss(AmqError("it was removed", code="HOME_UNAVAILABLE"), [*handed.asked.values()], False, True))
    story.rest()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    found = Story(tmp_path)
    yield found
    found.cluster.close()


def test_consumers_and_temporary_destinations_begin_elsewhere(story: Story) -> None:
    story.says(MakeTemporary(TEMPORARY, "t"), OpenProducer("p", NAME), subscribe("1", NAME, acknowledges=True))
    story.says(subscribe("2", TEMPORARY), subscribe("3", source("queue://n2.>")))
    story.sent(b"old")
    delivered = [*story.client.deliveries]
    assert delivered
    remove(story)
    for name in (NAME, TEMPORARY):
        story.says(Send(message(b"new", name=name), f"r {name}"))
    assert story.client.errors == []
    assert {each.body for each in story.client.deliveries[len(delivered) :]} == {b"new"}
    assert 1 not in story.client.session.homes  # type: ignore[attr-defined]
    story.says(Settle(delivered[0].message.seq, "1", None))
    assert story.client.errors == [], "it comes again from its new home"
    story.says(Settle(delivered[0].message.seq, "1", "late"))
    assert [code for code, _ in story.client.errors] == ["UNKNOWN_DELIVERY"]


def test_a_connection_ends_that_lacks_an_answer(story: Story) -> None:
    story.says(Send(message(b"0"), "r0"))
    story.leaves(Send(Message(NAME, b"1"), "r1"))
    remove(story)
    assert "STORE_LOST" in [code for code, _ in story.client.errors]
    assert "r1" not in story.client.confirmed
