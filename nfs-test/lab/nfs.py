"""An NFS server on guest 1, and mounts of it.

Invariant: the server's memory of its clients lies on its disk (else it forgets them at a crash and there is no grace
period), and lease and grace are set before it starts (later it would not take them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from lab.filesystem import MOUNT, SERVER, make_ext4, together
from lab.guest import Guest
from lab.network import data_address

LEASE_S = 10
RECOMMENDED = "vers=4.2,soft,timeo=20,retrans=2,lookupcache=none,sync,proto=tcp"
HARD = "vers=4.2,hard,timeo=20,retrans=2,lookupcache=none,sync,proto=tcp"
DEFAULTS = "vers=4.2"
VERSION_3 = "vers=3,soft,timeo=20,retrans=2,lookupcache=none,sync,proto=tcp"
EXPORT = "/srv/disk/export"

_START = """
modprobe nfsd
modprobe lockd
test {grace_s} = 0 || echo {grace_s} > /proc/sys/fs/nfs/nlm_grace_period
mkdir -p /srv/disk
mount -t ext4 /dev/ubda /srv/disk
mkdir -p {export} /srv/disk/nfsdcld /var/lib/nfs/nfsdcld /var/lib/nfs/v4recovery /var/lib/nfs/sm /var/lib/nfs/sm.bak
mount --bind /srv/disk/nfsdcld /var/lib/nfs/nfsdcld
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd
nfsdcld
echo {lease_s} > /proc/fs/nfsd/nfsv4leasetime
echo {lease_s} > /proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,sync,no_subtree_check,no_root_squash,fsid=0 '*:{export}'
"""
_STATD = """
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /run/rpcbind
grep -q ^_rpc: /etc/passwd || echo '_rpc:x:998:65534::/run/rpcbind:/usr/sbin/nologin' >> /etc/passwd
rpcbind
rpc.statd --no-notify
"""


class Nfs:
    """Served by guest 1 from its disk, mounted with `options`. NFSv3 is only served when they, or `version_3`, ask."""

    def __init__(self, options: str = RECOMMENDED, lease_s: int = LEASE_S, version_3: bool = False) -> None:
        self._options = options
        self._version_3 = version_3 or "vers=3" in options.split(",")
        self._grace_s = lease_s
        self.lease_s = 0 if "vers=3" in options.split(",") else lease_s
        self._versions = "" if self._version_3 else "-N 3"
        self._server: Guest | None = None

    def disks(self, work: Path, hosts: Sequence[int]) -> Mapping[int, Mapping[str, str]]:  # noqa: ARG002
        make_ext4(work / "disk")
        return {SERVER: {"ubd0": str(work / "disk")}}

    def set_up(self, guests: Mapping[int, Guest]) -> None:
        self._server = guests[SERVER]
        self._start()
        together([partial(self.mount, guest) for n, guest in guests.items() if n != SERVER])

    def mount(self, guest: Guest, options: str = "", path: str = MOUNT) -> None:
        """Mount it on `guest`, with its own options unless others are given."""
        options = options or self._options
        source = f"{data_address(SERVER)}:{EXPORT if 'vers=3' in options.split(',') else '/'}"
        statd = _STATD if "vers=3" in options.split(",") and "nolock" not in options else "true"
        guest.run(f"modprobe nfs\n{statd}\nmkdir -p {path}; mount -t nfs -o {options} {source} {path}")

    def remount(self, guest: Guest) -> None:
        guest.run(f"umount -l {MOUNT}")
        self.mount(guest, RECOMMENDED)

    def close(self) -> None:
        """Everything runs in guests."""

    # -- what can happen to it -----------------------------------------------------------------------------------------

    @property
    def server(self) -> Guest:
        assert self._server is not None, "not set up"
        return self._server

    def _start(self) -> None:
        nlm_grace_s = self._grace_s if self._version_3 else 0
        self.server.run(_START.format(lease_s=self._grace_s, export=EXPORT, grace_s=nlm_grace_s))
        if self._version_3:
            self.server.run(_STATD)
        self.resume()
        self.server.run(f"rpc.mountd {self._versions}")

    def stop(self) -> None:
        self.server.run("rpc.nfsd 0")

    def resume(self) -> None:
        self.server.run(f"rpc.nfsd {self._versions} 4")

    def restart(self) -> None:
        """The server program, not the machine: clients reclaim what they had."""
        self.stop()
        self.resume()

    def forget_clients(self) -> None:
        """Restart without any memory of who had which lock: nobody may reclaim."""
        self.stop()
        self.server.run("pkill nfsdcld; rm -f /var/lib/nfs/nfsdcld/*; nfsdcld")
        self.resume()

    def crash(self) -> None:
        self.server.power_off()

    def reboot(self) -> None:
        """After a crash: the disk is as it was."""
        self.server.start().wait_up()
        self._start()

    def free_locks(self) -> None:
        """What an operator does about the locks of an NFSv3 client that will never come back."""
        self.server.run(f"echo {EXPORT} > /proc/fs/nfsd/unlock_filesystem")

    def fill(self, leave_bytes: int) -> None:
        """Take the room of the store's file system, but for `leave_bytes`."""
        self.server.run(
            f"free=$(($(stat -f -c '%a * %S' /srv/disk))); n=$((free - {leave_bytes})); "
            "file=/srv/disk/ballast.$(ls /srv/disk | wc -l); "
            "fallocate -l $n $file || dd if=/dev/zero of=$file bs=4k conv=fsync 2>/dev/null || true; sync"
        )

    def make_room(self) -> None:
        self.server.run("rm /srv/disk/ballast.*; sync")
