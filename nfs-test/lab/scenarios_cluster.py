"""A cluster of three guests on NFSv4: the stores of a node that dies, or is cut off, are served by the others."""

from __future__ import annotations

from lab.cluster import NODES, ClusterWorld
from lab.scenario import last_until, scenario
from lab.world import World

CUT_S = 20.0


@scenario("cluster", f"a cluster of {NODES} hosts: one loses its power, and comes back", 45, make=ClusterWorld)
def power_off(world: World) -> None:
    assert isinstance(world, ClusterWorld)
    world.build()
    node = world.busiest
    stores, since_s = world.stores_of(node), world.fault("power off")
    node.guest.power_off()
    world.wait_taken(since_s, node, stores)


@scenario(
    "cluster-partition",
    f"a cluster of {NODES} hosts: one is cut off from the file server for {CUT_S:g} s, then healed",
    60,
    make=ClusterWorld,
)
def cut_and_heal(world: World) -> None:
    assert isinstance(world, ClusterWorld)
    world.build()
    node = world.busiest
    stores, since_s = world.stores_of(node), world.fault("cutting a node off")
    node.guest.cut()
    world.wait_taken(since_s, node, stores)
    last_until(since_s + CUT_S)
    world.say("healing")
    node.guest.heal()
    world.traffic.wait_each_confirmed(20)
