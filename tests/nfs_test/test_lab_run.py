"""The lab without guests: what counts as passed, what is written for people, what happens where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import (
    report,
    scenarios_doctor,
    scenarios_gfs2,
    scenarios_hung,
    scenarios_nfs3,
    scenarios_nfs4,
    scenarios_smb,
    scenarios_spark,
)
from lab.lanes import Job, Outcome
from lab.preflight import obstacle
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


def test_the_page_keeps_what_people_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_ran_on", lambda: "today")
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{report.BEGIN}\nold\n{report.END}\n\nThe end.\n")
    outcome = Outcome([job("kill", takeover=2.34), job("gfs2-kill", ("lost",))])
    report.write_page(outcome, page)
    first = page.read_text()
    assert first.startswith("# Title\n\n<!--")
    assert first.endswith("-->\n\nThe end.\n")
    assert "old" not in first
    assert "| kill | the master's process is killed | ok | 10 s | 2.3 s | | | |" in first
    assert "| gfs2-kill | the master's process is killed | FAILED |" in first
    assert "SMB" not in first
    report.write_page(outcome, page)
    assert page.read_text() == first


def test_what_failed_is_told_last_and_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    bad = job("kill", ("no broker took over\n{the log of a broker}",))
    found_out = job("freeze-no-fencing", ("signs of two masters: m\n{the log of another}",))
    report.print_table(Outcome([bad, found_out], seconds=12.0))
    said = capsys.readouterr().out
    assert "{the log of another}" not in said
    in_full = "kill: FAILED\n  - no broker took over\n{the log of a broker}\n"
    assert said.index("signs of two masters: m") < said.index(in_full)
    assert said.endswith("1 of 2 as they should be, in 12 s\n")


def test_an_interrupted_run_does_not_replace_the_results(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{report.BEGIN}\nold\n{report.END}\n")
    report.write_page(Outcome([job("kill"), Job(SCENARIOS["freeze"])]), page)
    assert page.read_text() == f"{report.BEGIN}\nold\n{report.END}\n"


def test_the_list_names_every_scenario() -> None:
    done = subprocess.run([sys.executable, RUN, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SCENARIOS)
    modules = (
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


@pytest.mark.parametrize(("ci", "runs"), [("", False), ("true", True)])
def test_a_scenario_without_its_programs_is_left_out(monkeypatch: pytest.MonkeyPatch, ci: str, runs: bool) -> None:
    monkeypatch.syspath_prepend(RUN.parent)
    import run

    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert run.can_run(SCENARIOS["spark"]) == runs
    assert run.can_run(SCENARIOS["kill"])


def test_an_unknown_scenario_is_refused() -> None:
    done = subprocess.run([sys.executable, RUN, "kil"], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "no such scenario: kil" in done.stdout


def test_results_of_some_scenarios_do_not_replace_those_of_all() -> None:
    words = [sys.executable, RUN, "kill", "--write-docs"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "say --all" in done.stdout) == (2, True)


def test_the_obstacle_names_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("another obstacle comes first")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install apt dpkg e2fsprogs iproute2 user-mode-linux util-linux" in obstacle()
