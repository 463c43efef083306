"""The NFS server of a lab, on guest 1, and mounts of it.

Invariant: the server's memory of its clients lies on its disk (else it forgets them at a crash and there is no grace
period), and lease and grace are set before it starts (later it would not take them).
"""

from __future__ import annotations

from lab.guest import Guest
from lab.network import data_address

SERVER = 1
LEASE_S = 10
DISK_BYTES = 400 << 20
RECOMMENDED = "vers=4.2,proto=tcp,soft,timeo=20,retrans=2,lookupcache=none,sync"
HARD = "vers=4.2,proto=tcp,hard,timeo=20,retrans=2,lookupcache=none,sync"
DEFAULTS = "vers=4.2"
STORE_MOUNT = "/srv/amq"

_START = """
modprobe nfsd
mkdir -p /srv/disk
mount -t ext4 /dev/ubda /srv/disk
mkdir -p /srv/disk/export /srv/disk/nfsdcld /var/lib/nfs/nfsdcld /var/lib/nfs/v4recovery /run/sendsigs.omit.d
mount --bind /srv/disk/nfsdcld /var/lib/nfs/nfsdcld
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd
nfsdcld
echo {lease_s} > /proc/fs/nfsd/nfsv4leasetime
echo {lease_s} > /proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,sync,no_subtree_check,no_root_squash,fsid=0 '*:/srv/disk/export'
rpc.nfsd {versions} 4
rpc.mountd {versions}
"""


class NfsServer:
    """NFSv4 on `guest`, exporting its disk."""

    def __init__(self, guest: Guest, lease_s: int = LEASE_S) -> None:
        self.guest = guest
        self.lease_s = lease_s

    def start(self) -> None:
        """Serve. Also after a reboot: the disk is as it was."""
        self.guest.run(_START.format(lease_s=self.lease_s, versions="-N 3"))

    def restart(self) -> None:
        """The server program, not the machine: clients reclaim what they had."""
        self.stop()
        self.resume()

    def stop(self) -> None:
        self.guest.run("rpc.nfsd 0")

    def resume(self) -> None:
        self.guest.run("rpc.nfsd -N 3 4")

    def fill(self, leave_bytes: int) -> None:
        """Take the room of the store's file system, but for `leave_bytes`."""
        self.guest.run(
            f"free=$(($(stat -f -c '%a * %S' /srv/disk))); n=$((free - {leave_bytes})); "
            "file=/srv/disk/ballast.$(ls /srv/disk | wc -l); "
            "fallocate -l $n $file || dd if=/dev/zero of=$file bs=4k conv=fsync 2>/dev/null || true; sync"
        )

    def make_room(self) -> None:
        self.guest.run("rm /srv/disk/ballast.*; sync")

    def forget_clients(self) -> None:
        """Restart without any memory of who had which lock: nobody may reclaim."""
        self.guest.run("rpc.nfsd 0; pkill nfsdcld; rm -f /var/lib/nfs/nfsdcld/*; nfsdcld; rpc.nfsd -N 3 4")

    def crash(self) -> None:
        self.guest.power_off()

    def reboot(self) -> None:
        self.guest.start().wait_up()
        self.start()


def mount(guest: Guest, options: str) -> None:
    guest.run(
        f"modprobe nfs; mkdir -p {STORE_MOUNT}; "
        f"mount -t nfs -o {options} {data_address(SERVER)}:/ {STORE_MOUNT}; grep {STORE_MOUNT} /proc/mounts"
    )
