"""Endless trial: clients work through a group of brokers that is hurt at random, and every promise is checked.

Rounds of some seconds each: producers and consumers work on fresh queues while masters are killed with -9, paused,
stopped, and the lock file is deleted, replaced or held by a stranger; then everything is mended, the queues are
drained, and the histories of all clients are checked (for what: see bench/checker.py). The store lives through all
rounds. A seed fixes what is done and in what order; the moments are the machine's. The history of a round that fails
is kept, with the brokers' logs and the store, and the soak ends.

Exit code: 0 = all promises kept, 1 = a promise broken (or nobody served in time), 2 = it could not be run, or ended
before the first round did.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import amq_clients, brokers, cli, clients, history
from bench.checker import Violation, check
from bench.clients import HEARTBEAT_MS, Scoreboard, WorkerPlan
from bench.faults import WEIGHTS, Surgeon

SERVICE_TIMEOUT_S = 60.0
DRAIN_IDLE_S = 20.0
DRAIN_QUIET_S = 1.5
JOIN_S = 30.0
STEP_S = 0.05
PROGRESS_S = 5.0
EXAMPLES = (
    "--quick",
    "--minutes 60 --json soak.json",
    "--kills 1000 --brokers 3 --keep-alive-ms 500",
    "--client amq --minutes 10",
    "--seed 4711 --only kill_master --only pause_master_and_delete_lock",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """`pairs` = queues with one producer and one consumer; one more queue is shared by `shared` of each.

    `amq_client`: the workers use `amq.connect` instead of raw sockets.
    """

    pairs: int = 2
    shared: int = 2
    per_s: float = 200.0
    round_s: float = 20.0
    every_s: float = 1.5
    only: frozenset[str] = frozenset()
    amq_client: bool = False


def plans(settings: Settings, ports: list[int], seed: int) -> list[WorkerPlan]:
    """Who takes part in the round with that seed."""
    result: list[WorkerPlan] = []

    def add(worker: str, role: str, queue: str, ack: str) -> None:
        index = len(result)
        result.append(
            WorkerPlan(worker, role, queue, tuple(ports), seed * 1000 + index, index, per_s=settings.per_s, ack=ack)
        )

    for pair in range(settings.pairs):
        ack = "client" if pair % 2 else "client-individual"
        for role in ("producer", "consumer"):
            add(f"pair{pair}.{role}", role, f"/queue/soak.{seed}.pair{pair}", ack)
    for number in range(settings.shared):
        for role in ("producer", "consumer"):
            add(f"shared.{role}{number}", role, f"/queue/soak.{seed}.shared", "client-individual")
    return result


class Round:
    """One round: workers, faults, drain, check."""

    def __init__(self, group: brokers.BrokerGroup, settings: Settings, seed: int, directory: Path) -> None:
        self.group = group
        self.settings = settings
        self.seed = seed
        self.directory = directory
        self.plans = plans(settings, group.ports, seed)
        context = multiprocessing.get_context("fork")
        self.board = Scoreboard(context, len(self.plans))
        self.surgeon = Surgeon(group, seed)
        work = amq_clients.work if settings.amq_client else clients.work
        self.processes = [
            context.Process(target=work, args=(plan, self.board, directory), daemon=True) for plan in self.plans
        ]
        self.violations: list[Violation] = []

    def run(self, progress: Any) -> list[Violation]:
        """Everything, to the end. Violations found; none = all promises were kept."""
        for process in self.processes:
            process.start()
        try:
            self._hurt(progress)
            self._drain(progress)
        except brokers.BrokerProcessError as error:
            self.violations.append(Violation("broker", str(error)))
        finally:
            self.board.stop_producing.value = True
            self.board.stop_consuming.value = True
            self._join()
            (self.directory / "faults.txt").write_text("\n".join(self.surgeon.log) + "\n")
        if not self.violations:
            self.violations = check(history.read(self.directory)) + journal_check(self.group)
        return self.violations

    def totals(self) -> dict[str, int]:
        """Sends confirmed, acknowledgements confirmed, those with an unknown outcome; SEND and MESSAGE frames."""
        sums: Counter[str] = Counter()
        for plan in self.plans:
            sums["sent" if plan.role == "producer" else "acked"] += self.board.confirmed[plan.index]
            sums["sends" if plan.role == "producer" else "deliveries"] += self.board.touched[plan.index]
            sums["unknown"] += self.board.unknown[plan.index]
        return dict(sums)

    def _hurt(self, progress: Any) -> None:
        moments = random.Random(self.seed)
        end_s = time.monotonic() + self.settings.round_s
        next_s = time.monotonic() + moments.expovariate(1 / self.settings.every_s)
        while time.monotonic() < end_s:
            self.surgeon.mend()
            self._watch_workers()
            if time.monotonic() >= next_s:
                self.surgeon.hurt(set(self.settings.only))
                next_s = time.monotonic() + moments.expovariate(1 / self.settings.every_s)
            progress(self)
            time.sleep(STEP_S)
        while self.surgeon.wounds:
            self.surgeon.mend()
            time.sleep(STEP_S)
        for broker in self.group.brokers:
            broker.check()
        self.group.wait_master(SERVICE_TIMEOUT_S)

    def _drain(self, progress: Any) -> None:
        """No more new messages; wait until all that was confirmed has been acknowledged, or nothing moves any more.

        An acknowledgement whose receipt was lost with its connection may have been stored or not, and is counted by
        each consumer that had the message: only when nothing came for a while it is sure that nothing will.
        """
        self.board.stop_producing.value = True
        seen: dict[str, int] = {}
        moved_s = time.monotonic()
        while time.monotonic() - moved_s < DRAIN_IDLE_S:
            self._watch_workers()
            totals = self.totals()
            producing = any(
                process.is_alive()
                for process, plan in zip(self.processes, self.plans, strict=True)
                if plan.role == "producer"
            )
            if totals != seen:
                seen, moved_s = totals, time.monotonic()
            settled = totals["acked"] + totals["unknown"] >= totals["sent"]
            if not producing and settled and time.monotonic() - moved_s > DRAIN_QUIET_S:
                return
            progress(self)
            time.sleep(STEP_S)
        # Not everything came back. What is missing the checker finds; this is for what it cannot see.
        if producing:
            self.violations.append(Violation("service", f"no receipt for {DRAIN_IDLE_S} s from a master that answers"))

    def _watch_workers(self) -> None:
        for process, plan in zip(self.processes, self.plans, strict=True):
            if process.exitcode:
                raise brokers.BrokerProcessError(f"{plan.worker} died of what the broker sent (see its traceback)")

    def _join(self) -> None:
        deadline = time.monotonic() + JOIN_S
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def journal_check(group: brokers.BrokerGroup) -> list[Violation]:
    """What `amq journal check` says of the store while the master works on it."""
    if group.kind != "amq":
        return []
    command = [sys.executable, "-m", "amq.cli.main", "journal", "check", "--store", str(group.store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=brokers.ROOT, check=False)
    said = done.stdout + done.stderr
    if "No such command" in said:
        print("this amq has no `journal check`: the journal is not checked", file=sys.stderr)
        return []
    return [Violation("journal", f"exit code {done.returncode}: {said[-2000:]}")] if done.returncode else []


class Soak:
    """Rounds until an end is reached or a promise is broken."""

    def __init__(self, group: brokers.BrokerGroup, settings: Settings, seed: int, keep: Path) -> None:
        self.group = group
        self.settings = settings
        self.seed = seed
        self.keep = keep
        self.start_s = time.monotonic()
        self.rounds = 0
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.evidence: Path | None = None  # where that of a broken promise is
        self._printed_s = 0.0

    def run(self, seconds: float | None, kills: int | None) -> None:
        """The time begins when the brokers run: one round at least is played."""
        self.start_s = time.monotonic()
        while not self.violations:
            if seconds is not None and time.monotonic() - self.start_s >= seconds:
                return
            if kills is not None and self.faults["kill_master"] >= kills:
                return
            seed = self.seed + self.rounds
            directory = _made(self.keep, f"round-{seed}")
            trial = Round(self.group, self.settings, seed, directory)
            try:
                self.violations = trial.run(self._progress)
            except (KeyboardInterrupt, SystemExit):  # what is not judged is not an evidence
                shutil.rmtree(directory)
                raise
            self.rounds += 1
            self.faults += trial.surgeon.counts
            self.totals.update(trial.totals())
            if self.violations:
                self._keep_evidence(directory)
            else:
                shutil.rmtree(directory)

    def _keep_evidence(self, directory: Path) -> None:
        self.evidence = directory
        self.group.close(keep=True)
        (directory / "violations.txt").write_text("\n".join(map(str, self.violations)) + "\n")
        for path in self.group.directory.glob("*.log"):
            shutil.copy(path, directory / f"broker-{path.stem}.txt")
        shutil.copytree(self.group.store, directory / "store", dirs_exist_ok=True)

    def _progress(self, trial: Round) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s < PROGRESS_S:
            return
        self._printed_s = now_s
        totals = self.totals + Counter(trial.totals())
        faults = self.faults + trial.surgeon.counts
        hurt = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in faults.most_common())
        print(
            f"{now_s - self.start_s:7.0f} s  round {self.rounds + 1} (seed {trial.seed})  {totals['sent']:,} sent, "
            f"{totals['acked']:,} acknowledged, {totals['deliveries'] - totals['acked']:,} redelivered or open; {hurt}",
            file=sys.stderr,
            flush=True,
        )

    def report(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "kind": self.group.kind,
            "brokers": len(self.group.brokers),
            "seconds": round(time.monotonic() - self.start_s, 1),
            "rounds": self.rounds,
            "faults": dict(self.faults),
            "totals": dict(self.totals),
            "violations": [violation._asdict() for violation in self.violations],
            "passed": self.rounds > 0 and not self.violations,
        }


def _made(parent: Path, name: str) -> Path:
    """A new directory of that name; with a number behind it, where an earlier soak of that seed left its evidence."""
    for number in itertools.count(1):
        directory = parent / (name if number == 1 else f"{name}.{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        return directory
    raise AssertionError("numbers do not end")


def main() -> None:
    parser = cli.parser("soak", __doc__, EXAMPLES, peers=False)
    defaults = Settings()
    parser.add_argument("--minutes", type=float, help="end after so long (default: never)")
    parser.add_argument("--kills", type=int, help="end after so many kills of a master")
    parser.add_argument("--brokers", type=int, default=3, help="on the one store (default %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat the faults of an earlier soak (default: a new one)")
    parser.add_argument("--keep-alive-ms", type=int, default=1000, help="lockKeepAlivePeriod (default %(default)s)")
    parser.add_argument("--round", type=float, default=defaults.round_s, metavar="S", help="default %(default)s s")
    parser.add_argument("--every", type=float, default=defaults.every_s, metavar="S", help="mean time between faults")
    parser.add_argument("--rate", type=float, default=defaults.per_s, help="messages/s of each producer")
    parser.add_argument("--client", choices=("raw", "amq"), default="raw", help="sockets, or amq.connect (raw)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=list(WEIGHTS),
        metavar="FAULT",
        help="of bench/faults.py (repeatable)",
    )
    parser.add_argument("--keep", default="soak-failures", metavar="DIR", help="where histories of failures stay")
    parser.add_argument("--kind", choices=sorted(brokers.KINDS), default="amq", help="default %(default)s")
    args = parser.parse_args()
    cli.terminate_on_signal()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}", file=sys.stderr)
    settings = Settings(
        per_s=args.rate,
        round_s=args.round,
        every_s=args.every,
        only=frozenset(args.only),
        amq_client=args.client == "amq",
    )
    minutes = args.minutes
    if args.quick:
        settings = dataclasses.replace(settings, round_s=10.0)
        minutes = 0.1
    options = {"heartBeatSend": f"{HEARTBEAT_MS}ms"} | cli.amq_options(args)
    group = brokers.BrokerGroup(
        args.kind, args.brokers, keep_alive_ms=args.keep_alive_ms, directory=args.dir, options=options
    )
    soak = Soak(group, settings, seed, Path(args.keep))
    try:
        with group:
            soak.run(None if minutes is None else minutes * 60, args.kills)
    except brokers.BrokerProcessError as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the round that was running is not judged", file=sys.stderr)
    report = soak.report()
    if args.json:
        cli.show(args, report)
    done = {"rounds": soak.rounds, "seconds": report["seconds"]} | report["faults"] | report["totals"]
    verdict = [f"seed {seed}: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in done.items())]
    verdict += [str(violation) for violation in soak.violations]
    failed = f"FAILED: see {soak.evidence}" if soak.rounds else "no round came to its end: nothing was judged"
    verdict.append("PASSED" if report["passed"] else failed)
    print("\n".join(verdict), file=sys.stderr if args.json == "-" else sys.stdout)
    sys.exit(0 if report["passed"] else 1 if soak.rounds else 2)


if __name__ == "__main__":
    main()
