"""Runs scenarios side by side, each in a process in namespaces of its own, and gathers their results.

Invariant: when `run` returns or raises, the processes that it started are gone; the kernel takes those inside with the
first process of their namespace.
"""

from __future__ import annotations

import json
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.packages import Packages
from lab.preflight import NAMESPACES
from lab.report import say
from lab.scenario import Result, Scenario

RUN = Path(__file__).resolve().parents[1] / "run.py"
SIGNS = ("signs of two masters", "confirmed messages lost", "confirmed acknowledgements undone")


@dataclass
class Job:
    """One run of a scenario."""

    scenario: Scenario
    result: Result | None = None

    @property
    def name(self) -> str:
        return self.scenario.name

    @property
    def good(self) -> bool:
        if self.result is None:
            return False
        if self.scenario.unfenced:
            return not self.result.error and any(finding.startswith(SIGNS) for finding in self.result.findings)
        return self.result.passed


@dataclass
class Outcome:
    """Everything of one call of `run.py`."""

    jobs: list[Job]
    seconds: float = 0.0
    interrupted: bool = False
    processes: list[subprocess.Popen[str]] = field(default_factory=list)


def run(
    jobs: Sequence[Job], lanes: int, packages: Packages, preload: str, logs: Path, keep: bool, verbose: bool
) -> Outcome:
    """Run all `jobs`, the longest first, `lanes` at a time. Ctrl-C or SIGTERM ends all; the results there are stay."""
    outcome = Outcome(list(jobs))
    began_s = time.monotonic()
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in sorted(jobs, key=lambda job: -job.scenario.about_s):
        waiting.put(job)
    work = Path(tempfile.mkdtemp(prefix="amq-lab."))

    def lane() -> None:
        while not outcome.interrupted:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            _run_one(job, outcome, packages, preload, work, logs / job.name, keep, verbose)

    threads = [threading.Thread(target=lane, name=f"lane {n}") for n in range(1, min(lanes, len(jobs)) + 1)]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        say("interrupted: ending the guests")
    finally:
        outcome.interrupted = True
        for process in outcome.processes:
            process.kill()
        for thread in threads:
            thread.join()
        shutil.rmtree(work, ignore_errors=True)
        outcome.seconds = time.monotonic() - began_s
    return outcome


def _run_one(
    job: Job, outcome: Outcome, packages: Packages, preload: str, work: Path, logs: Path, keep: bool, verbose: bool
) -> None:
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    here = work / logs.name
    here.mkdir()
    words = [
        *NAMESPACES,
        sys.executable,
        str(RUN),
        "--inside",
        job.scenario.name,
        "--work",
        str(here),
        "--logs",
        str(logs),
        "--packages",
        str(packages.root),
        f"--preload={preload}",
        *(["--keep"] if keep else []),
        *(["--verbose"] if verbose else []),
    ]
    with (
        open(logs / "errors", "w") as errors,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
        ) as process,
    ):  # a group of its own: Ctrl-C is for us
        outcome.processes.append(process)
        if outcome.interrupted:
            process.kill()
        assert process.stdout is not None
        for line in process.stdout:
            facts = json.loads(line)
            if "result" in facts:
                job.result = Result(**facts["result"])
                say(f"{job.name}: {'ok' if job.good else 'FAILED'} after {job.result.seconds:.0f} s")
            elif "keep" in facts:
                say(_how_to_look(job, process.pid, facts["keep"]))
            else:
                say(f"{job.name}: {facts['progress']}")
    if job.result is None and not outcome.interrupted:
        said = (logs / "errors").read_text()
        told = job.scenario
        job.result = Result(told.name, told.says, told.group, [], {}, 0, 0.0, f"ended without a result: {said}")


def _how_to_look(job: Job, pid: int, guests: dict[str, str]) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ask = f"nsenter -t {children[0] if children else pid} -n {sys.executable} {RUN.parent / 'lab' / 'agent.py'}"
    lines = [f"  {ask} {address} 'command'   # on {name}" for name, address in guests.items()]
    return "\n".join([f"{job.name}: kept until Ctrl-C. To look into it:", *lines])
