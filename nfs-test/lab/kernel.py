"""User-mode Linux: how it is started, whether it boots on this CPU, and the preload that helps it where it does not.

Invariant: a trial guest's processes are in a process group of their own, which is killed before `boots` returns.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNEL = "linux.uml"
COMPILERS = ("cc", "gcc", "clang")
RUNS = "a program runs in the guest"  # as in trial.sh
TRIAL_DEADLINE_S = 60.0
SAID_BYTES_MAX = 64 * 1024


class KernelError(Exception):
    """No guest boots here."""


def command(name: str, work: Path, init: Path, memory: str) -> list[str]:
    """The words that start guest `name`; its root is the host's, read-only. More arguments may follow."""
    return [
        KERNEL,
        f"mem={memory}",
        f"umid={name}",
        f"uml_dir={work}",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"init={init}",
        "con=null",
        "con0=fd:0,fd:1",
        "ssl=null",
        "quiet",
        "panic=1",
    ]


def environment(work: Path, preload: str) -> dict[str, str]:
    """What it must find in its environment: its memory is a file in `work`."""
    return {**os.environ, "TMPDIR": str(work), **({"LD_PRELOAD": preload} if preload else {})}


def find_preload(directory: Path, already: Sequence[str] = ()) -> str:
    """What guests need as LD_PRELOAD on this CPU, "" = nothing, by trial. It is compiled into `directory` where it is
    needed. `already`: libraries that the trial is to load besides. Raises KernelError where no guest boots either way.
    """
    plain = boots(" ".join(already))
    if not plain:
        return ""
    if not (compiler := next(filter(None, map(shutil.which, COMPILERS)), None)):
        raise KernelError(
            f"a trial guest does not boot ({plain}). On CPUs whose register state is larger than User-mode Linux "
            f"expects (AMX) a preload helps, and no compiler is here to make it: apt-get install gcc libc6-dev"
        )
    preload = _compiled(compiler, directory)
    if helped := boots(" ".join([str(preload), *already])):
        raise KernelError(f"a trial guest does not boot: {plain}. Nor with the preload for large registers: {helped}")
    return str(preload)


def boots(preload: str) -> str:
    """Start a guest and wait until a program runs in it. Returns why none does, "" = it does."""
    with tempfile.TemporaryDirectory(prefix="amq-lab-trial.") as directory:
        work = Path(directory)
        words = command("trial", work, HERE / "trial.sh", "64M")
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            env=environment(work, preload),
        ) as process:
            try:
                said = _listen(process)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
    if RUNS in said:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "[<" not in line]  # but for the call trace
    telling = [line for line in lines if "panic" in line.lower() or "failed" in line.lower()]
    return "; ".join((telling or lines)[-2:]) or "it ended, or hung, without a word"


def _listen(process: subprocess.Popen[bytes]) -> str:
    """What it says until a program runs, until it ends, or until it took too long."""
    assert process.stdout is not None
    deadline, said = time.monotonic() + TRIAL_DEADLINE_S, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while RUNS.encode() not in said and len(said) < SAID_BYTES_MAX:
            if not selector.select(deadline - time.monotonic()):
                break
            if not (more := os.read(process.stdout.fileno(), 4096)):
                break
            said += more
    return said.decode(errors="replace")


def _compiled(compiler: str, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / "xstate.so"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        new = Path(scratch, made.name)
        words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(new), str(HERE / "xstate.c"), "-ldl"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelError(
                f"cannot compile the preload for CPUs with a large register state: {' '.join(words)}: "
                f"{done.stderr.strip()}. Its headers are in libc6-dev: apt-get install gcc libc6-dev"
            )
        new.rename(made)  # whole, or not at all: another lab may start beside
    return made
