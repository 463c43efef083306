"""Which features a world has: its seed says so, each with the same chance, so that most worlds stay cheap."""

from __future__ import annotations

from random import Random

from tests.simulation.bulky import Bulky
from tests.simulation.durable import Durables
from tests.simulation.features import Feature
from tests.simulation.glitched import Glitched
from tests.simulation.hung import Hung
from tests.simulation.leased import Leases
from tests.simulation.openwire import OpenWire
from tests.simulation.successions import Successions
from tests.simulation.two_phase import TwoPhase
from tests.simulation.upgrade import Upgrade

CHANCE = 0.12
FEATURES: dict[str, type[Feature]] = {
    "two-phase": TwoPhase,
    "durable": Durables,
    "leases": Leases,
    "bulky": Bulky,
    "successions": Successions,
    "glitched": Glitched,
    "hung": Hung,
    "openwire": OpenWire,
}
OWN_DICE = ("glitched", "hung", "openwire")  # the seeds of earlier features keep their histories
ASIDE: dict[str, type[Feature]] = {"upgrade": Upgrade}  # no seed has these; a test asks for them


def choose(seed: int) -> tuple[str, ...]:
    """Names of those of that seed."""
    dice = Random(f"features of {seed}")
    found = [name for name in FEATURES if (Random(f"{name} of {seed}") if name in OWN_DICE else dice).random() < CHANCE]
    if "two-phase" in found and "openwire" in found:  # each knows its own prepared transactions alone
        found.remove("openwire")
    return tuple(found)
