"""A trial guest boots, also on a host that acts as one with a CPU whose registers User-mode Linux cannot set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lab import kernel
from lab.preflight import PROGRAMS

REFUSED = re.compile(r"set fp regs failed|put_fp_registers")  # one kernel says this, another that
LARGE_REGISTERS = Path(__file__).with_name("large_registers.c")


@pytest.fixture
def large_registers(tmp_path: Path) -> str:
    """A preload that makes this host such a one."""
    for program in (kernel.KERNEL, "cc"):
        if not shutil.which(program):
            why = f"no {program}: apt-get install {PROGRAMS.get(program, 'gcc libc6-dev')}"
            if os.environ.get("CI") == "true":
                pytest.fail(why)
            pytest.skip(why)
    made = tmp_path / "large_registers.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, LARGE_REGISTERS, "-ldl"], check=True)
    return str(made)


@pytest.mark.deep
def test_the_preload_cures_a_panic(large_registers: str, tmp_path: Path) -> None:
    assert REFUSED.search(kernel.boots(large_registers))
    assert kernel.find_preload(tmp_path / "made", [large_registers]) == str(tmp_path / "made" / "xstate.so")


def test_without_a_compiler_it_says_what_to_install(
    large_registers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "COMPILERS", ())
    with pytest.raises(kernel.KernelError, match=rf"({REFUSED.pattern}).*apt-get install gcc libc6-dev"):
        kernel.find_preload(tmp_path, [large_registers])


def test_a_kernel_that_never_boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said last is told."""
    fake = tmp_path / "linux.uml"
    fake.write_text("#!/bin/sh\necho Kernel panic - not syncing: no\necho more\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel, "COMPILERS", ())
    assert kernel.boots("") == "Kernel panic - not syncing: no"
    fake.write_text("#!/bin/sh\nexit 1\n")
    assert kernel.boots("") == "it ended, or hung, without a word"
