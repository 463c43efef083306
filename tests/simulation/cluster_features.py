"""Features in clusters: what a store of the cluster does for the clients of gateways beside queues.

The destinations of a feature live in one store, as they must (docs/cluster.md, "What is different over several
stores"), and its checker looks at that store alone. Invariant: as in other worlds, its dice are its own.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from amq.cluster.directory import StoreTable
from tests.simulation.durable import Durables
from tests.simulation.features import Feature
from tests.simulation.leased import QUEUE, Leases
from tests.simulation.openwire import FROM_STOMP, MOVED, TO_STOMP, OpenWire
from tests.simulation.openwire import QUEUE as JMS

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld, StoreWorld

# Each with the keys of its destinations.
CLUSTER_FEATURES: dict[str, tuple[type[Feature], tuple[str, ...]]] = {
    "durable": (Durables, ("t",)),
    "leases": (Leases, (QUEUE,)),
    "openwire": (OpenWire, (JMS, MOVED, TO_STOMP, FROM_STOMP)),
}


def add_feature(world: ClusterWorld, name: str) -> None:
    """Add the feature of that name to `world`, which has not begun."""
    kind, keys = CLUSTER_FEATURES[name]
    dice = Random(f"{name} in cluster {world.seed}")
    home: StoreWorld = dice.choice(world.stores[:-1])
    feature = kind(home.oracle, world.seed)
    home.oracle.checkers.append(feature)
    home._made.append(feature)
    world._made.append(feature)
    for slot in home.slots:
        destinations = (*slot.config.destinations, *feature.destinations)
        slot.config = replace(slot.config, destinations=destinations, **feature.options())
    table = world.tables.newest
    placement = table.placement
    for key in keys:
        placement = placement.placed(key, home.name).settled()
    placement = replace(placement, number=1, since=1, before=None)
    world.tables.made[0] = (-1e9, StoreTable(table.locations, placement))
    transports = [slot.config.transports[0] for slot in world.gateways]  # of STOMP; a client takes no auto://
    if isinstance(feature, OpenWire):
        feature.open(world.gateways)
    for make in feature.applications():
        uris = [f"{url}?heartBeat=1000&connectTimeout=1000" for url in transports]
        dice.shuffle(uris)
        url = f"failover:({','.join(uris)})?maxReconnectDelay={dice.choice((200, 2000))}"
        world._add_applications([make], url, feature.dice)
