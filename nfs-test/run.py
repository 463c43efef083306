#!/usr/bin/env python3
"""Real brokers on real network file systems: boots guests, hurts them, checks what clients were told. docs/nfs-test.md.

Invariant: each scenario runs in namespaces of its own, whose first process ends with this one, however that ends; so
nothing it started outlives it.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # `lab`, and the amq that lies beside it

import argparse  # noqa: E402
import os  # noqa: E402

from lab import (  # noqa: E402, F401 - each file of scenarios puts its own into the list
    kernel,
    lanes,
    packages,
    preflight,
    report,
    scenario,
    scenarios_cluster,
    scenarios_doctor,
    scenarios_gfs2,
    scenarios_hung,
    scenarios_nfs3,
    scenarios_nfs4,
    scenarios_smb,
    scenarios_spark,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*", help="see --list; default: all on NFSv4")
    parser.add_argument("--list", action="store_true", help="name the scenarios and what they do")
    parser.add_argument("--all", action="store_true", help="all scenarios on all file systems")
    parser.add_argument("--self-test", action="store_true", help="only show that brokers without fencing are found out")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="scenarios at a time (default 4)")
    parser.add_argument("--keep", action="store_true", help="leave the guests running at the end, until Ctrl-C")
    parser.add_argument("--verbose", action="store_true", help="show the brokers' logs as they are written")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--write-docs", action="store_true", help="write the results into docs/tested-file-systems.md")
    # How it starts itself inside the namespaces:
    for hidden in ("--inside", "--work", "--logs", "--packages", "--preload"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if asked.inside:
        return scenario.inside(asked)
    if asked.list:
        report.print_list(scenario.SCENARIOS.values())
        return 0
    if asked.write_docs and not asked.all:
        report.say("--write-docs replaces the results of all scenarios: say --all")
        return 2
    unknown = set(asked.scenarios) - set(scenario.SCENARIOS)
    if unknown:
        report.say(f"no such scenario: {', '.join(sorted(unknown))}; see --list")
        return 2
    logs = HERE.parent / "build" / "nfs-test"
    try:
        preload = preflight.examine(logs)
    except kernel.KernelError as error:
        report.say(f"cannot run here: {error}")
        if os.environ.get("CI"):
            return 1
        report.say("skipped")
        return 0
    if preload:
        report.say("guests boot here with a preload alone: this CPU has more registers than User-mode Linux expects")
    jobs = [job for job in _jobs(asked) if can_run(job.scenario)]
    names = packages.NFS if all(job.scenario.group in ("nfs4", "nfs3") for job in jobs) else packages.ALL
    try:
        provided = packages.provide(names)
    except packages.PackagesError as error:
        report.say(f"no packages for the guests: {error}")
        return 1
    outcome = lanes.run(jobs, asked.jobs, provided, preload, logs, asked.keep, asked.verbose)
    report.print_table(outcome)
    if asked.json:
        report.write_json(outcome, Path(asked.json))
    if asked.write_docs:
        report.write_page(outcome, HERE.parent / "docs" / "tested-file-systems.md")
    return 0 if all(job.good for job in outcome.jobs) else 1


def _jobs(asked: argparse.Namespace) -> list[lanes.Job]:
    every = scenario.SCENARIOS.values()
    if asked.scenarios:
        return [lanes.Job(one) for one in every if one.name in asked.scenarios]
    if asked.self_test:
        return [lanes.Job(one) for one in every if one.unfenced]
    return [lanes.Job(one) for one in every if asked.all or one.group == "nfs4"]


def can_run(one: scenario.Scenario) -> bool:
    """In CI it runs in any case, and fails."""
    reason = one.obstacle()
    if reason:
        report.say(f"{one.name} cannot run here: {reason}")
    return not reason or bool(os.environ.get("CI"))


if __name__ == "__main__":
    sys.exit(main())
