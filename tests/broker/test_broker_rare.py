"""What a turn asks with one question for rare work: see `amq.broker.broker.RARE`."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from pathlib import Path

from amq.broker.broker import RARE
from tests.broker.world import World


def test_containers_of_rare_work_are_never_replaced(tmp_path: Path) -> None:
    """A turn keeps them from the beginning on: one that was replaced would hold work that no turn sees."""
    broker = World(str(tmp_path)).broker
    for path in RARE:
        owner, _, name = path.rpartition(".")
        source = inspect.getsource(inspect.getmodule(type(attrgetter(owner)(broker))))  # type: ignore[arg-type]
        made = re.findall(rf"\bself\.{name}(?:: [^=\n]+)?(?:, [\w.]+)* = ", source)
        assert len(made) == 1, f"{path} is assigned {len(made)} times"
