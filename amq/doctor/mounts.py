"""Reads the mount of a directory from /proc/self/mountinfo and, for NFS, /proc/self/mountstats.

Invariant: parsing loses nothing that a rule asks for; an option without a value has the value "".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from amq.doctor.machine import ThisHost

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `options` holds those of the mount and those of the file system together."""

    id: int
    device: str
    point: str
    fs_type: str
    source: str
    options: Mapping[str, str]

    def has(self, option: str) -> bool:
        return option in self.options

    def get(self, option: str) -> str:
        return self.options.get(option, "")

    def to_json(self) -> dict[str, Any]:
        options = [f"{name}={value}" if value else name for name, value in self.options.items()]
        return {"type": self.fs_type, "source": self.source, "point": self.point, "options": options}


def parse_mountinfo(text: str) -> Iterator[Mount]:
    """The mounts of /proc/self/mountinfo, in its order; skips malformed lines."""
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        head, tail = left.split(" "), right.split(" ")
        if not dash or len(head) < 6 or len(tail) < 2 or not head[0].isdecimal():
            continue
        options = parse_options(head[5]) | parse_options(tail[2] if len(tail) > 2 else "")
        if "ro" in options:
            options.pop("rw", None)  # "ro" in either place makes the mount read-only
        yield Mount(int(head[0]), head[2], _plain(head[4]), tail[0], _plain(tail[1]), options)


def parse_options(text: str) -> dict[str, str]:
    """`rw,vers=4.2` → {"rw": "", "vers": "4.2"}."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: _plain(value) for name, _, value in pairs}


def find_mount(machine: ThisHost, directory: str) -> Mount | None:
    """The mount of `directory`; None if the kernel does not show it. Raises OSError."""
    number = machine.mount_id(directory)
    return next((mount for mount in parse_mountinfo(machine.read("/proc/self/mountinfo")) if mount.id == number), None)


def nfs_statistics(machine: ThisHost, mount: Mount) -> str:
    """The block of /proc/self/mountstats for an NFS mount; "" = none."""
    for block in re.split(r"^(?=device )", machine.read("/proc/self/mountstats"), flags=re.MULTILINE):
        head = re.match(r"device (\S+) mounted on (\S+) with fstype nfs", block)
        if head and _plain(head[2]) == mount.point:
            return block
    return ""


def nfs_lease_s(machine: ThisHost, mount: Mount) -> int | None:
    """The lease time of the NFSv4 server, seconds; None = unknown."""
    found = re.search(r"\blease_time=(\d+)", nfs_statistics(machine, mount))
    return int(found[1]) if found else None


def nfs_server_name(machine: ThisHost, mount: Mount) -> str:
    """The name that the NFSv4.1 server reports; "" = none."""
    found = re.search(r"impl_id:\s+name='([^']*)'", nfs_statistics(machine, mount))
    return found[1] if found else ""


def _plain(text: str) -> str:
    """Decode escapes such as \\040 for a blank."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
