"""Whether this machine can run the lab, and if not, why not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab import kernel

PROGRAMS = {
    "linux.uml": "user-mode-linux",
    "mkfs.ext4": "e2fsprogs",
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
# A network, mounts and process ids of its own; the first process in it ends when we do, and all others with that one.
NAMESPACES = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
)


def examine(directory: Path) -> str:
    """What guests need as LD_PRELOAD here, "" = nothing; it is made in `directory`. Raises KernelError where the lab
    cannot run, with the reason."""
    if reason := obstacle():
        raise kernel.KernelError(reason)
    return kernel.find_preload(directory)


def obstacle() -> str:
    """What is missing for a trial of a guest; "" = nothing."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"User-mode Linux exists for Linux on x86_64, this is {platform.system()} on {platform.machine()}"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        names = sorted({PROGRAMS[program] for program in missing})
        return f"missing: {', '.join(missing)} (Debian, Ubuntu: apt-get install {' '.join(names)})"
    if os.geteuid() != 0:
        return "namespaces and taps need root"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing: no taps for the guests' network cards"
    return _refused([*NAMESPACES, "ip", "tuntap", "add", "lab", "mode", "tap"]) or _refused(["linux.uml", "--version"])


def _refused(words: Sequence[str]) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return f"{' '.join(words)}: {done.stderr.strip() or f'exit code {done.returncode}'}" if done.returncode else ""
