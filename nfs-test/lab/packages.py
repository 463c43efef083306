"""What guests need and the host lacks: Debian packages, unpacked into a directory that guests lay over the host's own
root. The host itself is not changed, nothing is installed on it.

Invariant: a directory in the cache is complete: it is renamed into place when it is whole. Its name is a hash of what
it is built from, so another list of packages or another release of the system gets another directory.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODULES = "/usr/lib/uml/modules"
NFS = ("kmod", "keyutils", "nfs-common", "nfs-kernel-server", "rpcbind")
ALL = (
    *NFS,
    "cifs-utils",
    "corosync",
    "dlm-controld",
    "gfs2-utils",
    "samba",
)


class PackagesError(Exception):
    """The packages cannot be had here."""


@dataclass(frozen=True)
class Packages:
    """`root`: the unpacked packages; `multiarch`: the name of its library directory."""

    root: Path
    multiarch: str


def cache_directory() -> Path:
    """Where unpacked packages are kept: $AMQ_LAB_CACHE, else ~/.cache/amq/nfs-test."""
    moved = os.environ.get("AMQ_LAB_CACHE")
    return Path(moved) if moved else Path.home() / ".cache/amq/nfs-test"


def provide(names: tuple[str, ...]) -> Packages:
    """Packages `names`, and what they need and this host lacks, from the cache or from the host's own apt sources."""
    uris = _missing(names)
    key = hashlib.sha256("\n".join([Path(__file__).read_text(), *uris]).encode()).hexdigest()[:16]
    root = cache_directory() / key
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=f"{key}.") as scratch:
            unpacked = _build(names, Path(scratch))
            try:
                unpacked.rename(root)
            except OSError:
                if not root.exists():  # else: somebody was quicker
                    raise
    return Packages(root, f"{os.uname().machine}-linux-gnu")


def _missing(names: tuple[str, ...]) -> list[str]:
    """The archives that this host would have to fetch, with their versions and checksums."""
    ask = ["install", "--print-uris", "-qq", *names]
    try:
        listed = _apt_get(*ask)
    except PackagesError:  # the lists of packages are old, or missing
        _apt_get("update", "-qq")
        listed = _apt_get(*ask)
    return sorted(line for line in listed.splitlines() if ".deb" in line)


def _build(names: tuple[str, ...], scratch: Path) -> Path:
    archives, root = scratch / "archives", scratch / "root"
    (archives / "partial").mkdir(parents=True)
    fetch = ["install", "--download-only", "-qq", "-o", f"Dir::Cache::archives={archives}", *names]
    try:
        _apt_get(*fetch)
    except PackagesError:  # gone from the server, because the lists of packages are old
        _apt_get("update", "-qq")
        _apt_get(*fetch)
    root.mkdir()
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if (link := Path("/", name)).is_symlink():  # a real directory would hide the host's link
            (root / name).symlink_to(os.readlink(link))
            (root / os.readlink(link)).mkdir(parents=True, exist_ok=True)
    for package in sorted(archives.glob("*.deb")):
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", root], input=content, check=True)
    return root


def _apt_get(*words: str) -> str:
    command = ["apt-get", "--yes", "--no-install-recommends", "-o", "APT::Sandbox::User=root", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackagesError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
