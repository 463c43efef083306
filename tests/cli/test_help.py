"""`amq help` and the completion of shells: what a user gets before any command runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from amq_process import amq


@pytest.mark.parametrize("words", [(), ("start",), ("journal",), ("journal", "check"), ("pipeline", "run", "drain")])
def test_help_is_what_the_command_says_of_itself(words: tuple[str, ...]) -> None:
    done = amq("help", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == amq(*words, "--help").stdout


@pytest.mark.parametrize("words", [("nothing",), ("journal", "nothing"), ("start", "check")])
def test_a_command_that_is_not_there(words: tuple[str, ...]) -> None:
    done = amq("help", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"amq: no such command: amq {' '.join(words)}; amq help lists the commands\n"


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("amq jou", ["journal"]),
        ("amq journal ch", ["check"]),
        ("amq status --st", ["--store"]),
        ("amq completion z", ["zsh"]),
        ("amq nothing x", []),
    ],
)
def test_bash_completes(tmp_path: Path, words: str, completed: list[str]) -> None:
    """The script that `amq completion` wrote, in a real shell, with `amq` on its PATH."""
    if not shutil.which("bash"):
        pytest.skip("no bash")
    script, program = tmp_path / "script", tmp_path / "amq"
    script.write_text(amq("completion", "bash").stdout)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m amq "$@"\n')
    program.chmod(0o755)
    count = len(words.split()) - 1
    asked = f". {script}; COMP_WORDS=({words}); COMP_CWORD={count}; _amq_completion amq; echo ${{COMPREPLY[*]}}"
    found = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True, env=found)
    assert done.stdout.split() == completed, done.stderr


@pytest.mark.parametrize(("shell", "said"), [("zsh", "#compdef amq"), ("fish", "complete --no-files --command amq")])
def test_scripts_of_other_shells(shell: str, said: str) -> None:
    script = amq("completion", shell).stdout
    assert said in script
    assert f"_AMQ_COMPLETE={shell}_complete" in script
    asked = {"_AMQ_COMPLETE": f"{shell}_complete", "COMP_WORDS": "amq jou", "COMP_CWORD": "1"}
    asked |= {"COMP_CWORD": "jou"} if shell == "fish" else {}
    assert "journal" in amq(env=asked).stdout
