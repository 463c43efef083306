"""Holes in a cluster made on purpose: what gateways, links and tables of homes must never do."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from amq.broker.homes import Homes
from amq.broker.queues.queue import Queue
from amq.broker.transfer.channel import Channel, ChannelStep
from amq.broker.transfer.copying_ahead import CopyingAhead
from amq.cli import cluster_placing
from amq.client.copies import DeliveryCopies
from amq.cluster import moving, placing
from amq.cluster.placement import Placement
from amq.cluster.placing import Await, Grant, StoreSeen, decide
from amq.gateway import homes
from amq.gateway.router import RoutedConnection
from amq.link import commands
from amq.link import link as link_module
from amq.link import socket as socket_module
from amq.link.linked import LinkedClient
from amq.link.server import HomeLink
from amq.protocols.commands import Send, SendRun
from tests.simulation import cluster_rolling
from tests.simulation.cluster import NAME
from tests.simulation.cluster_moving import MOVES
from tests.simulation.mutants import Mutant

MUTANTS: dict[str, Mutant] = {}
FOCUS: dict[str, tuple[str, ...]] = {
    "a_table_is_told_before_its_record": ("place_and_kill",),
    "a_table_settles_before_all_stores_have_it": ("place", "hang_store", "place_and_kill"),
    "a_link_that_is_silent_is_kept": ("half_open", "open_to_nobody"),
}


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


@mutant
def a_gateway_confirms_by_itself() -> AbstractContextManager[object]:
    real = RoutedConnection.handle

    def handle(client: RoutedConnection, commands: list[Any], **options: Any) -> Any:
        for command in commands:
            if isinstance(command, Send) and command.receipt is not None and not command.transaction:
                client.peer.confirm(command.receipt)
        return real(client, commands, **options)

    return patch.object(RoutedConnection, "handle", handle)


@mutant
def a_link_confirms_before_the_sync() -> AbstractContextManager[object]:
    real = commands.read

    def take(client: LinkedClient, frame: Any) -> bool:
        def read(whole: Any) -> Any:
            command = real(whole)
            if isinstance(command, Send) and command.receipt is not None:
                client.confirm(command.receipt)
            return command

        with patch.object(commands, "read", read):
            return take_in(client, frame)

    take_in = LinkedClient.take
    return patch.object(LinkedClient, "take", take)


@mutant
def ids_do_not_cross_the_link() -> AbstractContextManager[object]:
    """So a message that is sent again after the loss of its home is stored twice."""
    real = commands.written

    def written(number: int, command: Any, *args: Any) -> Any:
        message = command.message if isinstance(command, Send) else None
        message = command.like if isinstance(command, SendRun) else message
        if message is not None:
            message.duplicate_id = ""
        return real(number, command, *args)

    return patch.object(link_module.commands, "written", written)


@mutant
def a_table_is_told_before_its_record() -> AbstractContextManager[object]:
    real = Homes.offer

    def offer(homes: Homes, offered: Any) -> None:
        real(homes, offered)
        coming = homes._coming
        if coming is not None:
            placement = Placement.from_json(coming.number, coming.placement)
            homes.facts = {"number": coming.number, "since": placement.since, "held": []}

    return patch.object(Homes, "offer", offer)


@mutant
def a_table_settles_before_all_stores_have_it() -> AbstractContextManager[object]:
    def hasty(placement: Any, stores: Any) -> Any:
        found = decide(placement, stores)
        return Grant() if isinstance(found, Await) else found

    return patch.object(cluster_placing, "decide", hasty)


@mutant
def a_home_settles_by_another_name() -> AbstractContextManager[object]:
    """A gateway takes the number of a message in one store for that in another one."""
    return patch.object(homes, "INDEX_BITS", 9)


@mutant
def a_link_that_is_silent_is_kept() -> AbstractContextManager[object]:
    return patch.object(socket_module, "SILENCE_S", 1e9)


@mutant
def clients_of_a_lost_link_stay() -> AbstractContextManager[object]:
    real = HomeLink.ended

    def ended(link: HomeLink, error: Any) -> None:
        link.clients = {}
        real(link, error)

    return patch.object(HomeLink, "ended", ended)


@mutant
def a_client_takes_what_it_has() -> AbstractContextManager[object]:
    return patch.object(DeliveryCopies, "needless", lambda *_: False)


FEATURES: dict[str, tuple[str, ...]] = dict.fromkeys(MUTANTS, ("cluster",))


# -- moves -------------------------------------------------------------------------------------------------------------


@mutant
def a_step_of_a_move_waits_for_no_store() -> AbstractContextManager[object]:
    """The next table gives what moves to its new home, before the old one has recorded that it gives it up."""
    real = placing.next_step

    def hasty(placement: Placement, stores: Mapping[str, StoreSeen]) -> Any:
        return real(placement, {name: replace(seen, number=placement.number) for name, seen in stores.items()})

    return patch.object(moving, "next_step", hasty)


@mutant
def a_parcel_without_an_answer_is_sent_again() -> AbstractContextManager[object]:
    return patch.object(Channel, "_close", lambda channel: channel._free(channel._error))


@mutant
def what_moves_leaves_before_it_has_come() -> AbstractContextManager[object]:
    real = Channel._recorded

    def recorded(channel: Channel) -> None:
        real(channel)
        if channel.state is ChannelStep.SENT:
            channel._come()

    return patch.object(Channel, "_recorded", recorded)


@mutant
def what_was_copied_counts_though_it_has_left() -> AbstractContextManager[object]:
    """The next home fetches copies of messages that left their old one since."""

    def taken(copying: CopyingAhead, queue: Queue) -> Any:
        found = copying._copied.get(queue.name)
        return (found.seqs, found.theirs) if found is not None else (array("Q"), array("Q"))

    return patch.object(CopyingAhead, "taken", taken)


FEATURES |= dict.fromkeys(MUTANTS.keys() - FEATURES.keys(), (MOVES,))


# -- a rolling upgrade of nodes ----------------------------------------------------------------------------------------


class _Like(int):
    """A version that no other one differs from."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


@mutant
def ends_of_different_versions_talk() -> AbstractContextManager[object]:
    real = cluster_rolling.Versions.mine
    return patch.object(cluster_rolling.Versions, "mine", lambda versions: _Like(real(versions)))


FEATURES["ends_of_different_versions_talk"] = (NAME, cluster_rolling.ROLLING)
FOCUS["ends_of_different_versions_talk"] = ("kill", "cut_link")


# -- OpenWire at gateways ----------------------------------------------------------------------------------------------


@mutant
def a_gateway_confirms_what_a_jms_client_sends() -> AbstractContextManager[object]:
    real = RoutedConnection.handle

    def handle(client: RoutedConnection, commands: list[Any], **options: Any) -> Any:
        for command in commands if client._protocol == "openwire" else ():
            if isinstance(command, Send) and command.receipt is not None and not command.transaction:
                client.peer.confirm(command.receipt)
                command.receipt = None
        return real(client, commands, **options)

    return patch.object(RoutedConnection, "handle", handle)


FEATURES["a_gateway_confirms_what_a_jms_client_sends"] = (NAME, "openwire")
FOCUS["a_gateway_confirms_what_a_jms_client_sends"] = ("kill", "cut_link")
