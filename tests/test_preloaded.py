"""Processes that are forked from one that has imported `amq` are as those that a shell starts."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import DEADLINE_S
from tests.preloaded import ROOT, AmqProcess
from tests.processes import children

START = ("start", "--transport", "stomp://127.0.0.1:0", "-o", "logFormat=json", "--store")
LOG: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
FRESH = {"PYTHONHASHSEED": "5"}  # another interpreter than the one that was preloaded


def amq(*words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with AmqProcess(words, cwd=ROOT, env=os.environ | (env or {}), **pipes) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def is_preloaded(process: AmqProcess) -> bool:
    return b"tests.preloaded" in Path(f"/proc/{process.pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    "words", [("--version",), ("status", "--store", "/nowhere"), ("nonsense",), ("config", "show", "--json")]
)
def test_output_and_exit_code_are_those_of_a_fresh_process(words: tuple[str, ...]) -> None:
    forked, fresh = amq(*words), amq(*words, env=FRESH)
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert forked.stdout + forked.stderr


def test_it_is_our_child_and_ends_by_signals(tmp_path: Path) -> None:
    with AmqProcess([*START, str(tmp_path / "s")], cwd=ROOT, **LOG, process_group=0) as process:
        assert process.stdout is not None
        while b"serving clients" not in process.stdout.readline():
            assert process.poll() is None
        assert is_preloaded(process)
        assert process.pid in children()[os.getpid()]
        assert os.getpgid(process.pid) == process.pid
        assert os.readlink(f"/proc/{process.pid}/fd/1") == os.readlink(f"/proc/self/fd/{process.stdout.fileno()}")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.kill()
        assert process.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_test_that_fails_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), AmqProcess([*START, str(tmp_path / "s")], cwd=ROOT, **LOG) as process:
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL


def test_variables_are_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AMQ_STORE", str(tmp_path / "from-the-environment"))
    assert b"from-the-environment" in amq("status").stderr
    monkeypatch.delenv("AMQ_STORE")
    assert b"from-the-environment" not in amq("status").stderr


def test_it_reads_and_writes_where_it_is_told(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        done = amq("status", "--store", str(tmp_path / "none"), stdout=out, stderr=subprocess.STDOUT)
    assert done.returncode == 4
    assert b"STORE_MISSING" in (tmp_path / "out").read_bytes()


def test_another_interpreter_is_started_afresh(tmp_path: Path) -> None:
    words = [*START, str(tmp_path / "s")]
    with AmqProcess(words, cwd=ROOT, **LOG, env=os.environ | FRESH) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_preloaded(process)
        process.kill()


def test_it_dies_with_the_test_run(tmp_path: Path) -> None:
    program = f"""
import os, signal, subprocess
from tests.preloaded import ROOT, AmqProcess
process = AmqProcess({[*START, str(tmp_path / "s")]!r}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
assert any(b"serving clients" in line for line in process.stdout), "it has ended"
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    try:
        process = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return  # it is gone already
    try:
        assert select.select([process], [], [], 30)[0], "it still runs"
    finally:
        os.close(process)
