"""Machines as samples: what the kernel writes about mounts of every kind, and file systems that lie."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amq.doctor.machine import SystemMachine
from amq.store.files.vfs import SystemVfs

# id, parent, device, root, point, options, optional fields - type, source, options: as kernel 6.1 wrote or writes them
ROOT = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n"
NFS4 = (
    "50 27 0:44 / /mnt/amq rw,relatime shared:7 - nfs4 10.98.0.1:/ rw,sync,vers=4.2,rsize=32768,wsize=32768,namlen=255,"
    "soft,proto=tcp,timeo=20,retrans=2,sec=sys,clientaddr=10.98.0.2,lookupcache=none,local_lock=none,addr=10.98.0.1\n"
)
NFS4_DEFAULT = (
    "50 27 0:44 / /mnt/amq rw,relatime - nfs4 10.98.0.1:/ rw,vers=4.2,rsize=32768,wsize=32768,namlen=255,hard,"
    "proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.98.0.2,local_lock=none,addr=10.98.0.1\n"
)
NFS3 = (
    "50 27 0:44 / /mnt/amq rw,relatime - nfs 10.98.0.1:/srv/exp rw,vers=3,rsize=32768,wsize=32768,namlen=255,hard,"
    "proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.98.0.1,mountvers=3,mountport=20048,mountproto=udp,"
    "local_lock=none,addr=10.98.0.1\n"
)
GFS2 = "50 27 253:3 / /mnt/amq rw,noatime - gfs2 /dev/mapper/data rw\n"
OCFS2 = "50 27 253:3 / /mnt/amq rw,relatime - ocfs2 /dev/sdb1 rw,_netdev,heartbeat=local,nointr,data=ordered\n"
CIFS = (
    "50 27 0:45 / /mnt/amq rw,relatime - cifs //10.98.0.1/amq rw,vers=3.1.1,cache=none,username=amq,uid=0,noforceuid,"
    "gid=0,noforcegid,addr=10.98.0.1,file_mode=0755,dir_mode=0755,soft,nounix,serverino,mapposix,rsize=4194304,"
    "wsize=4194304,bsize=1048576,echo_interval=4,actimeo=1,closetimeo=1\n"
)
EXT4 = "50 27 254:16 / /mnt/amq rw,relatime shared:9 - ext4 /dev/vdb rw\n"
TMPFS = "50 27 0:51 / /mnt/amq rw,nosuid,nodev - tmpfs tmpfs rw,size=1024k\n"
OVERLAY = "50 27 0:52 / /mnt/amq rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n"
SSHFS = "50 27 0:53 / /mnt/amq rw,nosuid,nodev,relatime - fuse.sshfs me@host:/srv rw,user_id=0,group_id=0\n"
VIRTIOFS = "50 27 0:54 / /mnt/amq rw,relatime - virtiofs shared rw\n"
CEPH = "50 27 0:55 / /mnt/amq rw,relatime - ceph 10.0.0.1:6789:/ rw,name=amq,secret=<hidden>,acl\n"
GLUSTER = "50 27 0:56 / /mnt/amq rw,relatime - fuse.glusterfs host:/vol rw,user_id=0,group_id=0,max_read=131072\n"
MOUNTSTATS = """\
device /dev/vda mounted on / with fstype ext4
device 10.98.0.1:/other mounted on /mnt/other with fstype nfs4 statvers=1.1
\timpl_id:\tname='other',domain='x',date='0,0'
\tnfsv4:\tbm0=0xfdffbfff,acl=0x3,sessions,pnfs=not configured,lease_time=33,lease_expired=0
device 10.98.0.1:/ mounted on /mnt/amq with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=32768
\tage:\t5
\timpl_id:\tname='Linux 6.1.176',domain='kernel.org',date='0,0'
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x60803,acl=0x3,sessions,pnfs=not configured,lease_time=10,lease_expired=0
\tsec:\tflavor=1,pseudoflavor=1
"""
MAGIC = {
    "nfs4": 0x6969,
    "nfs": 0x6969,
    "gfs2": 0x01161970,
    "ocfs2": 0x7461636F,
    "cifs": 0xFE534D42,
    "ext4": 0xEF53,
    "tmpfs": 0x01021994,
    "overlay": 0x794C7630,
}


def changed(line: str, *words: str) -> str:
    """The mountinfo line with other options at its end: `-name` away, `name=value` instead of what is there, or new."""
    head, _, last = line.rstrip("\n").rpartition(" ")
    options = last.split(",")
    for word in words:
        name = word.removeprefix("-").partition("=")[0]
        options = [option for option in options if option.partition("=")[0] != name]
        if not word.startswith("-"):
            options.append(word)
    return f"{head} {','.join(options)}\n"


@dataclass
class SampleMachine(SystemMachine):
    """A machine on which the directory under test lies on the mount of `line`; clocks are this host's unless given."""

    line: str = EXT4
    files: Mapping[str, str] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)

    def read(self, path: str) -> str:
        known = {"/proc/self/mountinfo": ROOT + self.line, "/proc/self/mountstats": MOUNTSTATS} | dict(self.files)
        return known.get(path, "")

    def names(self, directory: str) -> list[str]:
        below = [path.removeprefix(directory + "/") for path in self.files if path.startswith(directory + "/")]
        return sorted({path.partition("/")[0] for path in below})

    def mount_id(self, directory: str) -> int:
        os.stat(directory)
        return int(self.line.split()[0])

    def magic(self, directory: str) -> int:
        os.stat(directory)
        return MAGIC.get(self.line.partition(" - ")[2].split()[0], 0x65735546)

    def clock_s(self, name: str) -> float:
        return self.clocks[name] if name in self.clocks else SystemMachine.clock_s(name)


class LyingVfs(SystemVfs):
    """The real file system, but for the lies that a test asks for."""

    def __init__(self, *lies: str) -> None:
        self.lies = set(lies)
        self._remembered: dict[str, bytes] = {}
        self._paths: dict[int, str] = {}

    def try_lock(self, fd: int) -> bool:
        if "locks exclude nobody" in self.lies:
            return True
        if "locks are refused" in self.lies:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        if "locks go to nobody" in self.lies:
            return False
        return super().try_lock(fd)

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:
        fd = SystemVfs.open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """A stale read: what was read of the path first, for ever."""
        data = SystemVfs.pread(fd, size, offset)
        if "reads are stale" in self.lies and offset == 0:
            return self._remembered.setdefault(self._paths[fd], data)
        return data

    def link(self, source: str, target: str) -> None:
        if "links are refused" in self.lies:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        if "links replace" in self.lies and os.path.exists(target):
            os.unlink(target)
        SystemVfs.link(source, target)

    def listdir(self, path: str) -> list[str]:
        names: list[str] = SystemVfs.listdir(path)
        return [name for name in names if "new" not in name] if "listings are stale" in self.lies else names

    def fsync_directory(self, path: str) -> None:
        if "directories do not sync" in self.lies:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        SystemVfs.fsync_directory(path)


def by_topic(findings: Any) -> dict[str, Any]:
    return {finding.topic: finding for finding in findings}
