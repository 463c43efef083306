"""Judges a file system by its mount, before the doctor tries anything. Facts: docs/assumptions.md.

Invariant: a local file system is never unfit. A file system is unfit if its locks are known not to exclude between
hosts, or not to come free. For an untested file system the doctor recommends a test with `--peer`; also for a folder
that a virtual machine shares with its host, because all brokers may run in that machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from amq.doctor.finding import Finding, Level, unfit
from amq.doctor.machine import ThisHost
from amq.doctor.mounts import Mount, nfs_lease_s, nfs_server_name
from amq.doctor.options import BARRIERS, GFS2_RULES, LOOSE_CACHE, NFS_RULES, SMB_RULES, SYNCS, WRITABLE, judge_options

TYPE_TOPIC = "file system"
ALONE_TOPIC = "shared between hosts"
LEASE_TOPIC = "lease time"
LEASE_S_MAX = 30
LOCAL_TYPES = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "jfs",
        "reiserfs",
        "nilfs2",
        "tmpfs",
        "ramfs",
        "overlay",
        "aufs",
        "ecryptfs",
        "fuse.fuse-overlayfs",
    )
)
PASSING_TYPES = {
    "tmpfs": "it is memory, which a reboot erases",
    "ramfs": "it is memory, which a reboot erases",
    "overlay": "it disappears with its container; put the store on a volume",
}
NFS_TYPES = frozenset(("nfs", "nfs4"))
SMB_TYPES = frozenset(("cifs", "smb3", "smbfs"))
LOCKLESS_TYPES = {
    "fuse.sshfs": "sshfs has no locks between hosts and caches old content",
    "fuse.rclone": "rclone has no locks between hosts",
    "fuse.s3fs": "an object store has neither locks nor hard links",
    "fuse.gcsfuse": "an object store has neither locks nor hard links",
    "fuse.goofys": "an object store has neither locks nor hard links",
    "fuse.mount-s3": "an object store has neither locks nor hard links",
    "fuse.blobfuse2": "an object store has neither locks nor hard links",
    "fuse.blobfuse": "an object store has neither locks nor hard links",
}
LOCAL_LOCK_TYPES = {
    "9p": "QEMU's server grants every lock",
    "virtiofs": "locks stay inside one virtual machine unless the server is told to share them",
    "vboxsf": "locks stay inside one virtual machine",
    "vmhgfs": "locks stay inside one virtual machine",
    "fuse.vmhgfs-fuse": "locks stay inside one virtual machine",
    "prl_fs": "locks stay inside one virtual machine",
    "hostfs": "locks stay inside one guest",
}
# The type that statfs(2) reports for a directory on such a mount, for the most important types.
MAGIC = {
    "nfs": (0x6969,),
    "nfs4": (0x6969,),
    "gfs2": (0x01161970,),
    "ocfs2": (0x7461636F,),
    "cifs": (0xFF534D42, 0xFE534D42),
    "smb3": (0xFF534D42, 0xFE534D42),
    "ceph": (0x00C36400,),
    "ext4": (0xEF53,),
    "xfs": (0x58465342,),
    "btrfs": (0x9123683E,),
    "tmpfs": (0x01021994,),
    "overlay": (0x794C7630,),
}
_RELY = "brokers on different hosts need one file system with locks that exclude between them"


class Judgement(NamedTuple):
    """lease_s: the server frees a dead host's locks after this time; None = unknown, 0 = no server.
    mount_options: the recommended ones; "" = none."""

    findings: list[Finding]
    lease_s: float | None
    mount_options: str


def judge(mount: Mount, machine: ThisHost) -> Judgement:
    """Judge a mount by what is known of its file system."""
    kind = mount.fs_type
    if kind in NFS_TYPES:
        return _judge_nfs(mount, machine)
    if kind in SMB_TYPES:
        return Judgement(list(_judge_smb(mount)), None, "vers=3.1.1,cache=none")
    if kind in _OTHERS:
        return Judgement(list(_OTHERS[kind](mount, machine)), None, "")
    if kind in LOCKLESS_TYPES:
        finding = unfit(TYPE_TOPIC, kind, LOCKLESS_TYPES[kind], "use NFSv4, GFS2 or SMB 3; on one host, a local disk")
        return Judgement([finding], None, "")
    if kind in LOCAL_TYPES:
        return Judgement([*_judge_local(mount), *_judge_server(machine)], 0.0, "")
    return Judgement(list(_judge_unknown(mount)), None, "")


def judge_magic(mount: Mount, magic: int) -> Iterator[Finding]:
    """Compare statfs(2) with mountinfo."""
    if mount.fs_type in MAGIC and magic not in MAGIC[mount.fs_type]:
        yield Finding(
            Level.WARNING,
            "statfs",
            f"type 0x{magic:x}, which is not {mount.fs_type}",
            "the kernel reports two file systems for one directory, so the findings about the mount may be wrong",
            "look for a second mount over it: `findmnt -T DIR`",
        )


def _judge_local(mount: Mount) -> Iterator[Finding]:
    kind = mount.fs_type
    yield Finding(Level.OK, TYPE_TOPIC, kind, "a local file system, as far as this host can see")
    passing = f"; {PASSING_TYPES[kind]}" if kind in PASSING_TYPES else ""
    yield Finding(
        Level.WARNING,
        ALONE_TOPIC,
        "no",
        f"all brokers must run on this host and fail with it{passing}",
        "for brokers on several hosts mount NFSv4, GFS2 or SMB 3",
    )
    yield WRITABLE.judge(mount)
    if mount.has("nobarrier") or mount.has("barrier"):
        yield BARRIERS.judge(mount)
    if mount.has("volatile"):
        yield SYNCS.judge(mount)


def _judge_server(machine: ThisHost) -> Iterator[Finding]:
    """Judge a store on the NFS server itself."""
    lease = machine.read("/proc/fs/nfsd/nfsv4leasetime").strip()
    if lease.isdecimal():
        finding = _judge_lease(float(lease))
        yield Finding(Level.NOTE, f"{LEASE_TOPIC} of the NFS server here", finding.found, finding.why, finding.cure)


def _judge_unknown(mount: Mount) -> Iterator[Finding]:
    known = LOCAL_LOCK_TYPES.get(mount.fs_type, "amq was not tested on it")
    yield Finding(
        Level.WARNING,
        TYPE_TOPIC,
        mount.fs_type,
        f"{known}; {_RELY}",
        "test it: run `amq doctor DIR --as-peer` on one host and `amq doctor DIR --peer HOST` on another",
    )
    yield WRITABLE.judge(mount)


# -- NFS ---------------------------------------------------------------------------------------------------------------


def _judge_nfs(mount: Mount, machine: ThisHost) -> Judgement:
    version = _version(mount)
    server = nfs_server_name(machine, mount)
    findings = [_judge_version(mount, version, f", server {server}" if server else "")]
    lease_s: float | None = None
    if version >= (4, 0):
        lease_s = nfs_lease_s(machine, mount)
        findings.append(_judge_lease(lease_s))
        findings += _judge_lost_locks(machine)
    findings += judge_options(NFS_RULES, mount)
    return Judgement(findings, lease_s, "vers=4.2,soft,timeo=20,retrans=2,lookupcache=none,sync,proto=tcp")


def _version(mount: Mount) -> tuple[int, int]:
    """(4, 2); (0, 0) = not shown. Older kernels split it into vers and minorversion."""
    found = re.fullmatch(r"(\d+)(?:\.(\d+))?", mount.get("vers") or mount.get("nfsvers"))
    if not found:
        return 0, 0
    minor = found[2] or mount.get("minorversion") or "0"
    return int(found[1]), int(minor) if minor.isdecimal() else 0


def _judge_version(mount: Mount, version: tuple[int, int], server: str) -> Finding:
    found = f"NFSv{version[0]}{f'.{version[1]}' if version[0] >= 4 else ''}{server}"
    if version >= (4, 1):
        return Finding(Level.OK, TYPE_TOPIC, found, "locks end with the server's lease; a repeated request counts once")
    if version == (4, 0):
        return Finding(
            Level.WARNING,
            TYPE_TOPIC,
            found,
            "the server may carry out a repeated request twice after a fault, and delegations of a frozen host make "
            "a slave wait for the server's lease time",
            "mount with vers=4.2 (or 4.1)",
        )
    if version[0] == 0:
        return Finding(Level.WARNING, TYPE_TOPIC, f"NFS, {mount.fs_type}", "the version is not shown", "use vers=4.2")
    return unfit(
        TYPE_TOPIC,
        found,
        "the lock of a dead host stays taken until somebody frees it on the server, so no slave takes over",
        "mount with vers=4.2; to free such a lock, write the path of the export on the server to "
        "/proc/fs/nfsd/unlock_filesystem",
    )


def _judge_lease(lease_s: float | None) -> Finding:
    why = "a slave gets the lock of a dead or cut-off host after this time, or replaces it after hungMasterTimeout"
    cure = "set lease-time and grace-time in /etc/nfs.conf on the server to 10 to 20 s and restart it"
    if lease_s is None:
        return Finding(Level.NOTE, LEASE_TOPIC, "unknown", f"{why}; the default is 90 s", f"ask the server; {cure}")
    if lease_s > LEASE_S_MAX:
        return Finding(Level.WARNING, LEASE_TOPIC, f"{lease_s:g} s", why, cure)
    return Finding(Level.OK, LEASE_TOPIC, f"{lease_s:g} s", why)


def _judge_lost_locks(machine: ThisHost) -> Iterator[Finding]:
    if machine.read("/sys/module/nfs/parameters/recover_lost_locks").strip() == "Y":
        yield Finding(
            Level.WARNING,
            "recover_lost_locks",
            "Y",
            "this client takes lost locks again, so the server no longer refuses late writes of a deposed master",
            "set nfs.recover_lost_locks=N, the default",
        )


# -- cluster file systems, SMB -----------------------------------------------------------------------------------------


def _judge_gfs2(mount: Mount, machine: ThisHost) -> Iterator[Finding]:
    protocol = _gfs2_protocol(mount, machine)
    if protocol == "lock_nolock":
        yield unfit(
            TYPE_TOPIC,
            "gfs2, lock_nolock",
            "locks and caches stay on this node, so two nodes get the lock and damage the file system",
            "create it with mkfs.gfs2 -p lock_dlm and run dlm_controld with fencing on each node",
        )
    elif protocol == "lock_dlm":
        yield Finding(Level.OK, TYPE_TOPIC, "gfs2, lock_dlm", "the cluster grants the locks")
    else:
        yield Finding(
            Level.WARNING,
            TYPE_TOPIC,
            f"gfs2, lock protocol {protocol or 'unknown'}",
            "only lock_dlm excludes between nodes",
            "run `tunegfs2 -l DEVICE`",
        )
    yield Finding(
        Level.NOTE,
        "fencing",
        "not visible from here",
        "the file system blocks until the cluster has fenced a dead node, and no slave takes over before",
        "test it with `stonith_admin --fence NODE` or the tool of your cluster",
    )
    yield from judge_options(GFS2_RULES, mount)


def _gfs2_protocol(mount: Mount, machine: ThisHost) -> str:
    """The lock protocol. The mount shows it only if it was given as an option; sysfs always shows it."""
    for table in machine.names("/sys/fs/gfs2"):
        if machine.read(f"/sys/fs/gfs2/{table}/id").strip() == mount.device:
            return machine.read(f"/sys/fs/gfs2/{table}/lock_module/proto_name").strip()
    return mount.get("lockproto")


def _judge_ocfs2(_mount: Mount, _machine: ThisHost) -> Iterator[Finding]:
    yield unfit(
        TYPE_TOPIC,
        "ocfs2",
        "with the usual cluster stack (o2cb), byte-range locks stay on one node, so every node gets the lock",
        "use GFS2 or NFSv4",
    )


def _judge_ceph(mount: Mount, _machine: ThisHost) -> Iterator[Finding]:
    yield Finding(
        Level.WARNING,
        TYPE_TOPIC,
        mount.fs_type,
        "it should work by its documentation, but amq was not tested on it",
        "test it: run `amq doctor DIR --as-peer` on one host and `amq doctor DIR --peer HOST` on another",
    )
    yield WRITABLE.judge(mount)


_OTHERS: dict[str, Callable[[Mount, ThisHost], Iterator[Finding]]] = {
    "gfs2": _judge_gfs2,
    "ocfs2": _judge_ocfs2,
    "ceph": _judge_ceph,
}


def _judge_smb(mount: Mount) -> Iterator[Finding]:
    yield Finding(Level.OK, TYPE_TOPIC, f"SMB {mount.get('vers')}".strip(), "locks exclude between hosts")
    yield Finding(
        Level.NOTE,
        "dead clients",
        "not visible from here",
        "the server keeps the lock of a dead host until it drops the connection, which it never does by default",
        "in smb.conf: socket options = SO_KEEPALIVE TCP_KEEPIDLE=4 TCP_KEEPINTVL=2 TCP_KEEPCNT=3 "
        "TCP_USER_TIMEOUT=10000",
    )
    yield Finding(
        Level.NOTE,
        "hung master",
        "not replaced here",
        "SMB keeps the name of a lock file that is open, so no slave replaces a master that hangs",
        "watch `amq status`, and end the process of a silent master",
    )
    for finding in judge_options(SMB_RULES, mount):
        loose = finding.topic == LOOSE_CACHE.topic and mount.get("cache") in ("loose", "singleclient", "ro")
        yield LOOSE_CACHE if loose else finding
