"""Leaving: a store has left the cluster, and what a client had there goes on in the others.

It held nothing at the end, so nothing is lost with it. Consumers that had a part there, and temporary destinations,
begin anew where they live now. Invariant: a command without an answer is never held to be carried out; where one is
left, the client's connection ends, as when a store is lost.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Protocol

from amq.gateway.answers import Joined
from amq.gateway.homes import Loss, RoutedHome
from amq.gateway.reopening import HomesClient
from amq.protocols.commands import Command, MakeTemporary


class LeavingClient(HomesClient, Protocol):
    """The client's connection: see `amq.gateway.router`."""

    def home_to(self, name: str) -> RoutedHome: ...
    def route(self, commands: list[Command], number: int) -> int: ...
    def forget(self, home: RoutedHome) -> None: ...


def leave(client: LeavingClient, home: RoutedHome, loss: Loss) -> None:
    """The store of `home` was removed: begin elsewhere what `client` had there. Raises AmqError where an answer from
    there is missing."""
    if home.is_unsure or any(receipt is not None for receipt in loss.unanswered):
        raise loss.error
    client.forget(home)
    for work in client.works.values():
        work.has_lost(home)
    for producer, (where, _) in [*client.producers.items()]:
        if where is home:
            del client.producers[producer]
    for name in home.made:
        other = client.home_to(name)
        other.ask(0, MakeTemporary(name, Joined(None, 0, deals=lambda _: True)))
        other.made.add(name)
    for session in [*client.sessions.values()]:
        for consumer in [*session.consumers.values()]:
            if home.index in consumer.branches and client.end_consumer(session.number, consumer.id, home) is not None:
                again: Any = copy(consumer.command)
                again.receipt = None
                client.route([again], session.number)
