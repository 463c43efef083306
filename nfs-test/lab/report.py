"""What people see of a run: progress, the table, the page in docs/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import amq
from lab.traffic import HEART_BEATS

if TYPE_CHECKING:
    from lab.lanes import Job, Outcome
    from lab.scenario import Scenario

BEGIN, END = "<!-- begin of the results, written by nfs-test/run.py -->", "<!-- end of the results -->"
GROUPS = {"nfs4": "## NFSv4", "nfs3": "## NFSv3", "gfs2": "## GFS2", "smb": "## SMB"}
MEASURES = ("takeover", "longest pause", "default client", "last confirm", "sockets closed")
_began_s = time.monotonic()
_one_at_a_time = threading.Lock()


def say(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    with _one_at_a_time:
        sys.stdout.write(f"{time.monotonic() - _began_s:6.1f} s  {text}\n")
        sys.stdout.flush()


def print_list(scenarios: Iterable[Scenario]) -> None:
    for one in scenarios:
        sys.stdout.write(f"{one.name:22} {one.group:5} ~{one.about_s:3} s  {one.says}\n")


def print_table(outcome: Outcome) -> None:
    rows: list[tuple[str, ...]] = [("scenario", "", "lease", *MEASURES, "took")]
    rows += [_row(job) for job in outcome.jobs]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    sys.stdout.write("\n")
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    for job in sorted(outcome.jobs, key=lambda job: not job.good):  # what failed comes last: there people look first
        if job.result is not None and (not job.good or job.scenario.unfenced):
            sys.stdout.write(f"\n{job.name}: {'found out, as it must be' if job.good else 'FAILED'}\n")
            for finding in [*job.result.findings, *([job.result.error] if job.result.error else [])]:
                told = finding.partition("\n")[0] if job.good else finding  # brokers' logs may follow
                sys.stdout.write(f"  - {told}\n")
    good = sum(job.good for job in outcome.jobs)
    sys.stdout.write(f"\n{HEART_BEATS}\n{good} of {len(outcome.jobs)} as they should be, in {outcome.seconds:.0f} s\n")


def write_json(outcome: Outcome, path: Path) -> None:
    rows = [
        {"scenario": job.name, "good": job.good, "result": asdict(job.result) if job.result else None}
        for job in outcome.jobs
    ]
    path.write_text(json.dumps({"seconds": round(outcome.seconds, 1), "scenarios": rows}, indent=1) + "\n")


def write_page(outcome: Outcome, path: Path) -> None:
    """Put the results between the two marks of the page; the rest of it is people's. Not those of half a run."""
    if missing := [job.name for job in outcome.jobs if job.result is None]:
        say(f"{path.name} stays as it was: {', '.join(missing)} did not run")
        return
    head, _, rest = path.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert end, f"{path} has lost the marks between which the results are written"
    results = f"\n{_ran_on()}\n\n" + "\n\n".join(
        f"{title}\n\n{table}" for group, title in GROUPS.items() if (table := _page_table(outcome, group))
    )
    path.write_text(f"{head}{BEGIN}{results}\n{END}{tail}")


def _ran_on() -> str:
    kernel = subprocess.run(["linux.uml", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    day = datetime.now(UTC).date()
    return f"{day}, amq {amq.__version__}, guests with Linux {kernel} on {os.cpu_count()} cores, {HEART_BEATS}."


def _page_table(outcome: Outcome, group: str) -> str:
    rows = [_row(job) for job in outcome.jobs if job.scenario.group == group]
    if not rows:
        return ""
    says = {job.name: job.scenario.says for job in outcome.jobs}
    head = ("scenario", "what happens", "result", "lease", *MEASURES)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {row[0]} | {says[row[0]]} | {' | '.join(row[1:-1])} |".replace("  ", " ") for row in rows]
    return "\n".join(lines)


def _row(job: Job) -> tuple[str, ...]:
    result = job.result
    if result is None:
        return job.name, "not run", "", *("" for _ in MEASURES), ""
    good, bad = ("found out", "NOT FOUND OUT") if job.scenario.unfenced else ("ok", "FAILED")
    verdict = good if job.good else bad
    measured = [_seconds(result.measures.get(name)) for name in MEASURES]
    return job.name, verdict, f"{result.lease_s} s" if result.lease_s else "", *measured, f"{result.seconds:.0f} s"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
