"""The lab without guests: what counts as passed, what is written for people, what happens where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import (
    scenarios_cluster,
    scenarios_doctor,
    scenarios_gfs2,
    scenarios_hung,
    scenarios_nfs3,
    scenarios_nfs4,
    scenarios_smb,
    scenarios_spark,
)
from lab.lanes import Job
from lab.scenario import SCENARIOS, Result

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "nfs-test" / "run.py"


def job(name: str, findings: tuple[str, ...] = (), error: str = "", **measures: float) -> Job:
    told = SCENARIOS[name]
    return Job(told, Result(name, told.says, told.group, list(findings), measures, 10, 20.0, error))


def test_what_counts_as_passed() -> None:
    assert job("kill").good
    assert not job("kill", ("confirmed messages lost: m",)).good
    assert not job("kill", error="no kernel").good
    assert not Job(SCENARIOS["kill"]).good, "not run"


def test_what_counts_as_found_out() -> None:
    assert SCENARIOS["freeze-no-fencing"].unfenced
    assert job("freeze-no-fencing", ("signs of two masters: …",)).good
    assert not job("freeze-no-fencing").good
    assert not job("freeze-no-fencing", ("no broker said so in time",)).good, "slow is not unsafe"
    assert not job("freeze-no-fencing", ("signs of two masters: …",), error="no kernel").good


def test_the_list_names_every_scenario() -> None:
    done = subprocess.run([sys.executable, RUN, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SCENARIOS)
    modules = (
        scenarios_cluster,
        scenarios_doctor,
        scenarios_gfs2,
        scenarios_hung,
        scenarios_nfs3,
        scenarios_nfs4,
        scenarios_smb,
        scenarios_spark,
    )
    assert {told.body.__module__ for told in SCENARIOS.values()} == {module.__name__ for module in modules}


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_where_it_cannot_run_it_says_why(tmp_path: Path, ci: str, code: int) -> None:
    nothing = {"PATH": str(tmp_path), "CI": ci, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, RUN, "kill"], stdout=subprocess.PIPE, text=True, env=nothing, check=False)
    assert done.returncode == code
    assert "cannot run here: " in done.stdout
    assert "user-mode-linux" in done.stdout or os.uname().machine != "x86_64"


def test_an_unknown_scenario_is_refused() -> None:
    done = subprocess.run([sys.executable, RUN, "kil"], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "no such scenario: kil" in done.stdout
