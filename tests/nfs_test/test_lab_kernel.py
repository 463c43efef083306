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
