"""The list of scenarios, and running one of them inside the namespaces that `run.py` made for it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab import checker
from lab.errors import ExpectationError
from lab.guest import Place
from lab.history import now_s
from lab.packages import Packages
from lab.world import World

REPOSITORY = Path(__file__).resolve().parents[2]
Body = Callable[[World], None]


@dataclass(frozen=True)
class Scenario:
    """`make` and `world`: a kind of world and its arguments. `group`: nfs4, nfs3, gfs2 or smb. `about_s`: how long it
    takes, for the order. `unfenced`: with brokers whose fencing is taken out, which the checker must find out.
    `obstacle` says why it cannot run here, though others can; "" = it can."""

    name: str
    says: str
    body: Body
    group: str
    about_s: int
    unfenced: bool
    obstacle: Callable[[], str]
    world: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[..., World] = World


@dataclass
class Result:
    """`findings` empty = passed. `error`: the lab itself failed, which passes nothing."""

    name: str
    says: str
    group: str
    findings: list[str]
    measures: dict[str, float]
    lease_s: int
    seconds: float
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.findings and not self.error


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str,
    says: str,
    about_s: int,
    group: str = "nfs4",
    unfenced: bool = False,
    obstacle: Callable[[], str] = lambda: "",
    make: Callable[..., World] = World,
    **world: Any,
) -> Callable[[Body], Body]:
    """Put a function into the list."""

    def add(body: Body) -> Body:
        assert name not in SCENARIOS
        SCENARIOS[name] = Scenario(name, says, body, group, about_s, unfenced, obstacle, world, make)
        return body

    return add


def inside(asked: argparse.Namespace) -> int:
    """Run scenario `asked.inside` in this process, which is the first of its process namespace, and tell the result."""
    told = SCENARIOS[asked.inside]
    work, logs = Path(asked.work), Path(asked.logs)
    subprocess.run(["mount", "-t", "tmpfs", "amq-lab", str(work)], check=True)  # seen by us alone, and gone with us
    packages = Packages(Path(asked.packages), f"{os.uname().machine}-linux-gnu")
    amq = (sys.executable, "-m", "amq.cli.main")
    environment = {"PYTHONPATH": str(REPOSITORY), "HOME": "/root"}
    place = Place(work, logs, sys.executable, amq, packages, environment, asked.preload)
    command = (sys.executable, str(Path(__file__).with_name("unfenced.py"))) if told.unfenced else amq
    world = told.make(place, command, lambda progress: tell({"progress": progress}), asked.verbose, **told.world)
    result = Result(told.name, told.says, told.group, [], world.measures, world.files.lease_s, 0.0)
    began_s = time.monotonic()
    try:
        _run(told, world, result)
    finally:
        world.history.dump(str(logs / "history.jsonl"))
        result.seconds = time.monotonic() - began_s
        tell({"result": asdict(result)})
    if asked.keep:
        tell({"keep": {guest.name: guest.address for guest in world.guests.values()}})
        sys.stdin.read()  # until the one who started us goes
    world.close()
    return 0


def _run(told: Scenario, world: World, result: Result) -> None:
    try:
        try:
            told.body(world)
        except ExpectationError as error:
            world.findings.append(str(error))
        result.findings = world.finish()
    except ExpectationError as error:
        result.findings = [*world.findings, str(error), *checker.check(world.history)]
    except Exception:  # noqa: BLE001 - LabError or a mistake of ours: reported, and passes nothing
        result.findings = world.findings
        result.error = traceback.format_exc()


def tell(facts: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def last_until(until_s: float) -> None:
    """The fault lasts so long."""
    while (left_s := until_s - now_s()) > 0:
        time.sleep(left_s)
