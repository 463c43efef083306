"""mountinfo and mountstats as kernels write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doctor_world import EXT4, GFS2, MOUNTSTATS, NFS4, ROOT, SampleMachine

from amq.doctor.machine import SystemMachine
from amq.doctor.mounts import find_mount, nfs_lease_s, nfs_server_name, parse_mountinfo, parse_options


def test_a_line() -> None:
    (mount,) = parse_mountinfo(NFS4)
    assert (mount.id, mount.device, mount.point) == (50, "0:44", "/mnt/amq")
    assert (mount.fs_type, mount.source) == ("nfs4", "10.98.0.1:/")
    assert mount.get("vers") == "4.2"
    assert mount.has("soft")
    assert mount.has("sync")
    assert mount.has("relatime")
    assert not mount.has("hard")
    assert mount.get("hard") == ""
    assert "timeo=20" in mount.to_json()["options"]


def test_read_only_in_either_place() -> None:
    for line in (EXT4.replace("amq rw", "amq ro"), EXT4.replace("vdb rw", "vdb ro")):
        (mount,) = parse_mountinfo(line)
        assert mount.has("ro")
        assert not mount.has("rw")


def test_escaped_blanks() -> None:
    (mount,) = parse_mountinfo("5 1 0:3 / /mnt/a\\040b\\134 rw - ext4 /dev/x\\011y rw\n")
    assert mount.point == "/mnt/a b\\"
    assert mount.source == "/dev/x\ty"


@pytest.mark.parametrize("line", ["", "x", " - ", "1 2 3 4 5 6 - ext4", "x 1 0:3 / / rw - ext4 d rw", "1 - ext4 d rw"])
def test_lines_that_are_none(line: str) -> None:
    assert list(parse_mountinfo(line + "\n")) == []


def test_options_with_equal_signs() -> None:
    assert parse_options("rw,context=a=b,,x=") == {"rw": "", "context": "a=b", "x": ""}


def test_the_mount_of_a_directory(tmp_path: Path) -> None:
    mount = find_mount(SampleMachine(NFS4), str(tmp_path))
    assert mount is not None
    assert mount.fs_type == "nfs4"
    machine = SampleMachine(NFS4, {"/proc/self/mountinfo": ROOT})
    assert find_mount(machine, str(tmp_path)) is None
    with pytest.raises(FileNotFoundError):
        find_mount(machine, str(tmp_path / "missing"))


def test_of_this_machine(tmp_path: Path) -> None:
    """The kernel says the same in two ways."""
    machine = SystemMachine()
    for directory in (str(tmp_path), "/proc/self", "/dev/shm"):
        mount = find_mount(machine, directory)
        assert mount is not None
        assert os.path.realpath(directory).startswith(mount.point)
    shm = find_mount(machine, "/dev/shm")
    assert shm is not None
    if shm.fs_type == "tmpfs":
        assert machine.magic("/dev/shm") == 0x01021994
    with pytest.raises(NotADirectoryError):
        machine.mount_id(__file__)
    with pytest.raises(FileNotFoundError):
        machine.magic(str(tmp_path / "missing"))
    assert machine.read("/nonexistent") == ""
    assert machine.names("/nonexistent") == []
    assert machine.names("/proc/self/ns")
    assert machine.clock_s("CLOCK_BOOTTIME") <= machine.clock_s("CLOCK_BOOTTIME")


def test_what_mountstats_says_of_this_mount_and_of_no_other() -> None:
    (mount,) = parse_mountinfo(NFS4)
    machine = SampleMachine(NFS4)
    assert nfs_lease_s(machine, mount) == 10
    assert nfs_server_name(machine, mount) == "Linux 6.1.176"
    silent = SampleMachine(NFS4, {"/proc/self/mountstats": MOUNTSTATS.replace("/mnt/amq", "/mnt/elsewhere")})
    assert nfs_lease_s(silent, mount) is None
    assert nfs_server_name(silent, mount) == ""
    (gfs2,) = parse_mountinfo(GFS2)
    assert nfs_lease_s(SampleMachine(GFS2, {"/proc/self/mountstats": ""}), gfs2) is None
