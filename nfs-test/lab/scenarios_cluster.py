"""A cluster of three guests on NFSv4: one node serves what the others leave, and nothing is lost."""

from __future__ import annotations

from lab.cluster import NODES, ClusterWorld
from lab.scenario import scenario
from lab.world import World


@scenario(
    "cluster",
    f"a cluster of {NODES} hosts: one loses its power while another is cut off from the file server, then healed",
    120,
    make=ClusterWorld,
)
def power_off_and_cut(world: World) -> None:
    assert isinstance(world, ClusterWorld)
    world.build()
    dead, cut, left = sorted(world.brokers, key=lambda node: -len(world.stores_of(node)))
    stores, since_s = [*world.stores_of(dead), *world.stores_of(cut)], world.fault("power off of one, cutting another")
    cut.guest.cut()
    dead.guest.power_off()
    world.wait_served_by(left, since_s, stores)
    world.say("healing")
    cut.guest.heal()
    world.traffic.wait_each_confirmed(20, 180.0)
